"""The place of a request in a session, which travels beside the request."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.errors import InvalidRequest


class Numbered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A place in a session. With a `session` the call may be repeated under its `number` and takes effect
    once. All answers up to the number `arrived` have arrived, so the server may forget them.
    """

    session: Any = None
    number: Any = 0
    arrived: Any = 0


class PackedPlace(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """The place of a packed request and the name of its command, at the Redis door."""

    session: str
    number: int
    arrived: int
    command: str


#: The first byte of a packed place. UTF-8 text never begins with this byte.
PACKED = b"\x94"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PackedPlace).decode


def pack_place(place: Numbered, command: str) -> bytes:
    return _encode((place.session, place.number, place.arrived, command))


def read_place(raw: bytes) -> PackedPlace:
    try:
        return _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise InvalidRequest(
            "command", "an array of session, number, arrived and command", str(wrong)
        ) from None
