"""New messages, checked once: what passes here is right, on whichever side of the network it is checked.

A refusal quotes names and keys, never a payload or the value of a header: errors end up in logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import astuple

from fairlead.errors import InvalidRequest
from fairlead.model.durations import to_ms
from fairlead.model.lane import pack_lane
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
from fairlead.model.message import NewMessage, pack_headers


class CheckedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`ttl_ms` below 0: the queue's own."""

    lane: bytes
    weight: int
    headers: bytes
    payload: bytes
    delay_ms: int
    ttl_ms: int
    dedup_key: str
    stream: str


def check_messages(messages: object) -> list[CheckedMessage]:
    """Refuses the whole batch at the first bad message, by its index and field: nothing of it is stored."""
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
    """The good ones, and of each bad one its row and what is wrong with it. The bounds of a batch still hold
    for the whole.
    """
    checked, refused = [], []
    for at, message in enumerate(_sequence(messages)):
        try:
            checked.append(_check_plain(message) or _check(message, ""))
        except InvalidRequest as wrong:
            refused.append((at, wrong))
    return _within_bounds(checked), refused


def _within_bounds(checked: list[CheckedMessage]) -> list[CheckedMessage]:
    total = sum([len(message.payload) for message in checked])
    if total > MAX_BATCH_BYTES:
        raise InvalidRequest(
            "messages", f"at most {MAX_BATCH_BYTES} payload bytes in one call", f"{total} bytes"
        )
    return checked


#: Lanes of fairness keys that were found good, so that a key met before is neither checked nor packed again.
_known_lanes: dict[str, bytes] = {}
_MOST_KNOWN_LANES = 200_000


def _where(at: int, messages: Sequence[object]) -> str:
    return f"messages[{at}]." if len(messages) > 1 else ""


def _check_plain(message: object) -> CheckedMessage | None:
    """The short way for a message that is nothing but a payload with a key that was met before; None: go the
    long way.
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
    if len(_known_lanes) >= _MOST_KNOWN_LANES:
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
    # The design corrects a weight to its bound instead of refusing it; the delivery shows what counted.
    weight = 1 if weight < 1 else MAX_WEIGHT if weight > MAX_WEIGHT else weight
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
    # One character is at most four bytes: encode only what could be too long.
    if len(value) * 4 > most_bytes or not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(field, "text that can be written as UTF-8", value) from None
        if size > most_bytes:
            raise InvalidRequest(field, f"at most {most_bytes} bytes", f"{size} bytes")
    # A kind of text of the caller's own, such as a member of an enum, is kept as plain text.
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
    """Sorted and each once, so that the same set is always the same lane."""
    field = f"{at}throttle_keys"
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Sequence):
        raise InvalidRequest(field, "a list of texts", keys)
    unique = tuple(sorted({check_text(key, field, MAX_KEY_BYTES) for key in keys}))
    if len(unique) > MAX_THROTTLE_KEYS:
        raise InvalidRequest(field, f"at most {MAX_THROTTLE_KEYS}", f"{len(unique)} keys")
    return unique
