"""Encoding of commands and decoding of replies, for both clients, without I/O."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import hiredis

from fairlead.errors import FairleadError, InvalidRequest, ProtocolMismatch
from fairlead.model.names import check_queue_name
from fairlead.request import Answer, Request
from fairlead.wire.error_lines import read_error
from fairlead.wire.numbered import Numbered, pack_place
from fairlead.wire.packed import decode_answer, encode_request

PING = b"*1\r\n$4\r\nPING\r\n"

#: The reader's value for an incomplete reply. No reply equals it.
NOTHING = object()

_API_KEY = re.compile(r"[!-~](?:[ -~]{0,998}[!-~])?")
_WANTED = "fairlead's Redis protocol"


#: The errors of hiredis for bytes that are no replies.
NOT_REDIS = (hiredis.ProtocolError, UnicodeDecodeError)


class Greeting(NamedTuple):
    """The server's answer to the first command of a connection."""

    #: The address of the Flight door; "" if there is none.
    flight_address: str


def make_reader() -> hiredis.Reader:
    return hiredis.Reader(notEnoughData=NOTHING)


def command_of(request: Request[Any], once: Numbered | None = None) -> bytes:
    """The command in bytes. Raises `InvalidRequest` for values that cannot be encoded."""
    try:
        fields = encode_request(request)
    except InvalidRequest:
        if isinstance(queue := getattr(request, "queue", None), str):
            # The engine's error names the argument.
            check_queue_name(queue)
        raise
    if once is None:
        return b"*2\r\n%b$%d\r\n%b\r\n" % (_name_of(type(request)), len(fields), fields)
    place = pack_place(once, _command_name(type(request)))
    return b"*3\r\n$7\r\nFL.ONCE\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(place), place, len(fields), fields)


@cache
def _name_of(kind: type[Request[Any]]) -> bytes:
    """The encoded name of the command."""
    return _pack_words([_command_name(kind).encode()])


@cache
def _command_name(kind: type[Request[Any]]) -> str:
    return f"FL.{kind.verb_name.upper()}"


def _pack(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + _pack_words(words)


def _pack_words(words: list[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def greeting_command(api_key: str | None) -> bytes:
    """The first command of each connection."""
    words = [b"HELLO", b"3"]
    if api_key is not None:
        words += [b"AUTH", b"default", api_key.encode()]
    return _pack(words)


def check_api_key(given: object) -> str | None:
    """The key if it is valid. No error shows the key: a key with one wrong character is nearly a key."""
    if given is None:
        return None
    if not isinstance(given, str) or not _API_KEY.fullmatch(given):
        expected = "text of 1 to 1000 printable ASCII characters with no space at either end"
        raise InvalidRequest("api_key", expected, "(not shown)")
    return given


def read_greeting(reply: object) -> Greeting:
    if isinstance(reply, hiredis.ReplyError):
        raise _error_of(reply)
    told = reply if isinstance(reply, dict) else {}
    if told.get(b"server") != b"fairlead":
        raise ProtocolMismatch(_WANTED, f"a server that calls itself {told.get(b'server', reply)!r:.80}")
    return Greeting(told.get(b"flight", b"").decode(errors="replace"))


def another_protocol() -> ProtocolMismatch:
    """The error for a server whose first bytes were no reply."""
    return ProtocolMismatch(
        _WANTED, "another one; is this the address of a `resp` door, by default port 5554?"
    )


def answer_of(request: Request[Answer], reply: object) -> tuple[Answer, int]:
    """The answer, and the server's clock if the answer has leases. Raises the server's error."""
    if type(reply) is bytes:
        return decode_answer(request, reply)
    if isinstance(reply, hiredis.ReplyError):
        raise _error_of(reply)
    raise ProtocolMismatch(f"an answer to {request.verb_name}", f"{reply!r:.80}")


def number_of(request: Request[int], reply: object) -> int:
    """The answer, where it is a plain number. Raises the server's error."""
    if isinstance(reply, int):
        return reply
    if isinstance(reply, hiredis.ReplyError):
        raise _error_of(reply)
    raise ProtocolMismatch(f"an answer to {request.verb_name}", f"{reply!r:.80}")


def is_push(reply: object) -> bool:
    return isinstance(reply, hiredis.PushNotification)


def _error_of(reply: hiredis.ReplyError) -> FairleadError:
    return read_error(str(reply))
