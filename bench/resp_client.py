"""The least that a client of the door that speaks Redis can be: one connection, hiredis and the packed form."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from fairlead.request import Answer, Request
from fairlead.surface import Surface
from fairlead.wire.error_lines import read_error
from fairlead.wire.packed import decode_answer, encode_request

_NOT_YET = object()


class RespClient(Surface):
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)

    def do(self, request: Request[Answer]) -> Answer:
        name, fields = f"FL.{request.verb_name.upper()}".encode(), encode_request(request)
        self._socket.sendall(b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(fields), fields))
        reply: Any = self._reader.gets()
        while reply is _NOT_YET:
            self._reader.feed(self._socket.recv(1 << 18))
            reply = self._reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            raise read_error(str(reply))
        return decode_answer(request, reply)[0]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> RespClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
