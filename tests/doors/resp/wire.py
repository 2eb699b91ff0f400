"""A connection to the door as a program in any language has one: hiredis reads, and commands are written by hand."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hiredis

from fairlead.request import Request
from fairlead.wire.error_lines import read_error
from fairlead.wire.packed import decode_answer, encode_request

PATIENCE_S = 30.0
#: Not False, which is a value of RESP3.
_NOT_YET = object()

Word = str | bytes | int


def pack(*words: Word) -> bytes:
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in raw])


def packed(request: Request[Any]) -> bytes:
    return pack(f"FL.{request.verb_name.upper()}", encode_request(request))


class Wire:
    def __init__(
        self, address: str | None = None, *, path: str = "", connected: socket.socket | None = None
    ) -> None:
        if connected is not None:
            self.socket = connected
        elif path:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(path)
        else:
            host, _, port = str(address).rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(PATIENCE_S)
        self.rest = b""
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def read(self) -> Any:
        """The next reply; an error of the server is returned. Raises `ConnectionError` when it has closed."""
        while (reply := self._reader.gets()) is _NOT_YET:
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def read_many(self, count: int) -> list[Any]:
        return [self.read() for _ in range(count)]

    def ask(self, *words: Word) -> Any:
        self.send(pack(*words))
        return self.read()

    def do(self, request: Request[Any]) -> Any:
        """In the packed form, as our client does."""
        self.send(packed(request))
        reply = self.read()
        if isinstance(reply, hiredis.ReplyError):
            raise read_error(str(reply))
        return decode_answer(request, reply)[0]

    def is_closed(self) -> bool:
        """Waits for the server to close it; `rest` is what it said before."""
        try:
            while data := self.socket.recv(1 << 16):
                self.rest += data
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()


def code_of(reply: Any) -> str:
    assert isinstance(reply, hiredis.ReplyError), reply
    return str(reply).partition(" ")[0]


@contextmanager
def wires(address: str, count: int) -> Iterator[Sequence[Wire]]:
    opened = [Wire(address) for _ in range(count)]
    try:
        yield opened
    finally:
        for one in opened:
            one.close()
