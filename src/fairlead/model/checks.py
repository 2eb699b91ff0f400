"""Checks of new messages. A message that passed them is valid on either side of the network and is not
checked again.

An error quotes names and keys, but never a payload or the value of a header, because errors end up in logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, overload

import msgspec
from msgspec.structs import astuple

from fairlead.errors import InvalidRequest
from fairlead.model.durations import Duration, to_ms
from fairlead.model.lane import lane_key, lane_throttle_keys, pack_lane
from fairlead.model.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_DEDUP_KEY_BYTES,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_THROTTLE_KEYS,
    MAX_WEIGHT,
)
from fairlead.model.message import NewMessage, pack_headers, unpack_headers


class CheckedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message that passed the checks. A negative `ttl_ms` means the queue's own time to live."""

    lane: bytes
    weight: int
    headers: bytes
    payload: bytes
    delay_ms: int
    ttl_ms: int
    dedup_key: str
    stream: str


class Enqueued(Protocol):
    """The fields of one message, as a request or a `NewMessage` has them."""

    @property
    def payload(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...
    @property
    def fairness_key(self) -> str: ...
    @property
    def weight(self) -> int: ...
    @property
    def throttle_keys(self) -> Sequence[str]: ...
    @property
    def stream(self) -> str | None: ...
    @property
    def delay(self) -> Duration | None: ...
    @property
    def dedup_key(self) -> str | None: ...
    @property
    def ttl(self) -> Duration | None: ...


class MessageColumns(NamedTuple):
    """Checked messages by column. A column is None if no message needs it. `ttls` has the meaning of
    `CheckedMessage.ttl_ms`.
    """

    payloads: Sequence[bytes]
    keys: Sequence[str]
    weights: Sequence[int]
    headers: Sequence[bytes] | None = None
    throttle_keys: Sequence[tuple[str, ...]] | None = None
    streams: Sequence[str] | None = None
    delays: Sequence[int] | None = None
    dedup_keys: Sequence[str] | None = None
    ttls: Sequence[int] | None = None

    @property
    def length(self) -> int:
        return len(self.payloads)

    def rows(self, start: int, end: int) -> MessageColumns:
        return self._each(lambda column: column[start:end])

    def only(self, indexes: Sequence[int]) -> MessageColumns:
        return self._each(lambda column: [column[at] for at in indexes])

    def _each(self, change: Callable[[Any], Any]) -> MessageColumns:
        changed: list[Any] = [None if column is None else change(column) for column in self]
        return MessageColumns(*changed)


class CheckedColumns(Sequence[NewMessage]):
    """New messages that arrived by column and passed the checks. An object for a message is made only on
    access.
    """

    def __init__(self, columns: MessageColumns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.length

    def __eq__(self, other: object) -> bool:
        """Also equal to a list of the same messages."""
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, at: int) -> NewMessage: ...
    @overload
    def __getitem__(self, at: slice) -> CheckedColumns: ...
    def __getitem__(self, at: int | slice) -> NewMessage | CheckedColumns:
        if isinstance(at, slice):
            start, end, _ = at.indices(len(self))
            return CheckedColumns(self.columns.rows(start, end))
        columns = self.columns
        headers, throttle_keys = columns.headers, columns.throttle_keys
        streams, delays, dedup_keys, ttls = columns.streams, columns.delays, columns.dedup_keys, columns.ttls
        return NewMessage(
            columns.payloads[at],
            unpack_headers(headers[at]) if headers and headers[at] else None,
            columns.keys[at],
            columns.weights[at],
            throttle_keys[at] if throttle_keys else (),
            streams[at] or None if streams else None,
            timedelta(milliseconds=delays[at]) if delays and delays[at] else None,
            dedup_keys[at] or None if dedup_keys else None,
            timedelta(milliseconds=ttls[at]) if ttls and ttls[at] >= 0 else None,
        )


def by_column(messages: Sequence[CheckedMessage]) -> MessageColumns:
    if not messages:
        return MessageColumns((), (), ())
    lanes, weights, headers, payloads, delays, ttls, dedup_keys, streams = zip(
        *map(astuple, messages), strict=True
    )
    keys = {lane: lane_key(lane) for lane in set(lanes)}
    throttle_keys = {lane: lane_throttle_keys(lane) for lane in keys}
    return MessageColumns(
        payloads,
        [keys[lane] for lane in lanes],
        weights,
        headers if any(headers) else None,
        [throttle_keys[lane] for lane in lanes] if any(throttle_keys.values()) else None,
        streams if any(streams) else None,
        delays if any(delays) else None,
        dedup_keys if any(dedup_keys) else None,
        ttls if max(ttls) >= 0 else None,
    )


def is_bare(message: Enqueued) -> bool:
    """Whether a message has only a payload, a key and a weight, and all three are valid by a quick check."""
    return message.delay is None and is_bare_but_delay(message)


def is_bare_but_delay(message: Enqueued) -> bool:
    """`is_bare` for a message that may also have a delay, valid or not."""
    if message.headers or message.throttle_keys or message.stream is not None:
        return False
    if message.dedup_key is not None or message.ttl is not None:
        return False
    payload, weight = message.payload, message.weight
    if type(payload) is not bytes or type(weight) is not int:
        return False
    if len(payload) > MAX_PAYLOAD_BYTES or (weight != 1 and not 0 < weight <= MAX_WEIGHT):
        return False
    key = message.fairness_key
    return type(key) is str and 0 < 4 * len(key) <= MAX_KEY_BYTES and key.isascii()


def by_row(columns: MessageColumns) -> list[CheckedMessage]:
    count = columns.length
    throttle_keys = columns.throttle_keys or [()] * count
    names = list(zip(columns.keys, throttle_keys, strict=True))
    lanes = {name: pack_lane(*name) for name in set(names)}
    return [
        *map(
            CheckedMessage,
            [lanes[name] for name in names],
            columns.weights,
            columns.headers or [b""] * count,
            columns.payloads,
            columns.delays or [0] * count,
            columns.ttls or [-1] * count,
            columns.dedup_keys or [""] * count,
            columns.streams or [""] * count,
        )
    ]


def check_columns(messages: object) -> MessageColumns:
    """`check_messages`, by column."""
    columns = find_columns(messages)
    return by_column(check_messages(messages)) if columns is None else columns


def find_plain(message: Enqueued) -> MessageColumns | None:
    """`find_columns` for one message without headers, delay and time to live, and with at most one throttle
    key.
    """
    if message.headers or not (message.delay is message.ttl is None):
        return None
    payload, weight = message.payload, message.weight
    if type(payload) is not bytes or type(weight) is not int:
        return None
    if len(payload) > MAX_PAYLOAD_BYTES or not 0 < weight <= MAX_WEIGHT:
        return None
    if not _is_simple(message.fairness_key, MAX_KEY_BYTES):
        return None
    payloads, keys, weights = (payload,), (message.fairness_key,), (weight,)
    stream, dedup_key, throttle_keys = message.stream, message.dedup_key, message.throttle_keys
    if not throttle_keys and stream is dedup_key is None:
        return MessageColumns(payloads, keys, weights)
    if stream is not None and not _is_simple(stream, MAX_KEY_BYTES):
        return None
    if dedup_key is not None and not _is_simple(dedup_key, MAX_DEDUP_KEY_BYTES):
        return None
    if throttle_keys and not (
        type(throttle_keys) is tuple
        and len(throttle_keys) == 1
        and _is_simple(throttle_keys[0], MAX_KEY_BYTES)
    ):
        return None
    return MessageColumns(
        payloads,
        keys,
        weights,
        throttle_keys=(tuple(throttle_keys),) if throttle_keys else None,
        streams=None if stream is None else (stream,),
        dedup_keys=None if dedup_key is None else (dedup_key,),
    )


def _is_simple(text: object, most_bytes: int) -> bool:
    """Whether the value is a text that a quick check finds valid."""
    return type(text) is str and 0 < 4 * len(text) <= most_bytes and text.isascii()


def find_columns(messages: object) -> MessageColumns | None:
    """The columns of messages that are valid as they are, found by a few passes over columns.

    None for other messages: `check_messages` then names the first invalid one, or corrects values message by
    message.
    """
    if type(messages) is not list:
        return messages.columns if isinstance(messages, CheckedColumns) else None
    if not 0 < len(messages) <= MAX_BATCH_MESSAGES or set(map(type, messages)) != {NewMessage}:
        return None
    # One comprehension for each column makes no object for a message; a tuple of its fields would.
    payloads = (*[message.payload for message in messages],)
    keys = [message.fairness_key for message in messages]
    weights = [message.weight for message in messages]
    if (
        set(map(type, payloads)) != {bytes}
        or set(map(type, weights)) != {int}
        or set(map(type, keys)) != {str}
    ):
        return None
    if not are_plain(payloads, keys, weights):
        return None
    with_more = [
        message
        for message in messages
        if message.headers
        or message.throttle_keys
        or message.stream is not None
        or message.delay is not None
        or message.dedup_key is not None
        or message.ttl is not None
    ]
    if not with_more:
        return MessageColumns(payloads, keys, weights)
    headers = [message.headers for message in messages]
    throttle_keys = [message.throttle_keys for message in messages]
    try:
        return MessageColumns(
            payloads,
            keys,
            weights,
            [_headers(one, "") if one else b"" for one in headers] if any(headers) else None,
            good_throttle_keys(throttle_keys) if any(throttle_keys) else None,
            good_texts([message.stream for message in messages], MAX_KEY_BYTES),
            _good_times([message.delay for message in messages], 0),
            good_texts([message.dedup_key for message in messages], MAX_DEDUP_KEY_BYTES),
            _good_times([message.ttl for message in messages], -1),
        )
    except NotPlain:
        return None
    except (InvalidRequest, TypeError):
        # The slow way finds the first invalid message. A value that cannot be hashed is one.
        return None


class NotPlain(Exception):
    """A value is not valid as it is."""


def are_plain(payloads: Sequence[bytes], keys: Collection[str], weights: Collection[int]) -> bool:
    """Whether these columns, of at least one message, are valid as they are."""
    size = sum(map(len, payloads))
    # If all payloads together are small enough, so is each.
    if size > MAX_PAYLOAD_BYTES and (size > MAX_BATCH_BYTES or max(map(len, payloads)) > MAX_PAYLOAD_BYTES):
        return False
    # Most messages share a few values.
    weights, keys = set(weights), set(keys)
    has_good_weights = weights == {1} or (min(weights) >= 1 and max(weights) <= MAX_WEIGHT)
    return has_good_weights and _fit(keys, MAX_KEY_BYTES)


def good_headers(packed: Sequence[bytes]) -> Sequence[bytes]:
    """Packed headers that arrived over the network. Most messages share a few, so each distinct value is
    checked once.
    """
    good = {one: _headers(unpack_headers(one), "") if one else b"" for one in set(packed)}
    return [good[one] for one in packed]


def _fit(texts: Collection[str], most_bytes: int) -> bool:
    """Whether every text is non-empty, within the bound and valid as UTF-8."""
    together = "".join(texts)
    # A character takes at most four bytes. If all texts together are short enough, so is each.
    if "" in texts or (4 * len(together) > most_bytes and 4 * max(map(len, texts)) > most_bytes):
        return False
    if together.isascii():
        return True
    try:
        together.encode()
    except UnicodeEncodeError:
        return False
    return True


def good_texts(texts: Sequence[str | None], most_bytes: int) -> Sequence[str] | None:
    distinct = set(texts)
    distinct.discard(None)
    if not distinct:
        return None
    if set(map(type, distinct)) != {str} or not _fit(distinct, most_bytes):  # type: ignore[arg-type]
        raise NotPlain
    return texts if None not in texts else [text or "" for text in texts]  # type: ignore[return-value]


def _good_times(durations: Sequence[Duration | None], none_ms: int) -> Sequence[int] | None:
    times = {None: none_ms}
    times.update({one: to_ms(one, "") for one in set(durations) if one is not None})  # type: ignore[misc]
    if set(times.values()) == {none_ms}:
        return None
    return [times[one] for one in durations]  # type: ignore[index]


def good_throttle_keys(given: Sequence[Sequence[str]]) -> Sequence[tuple[str, ...]]:
    if set(map(type, given)) != {tuple}:
        raise NotPlain
    for keys in set(given):
        if _throttle_keys(keys, "") != keys:
            raise NotPlain
    return given  # type: ignore[return-value]


def check_messages(messages: object) -> list[CheckedMessage]:
    """Check all messages. The first invalid one rejects the whole batch, by its index and field; nothing is
    stored.
    """
    messages = _sequence(messages)
    return _within_bounds(
        [
            _check_plain(message) or _check(message, _where(at, messages))
            for at, message in enumerate(messages)
        ]
    )


def _sequence(messages: object) -> Sequence[object]:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidRequest("messages", "a list of NewMessage", type(messages))
    if len(messages) > MAX_BATCH_MESSAGES:
        raise InvalidRequest(
            "messages", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(messages)} messages"
        )
    return messages


def check_each(messages: object) -> tuple[list[CheckedMessage], list[tuple[int, InvalidRequest]]]:
    """The valid messages, and for each invalid one its row and what is wrong. The bounds of a batch apply to
    all of them together.
    """
    checked, refused = [], []
    for at, message in enumerate(_sequence(messages)):
        try:
            checked.append(_check_plain(message) or _check(message, ""))
        except InvalidRequest as wrong:
            refused.append((at, wrong))
    return _within_bounds(checked), refused


def check_each_column(messages: object) -> tuple[MessageColumns, list[tuple[int, InvalidRequest]]]:
    """`check_each`, by column."""
    columns = find_columns(messages)
    if columns is not None:
        return columns, []
    checked, refused = check_each(messages)
    return by_column(checked), refused


def _within_bounds(checked: list[CheckedMessage]) -> list[CheckedMessage]:
    total = sum([len(message.payload) for message in checked])
    if total > MAX_BATCH_BYTES:
        raise InvalidRequest(
            "messages", f"at most {MAX_BATCH_BYTES} payload bytes in one call", f"{total} bytes"
        )
    return checked


#: Packed lanes of valid fairness keys, so that a known key is neither checked nor packed again.
_known_lanes: dict[str, bytes] = {}
_MAX_KNOWN_LANES = 200_000


def _where(at: int, messages: Sequence[object]) -> str:
    return f"messages[{at}]." if len(messages) > 1 else ""


def _check_plain(message: object) -> CheckedMessage | None:
    """The fast way for a message with only a payload and a known fairness key; None means to use the slow
    way.
    """
    if type(message) is not NewMessage:
        return None
    payload, headers, key, weight, throttle_keys, stream, delay, dedup_key, ttl = astuple(message)
    if (
        headers
        or throttle_keys
        or not (stream is delay is dedup_key is ttl is None)
        or type(payload) is not bytes
        or type(weight) is not int
    ):
        return None
    lane = _known_lanes.get(key) if type(key) is str else None
    if lane is None or not 0 < weight <= MAX_WEIGHT or len(payload) > MAX_PAYLOAD_BYTES:
        return None
    return CheckedMessage(lane, weight, b"", payload, 0, -1, "", "")


def _remember(key: str, lane: bytes) -> bytes:
    if len(_known_lanes) >= _MAX_KNOWN_LANES:
        _known_lanes.clear()
    _known_lanes[key] = lane
    return lane


def _check(message: object, at: str) -> CheckedMessage:
    if not isinstance(message, NewMessage):
        raise InvalidRequest(f"{at}message", "a fairlead.NewMessage", type(message))
    payload = message.payload
    if type(payload) is not bytes:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise InvalidRequest(f"{at}payload", "bytes", type(payload))
        payload = bytes(payload)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidRequest(f"{at}payload", f"at most {MAX_PAYLOAD_BYTES} bytes", f"{len(payload)} bytes")
    weight = message.weight
    if type(weight) is not int:
        raise InvalidRequest(f"{at}weight", f"a whole number from 1 to {MAX_WEIGHT}", weight)
    # A weight out of range is corrected to the bound, not refused. The delivery shows the weight that
    # counted.
    weight = min(max(weight, 1), MAX_WEIGHT)
    throttle_keys = _throttle_keys(message.throttle_keys, at) if message.throttle_keys else ()
    key = check_text(message.fairness_key, f"{at}fairness_key", MAX_KEY_BYTES)
    lane = pack_lane(key, throttle_keys)
    return CheckedMessage(
        lane if throttle_keys else _remember(key, lane),
        weight,
        _headers(message.headers, at) if message.headers else b"",
        payload,
        0 if message.delay is None else to_ms(message.delay, f"{at}delay"),
        -1 if message.ttl is None else to_ms(message.ttl, f"{at}ttl"),
        ""
        if message.dedup_key is None
        else check_text(message.dedup_key, f"{at}dedup_key", MAX_DEDUP_KEY_BYTES),
        "" if message.stream is None else check_text(message.stream, f"{at}stream", MAX_KEY_BYTES),
    )


def check_text(value: object, field: str, most_bytes: int, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or (not value and not may_be_empty):
        raise InvalidRequest(field, "text" if may_be_empty else "text that is not empty", value)
    # A character takes at most four bytes: encode only a text that could be too long.
    if len(value) * 4 > most_bytes or not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(field, "text that can be written as UTF-8", value) from None
        if size > most_bytes:
            raise InvalidRequest(field, f"at most {most_bytes} bytes", f"{size} bytes")
    # A subclass of str, such as a member of an enum, is stored as plain text.
    return value if type(value) is str else str.__str__(value)


def _headers(headers: object, at: str) -> bytes:
    if not isinstance(headers, Mapping):
        raise InvalidRequest(f"{at}headers", "a mapping of text to text", type(headers))
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str:
            raise InvalidRequest(f"{at}headers", "a mapping of text to text", {name: type(value)})
    try:
        packed = pack_headers(headers if type(headers) is dict else dict(headers))
    except UnicodeEncodeError:
        raise InvalidRequest(f"{at}headers", "text that can be written as UTF-8", list(headers)) from None
    if len(packed) > MAX_HEADERS_BYTES:
        raise InvalidRequest(
            f"{at}headers", f"at most {MAX_HEADERS_BYTES} bytes in all", f"{len(packed)} bytes"
        )
    return packed


def _throttle_keys(keys: object, at: str) -> tuple[str, ...]:
    """The keys, sorted and without duplicates, so that the same set is always the same lane."""
    field = f"{at}throttle_keys"
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence):
        raise InvalidRequest(field, "a list of texts", keys)
    unique = tuple(sorted({check_text(key, field, MAX_KEY_BYTES) for key in keys}))
    if len(unique) > MAX_THROTTLE_KEYS:
        raise InvalidRequest(field, f"at most {MAX_THROTTLE_KEYS}", f"{len(unique)} keys")
    return unique
