"""The filter that selects messages for a redrive or an operator's verb, and its test of one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta

from fairlead.decide.error_pattern import ErrorPattern, PatternRefused
from fairlead.errors import InvalidRequest
from fairlead.model.durations import Duration, to_ms
from fairlead.model.failure import FailureReason, read_reason
from fairlead.model.lane import lane_key
from fairlead.model.message import Message, MessageState, unpack_headers


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """All given fields must match. `error` is a substring of the last error, `error_regex` a regular
    expression searched in it.

    `error_regex` has RE2's syntax: no look-around and no back references, and `\\d`, `\\w` and `\\b` are
    ASCII (docs/reference/filters.md). `older_than` and `newer_than` count from a message's death, so they
    select dead letters only.
    """

    reason: Annotated[
        FailureReason | str | int | None, Meta(description="The reason of the last failure.")
    ] = None
    error: Annotated[str | None, Meta(description="Found in the last error.")] = None
    error_regex: Annotated[
        str | None, Meta(description="A regular expression (RE2) found in the last error.")
    ] = None
    key: Annotated[str | None, Meta(description="The fairness key.")] = None
    header: Annotated[tuple[str, str] | None, Meta(description="A header.")] = None
    older_than: Annotated[Duration | None, Meta(description="Dead for at least so long.")] = None
    newer_than: Annotated[Duration | None, Meta(description="Dead for at most so long.")] = None
    min_attempts: Annotated[int | None, Meta(description="Failed at least so often.", ge=0)] = None
    max_attempts: Annotated[int | None, Meta(description="Failed at most so often.", ge=0)] = None


class Traits(NamedTuple):
    """The properties of a message that a filter tests and that can change during its life. Headers never
    change.
    """

    reason: int
    error: str
    lane: bytes
    dead_since_ms: int
    attempts: int


def traits_of(state: MessageState) -> Traits:
    error = state.failures[-1].error if state.failures else ""
    return Traits(state.reason, error, state.lane, state.dead_since_ms, state.attempts)


class DeadLetterTest:
    """A filter prepared for many tests. A message whose traits did not change gets the same answer again."""

    def __init__(self, given: DeadFilter, *, now_ms: int) -> None:
        """Relative ages are frozen at `now_ms`, so that the selection does not change during a scan."""
        self._reason = None if given.reason is None else int(read_reason(given.reason, "filter.reason"))
        self._error = _text(given.error, "filter.error")
        self._regex = _regex(given.error_regex)
        self._key = _text(given.key, "filter.key")
        self._header = _header(given.header)
        self._dead_before = (
            None if given.older_than is None else now_ms - to_ms(given.older_than, "filter.older_than")
        )
        self._dead_after = (
            None if given.newer_than is None else now_ms - to_ms(given.newer_than, "filter.newer_than")
        )
        self._min_attempts = _count(given.min_attempts, "filter.min_attempts")
        self._max_attempts = _count(given.max_attempts, "filter.max_attempts")
        #: The highest cost of testing one byte of error text, in instructions of RE2; 0 without a regular
        #: expression.
        self.cost = 0 if self._regex is None else self._regex.instructions

    def selects(self, message: Message | None, state: MessageState) -> bool:
        reason, error, lane, dead_since_ms, attempts = traits_of(state)
        return (
            (self._reason is None or reason == self._reason)
            # Ages count from the death of a message. A live message has none, and an age filter never selects
            # it.
            and (self._dead_before is None or 0 < dead_since_ms <= self._dead_before)
            and (self._dead_after is None or dead_since_ms >= max(1, self._dead_after))
            and (self._min_attempts is None or attempts >= self._min_attempts)
            and (self._max_attempts is None or attempts <= self._max_attempts)
            and (message is None or self._selects_message(message, lane))
            and (self._error is None or self._error in error)
            # Last, because it may be by far the most expensive test.
            and (self._regex is None or self._regex.search(error))
        )

    def _selects_message(self, message: Message, lane: bytes) -> bool:
        return (self._key is None or lane_key(lane or message.lane) == self._key) and (
            self._header is None or unpack_headers(message.headers).get(self._header[0]) == self._header[1]
        )


def filter_to_record(given: DeadFilter) -> dict[str, object]:
    """The stored form of the filter in an intent, which is read back after a restart."""
    record = {name: value for name, value in asdict(given).items() if value is not None}
    if given.header is not None:
        record["header"] = list(given.header)
    for age in ("older_than", "newer_than"):
        if age in record:
            record[age] = f"{to_ms(record[age], age)}ms"
    return record


def filter_from_record(record: Mapping[str, object]) -> DeadFilter:
    fields = dict(record)
    if "header" in fields:
        fields["header"] = tuple(fields["header"])  # type: ignore[arg-type]
    return DeadFilter(**fields)  # type: ignore[arg-type]


def _text(value: object, field: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidRequest(field, "text", value)


def _regex(value: object) -> ErrorPattern | None:
    text = _text(value, "filter.error_regex")
    if text is None:
        return None
    try:
        return ErrorPattern(text)
    except PatternRefused as wrong:
        raise InvalidRequest(
            "filter.error_regex", f"a regular expression in RE2's syntax ({wrong})", text
        ) from None


def _header(value: object) -> tuple[str, str] | None:
    if value is None:
        return None
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return value
    raise InvalidRequest("filter.header", "a (name, value) pair of texts", value)


def _count(value: object, field: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise InvalidRequest(field, "a whole number from 0", value)
