"""Which messages a redrive or an operator's verb selects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from fairlead.decide.pattern import Pattern, Refused
from fairlead.errors import InvalidRequest
from fairlead.model.durations import Duration, to_ms
from fairlead.model.failure import FailureReason, read_reason
from fairlead.model.lane import lane_key
from fairlead.model.message import Message, MessageState, lane_of, unpack_headers


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """All that is given must hold. `error` is a substring, `error_regex` a search, both over the last error.

    An `error_regex` is written as for `re`, without look-around and back references, so that no expression can hold up the
    broker. `older_than` and `newer_than` count from a message's death, so they select dead letters only.
    """

    reason: FailureReason | str | int | None = None
    error: str | None = None
    error_regex: str | None = None
    key: str | None = None
    header: tuple[str, str] | None = None
    older_than: Duration | None = None
    newer_than: Duration | None = None
    min_attempts: int | None = None
    max_attempts: int | None = None


class DeadLetterTest:
    """A filter that has been read once, to be asked many times."""

    def __init__(self, given: DeadFilter, *, now_ms: int) -> None:
        """Relative ages are frozen at `now_ms`, so that a selection does not change while it is worked through."""
        self._reason = None if given.reason is None else int(read_reason(given.reason, "filter.reason"))
        self._error = _text(given.error, "filter.error")
        self._regex = _regex(given.error_regex)
        self._key = _text(given.key, "filter.key")
        self._header = _header(given.header)
        self._dead_before = None if given.older_than is None else now_ms - to_ms(given.older_than, "filter.older_than")
        self._dead_after = None if given.newer_than is None else now_ms - to_ms(given.newer_than, "filter.newer_than")
        self._min_attempts = _count(given.min_attempts, "filter.min_attempts")
        self._max_attempts = _count(given.max_attempts, "filter.max_attempts")

    def selects(self, message: Message, state: MessageState) -> bool:
        error = state.failures[-1].error if state.failures else ""
        return (
            (self._reason is None or state.reason == self._reason)
            and (self._error is None or self._error in error)
            and (self._regex is None or self._regex.search(error))
            and (self._key is None or lane_key(lane_of(message, state)) == self._key)
            and (self._header is None or unpack_headers(message.headers).get(self._header[0]) == self._header[1])
            # An age is that of a death: a live message has none, and is not selected by one.
            and (self._dead_before is None or 0 < state.dead_since_ms <= self._dead_before)
            and (self._dead_after is None or state.dead_since_ms >= max(1, self._dead_after))
            and (self._min_attempts is None or state.attempts >= self._min_attempts)
            and (self._max_attempts is None or state.attempts <= self._max_attempts)
        )


def filter_to_record(given: DeadFilter) -> dict[str, object]:
    """The form an intent keeps."""
    record = {name: value for name, value in asdict(given).items() if value is not None}
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


def _regex(value: object) -> Pattern | None:
    text = _text(value, "filter.error_regex")
    if text is None:
        return None
    try:
        return Pattern(text)
    except Refused as wrong:
        raise InvalidRequest("filter.error_regex", f"a regular expression ({wrong})", text) from None


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
