"""Entries and messages: the fields of an entry are headers, and the field `payload` is the body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.errors import Forbidden, InvalidRequest
from fairlead.model.access import Right
from fairlead.model.delivery import Delivery
from fairlead.model.views import MessageInfo
from fairlead.server.resp.streams.entry_ids import entry_id_of, entry_id_of_text

PAYLOAD = "payload"

#: The id and the fields of an entry, as they are sent.
Entry = tuple[bytes, list[str | bytes]]


def read_fields(words: Sequence[bytes]) -> tuple[dict[str, str], bytes]:
    """The headers and the body of an entry, from alternating names and values."""
    if not words or len(words) % 2:
        raise InvalidRequest("fields", "pairs of a field and a value, at least one", f"{len(words)} words")
    headers: dict[str, str] = {}
    payload: bytes | None = None
    for name_word, value in zip(words[::2], words[1::2], strict=True):
        name = _text(name_word, "the name of a field")
        if name in headers or (name == PAYLOAD and payload is not None):
            raise InvalidRequest("fields", f"{name} once", "it twice")
        if name == PAYLOAD:
            payload = value
        else:
            headers[name] = _text(value, f"field {name}")
    return headers, payload or b""


def fields_of(headers: Mapping[str, str], payload: bytes) -> list[str | bytes]:
    """The body comes last. An empty body is omitted if there are headers."""
    fields: list[str | bytes] = []
    for name, value in headers.items():
        if name != PAYLOAD:
            fields += (name, value)
    if payload or not fields:
        fields += (PAYLOAD, payload)
    return fields


def delivered_entry(delivery: Delivery) -> Entry:
    return entry_id_of(delivery.raw_id).shown, fields_of(delivery.headers, delivery.payload)


def shown_entry(info: MessageInfo) -> Entry:
    """Raises `Forbidden` if the caller may not read the body, because an omitted body would look like an
    empty one.
    """
    if PAYLOAD in info.hidden:
        raise Forbidden(Right.READ_PAYLOAD, info.queue)
    return entry_id_of_text(info.id).shown, fields_of(info.headers, info.payload)


def _text(word: bytes, what: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        expected = "text in UTF-8; only the field payload may have any bytes"
        raise InvalidRequest(what, expected, word[:40]) from None
