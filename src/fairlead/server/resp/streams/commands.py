"""The table of the commands, and a command while it is carried out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.errors import InvalidRequest
from fairlead.request import Request
from fairlead.server.resp.streams.claims import xautoclaim, xclaim
from fairlead.server.resp.streams.consume import xack, xnack, xreadgroup
from fairlead.server.resp.streams.groups import xgroup
from fairlead.server.resp.streams.look import xinfo, xlen, xpending, xrange, xrevrange
from fairlead.server.resp.streams.produce import xadd, xdel
from fairlead.server.resp.streams.session import StreamsSession
from fairlead.server.resp.streams.steps import StreamCommand

COMMANDS: dict[bytes, StreamCommand] = {
    b"XACK": xack,
    b"XADD": xadd,
    b"XAUTOCLAIM": xautoclaim,
    b"XCLAIM": xclaim,
    b"XDEL": xdel,
    b"XGROUP": xgroup,
    b"XINFO": xinfo,
    b"XLEN": xlen,
    b"XNACK": xnack,
    b"XPENDING": xpending,
    b"XRANGE": xrange,
    b"XREADGROUP": xreadgroup,
    b"XREVRANGE": xrevrange,
}
#: Commands of Redis Streams that are refused, each with the command to use instead.
REFUSED: dict[bytes, str] = {
    b"XACKDEL": "XACK: what is acknowledged is gone",
    b"XCFGSET": "FL.UPDATE_QUEUE key DEDUP window",
    b"XDELEX": "XDEL",
    b"XREAD": "XREADGROUP, or XRANGE to look: each message is delivered to one consumer of the queue's group",
    b"XSETID": "no such command: ids follow from the broker's clock and its commits",
    b"XTRIM": "FL.PURGE or FL.DROP: what is acknowledged is gone, and the rest is work that nobody has done",
}


class Running:
    """A command under way. `advance` returns the next request or the reply, and raises errors that the
    command does not catch.
    """

    def __init__(self, command: StreamCommand, session: StreamsSession, words: Sequence[bytes]) -> None:
        self._steps = command(session, words)
        self._has_begun = False

    def advance(self, answer: Any, error: BaseException | None) -> Request[Any] | bytes:
        try:
            if not self._has_begun:
                self._has_begun = True
                return next(self._steps)
            return self._steps.send(answer) if error is None else self._steps.throw(error)
        except StopIteration as end:
            reply: bytes = end.value
            return reply

    def close(self) -> None:
        self._steps.close()


def find_command(name: bytes) -> StreamCommand | None:
    """Raises `InvalidRequest` for a command of Redis Streams that is refused."""
    if instead := REFUSED.get(name):
        raise InvalidRequest("command", instead, name.decode())
    return COMMANDS.get(name)
