"""The replies to one program, beside those of a real Redis: the same shapes, and the same values where they mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hiredis
import pytest

from fairlead.server.resp.door import RespDoor
from tests.doors.resp.streams_program import redis_server
from tests.doors.resp.wire import Wire

_STREAM = "beside-redis"


class _Program:
    """Commands, with the ids that the server gave in place of `#n`."""

    def __init__(self, address: str, protocol: int) -> None:
        self._wire = Wire(address)
        self._wire.ask("HELLO", protocol)
        self._ids: list[bytes] = []

    def run(self) -> list[tuple[str, Any]]:
        replies = []
        for line in _COMMANDS:
            words = [self._ids[int(word[1:])] if word.startswith("#") else word for word in line.split()]
            reply = self._wire.ask(*words)
            if line.startswith("XADD") and isinstance(reply, bytes):
                self._ids.append(reply)
            replies.append((line, self._numbered(reply)))
        self._wire.close()
        return replies

    def _numbered(self, reply: Any) -> Any:
        """Ids by the order of their entries, and of errors their first words."""
        match reply:
            case hiredis.ReplyError():
                return str(reply).partition(" ")[0]
            case list():
                return [self._numbered(one) for one in reply]
            case dict():
                return {name: self._numbered(one) for name, one in reply.items()}
            case bytes() if reply in self._ids:
                return f"#{self._ids.index(reply)}"
        return reply


_COMMANDS = [
    f"XADD {_STREAM} NOMKSTREAM * n 0",
    f"XLEN {_STREAM}",
    f"XRANGE {_STREAM} - +",
    f"XREADGROUP GROUP g ann STREAMS {_STREAM} >",
    f"XPENDING {_STREAM} g",
    f"XINFO STREAM {_STREAM}",
    f"XGROUP CREATE {_STREAM} g 0",
    f"XGROUP CREATE {_STREAM} g 0 MKSTREAM",
    f"XGROUP CREATE {_STREAM} g 0",
    f"XINFO GROUPS {_STREAM}",
    f"XINFO CONSUMERS {_STREAM} g",
    f"XPENDING {_STREAM} g",
    f"XPENDING {_STREAM} g - + 10",
    f"XREADGROUP GROUP g ann STREAMS {_STREAM} >",
    f"XREADGROUP GROUP g ann BLOCK 5 STREAMS {_STREAM} >",
    f"XREADGROUP GROUP g ann STREAMS {_STREAM} 0",
    f"XADD {_STREAM} * n 0 payload zero",
    f"XADD {_STREAM} MAXLEN ~ 1000 * n 1",
    f"XADD {_STREAM} MAXLEN = 1000 * n 2",
    f"XADD {_STREAM} MINID ~ 0-1 LIMIT 10 * n 3",
    f"XLEN {_STREAM}",
    f"XREADGROUP GROUP g ann COUNT 2 STREAMS {_STREAM} >",
    f"XREADGROUP GROUP g bob COUNT 1 STREAMS {_STREAM} >",
    f"XREADGROUP GROUP g ann STREAMS {_STREAM} 0",
    f"XREADGROUP GROUP g ann STREAMS {_STREAM} #0",
    f"XPENDING {_STREAM} g",
    f"XPENDING {_STREAM} g - + 10",
    f"XPENDING {_STREAM} g IDLE 100000 - + 10",
    f"XPENDING {_STREAM} g (#0 + 10 ann",
    f"XRANGE {_STREAM} - +",
    f"XRANGE {_STREAM} #1 #2",
    f"XRANGE {_STREAM} (#1 + COUNT 1",
    f"XREVRANGE {_STREAM} + -",
    f"XREVRANGE {_STREAM} (#3 #1 COUNT 1",
    f"XINFO GROUPS {_STREAM}",
    f"XINFO CONSUMERS {_STREAM} g",
    f"XCLAIM {_STREAM} g ann 0 #0 #3 9-9",
    f"XCLAIM {_STREAM} g ann 0 #1 JUSTID",
    f"XCLAIM {_STREAM} g ann 100000 #1",
    f"XAUTOCLAIM {_STREAM} g ann 100000 0",
    f"XAUTOCLAIM {_STREAM} g ann 0 0-0 COUNT 1 JUSTID",
    f"XAUTOCLAIM {_STREAM} g ann 0 #1 COUNT 1",
    f"XACK {_STREAM} g #0 #1 9-9",
    f"XACK {_STREAM} g #0",
    f"XACK {_STREAM} other #2",
    f"XGROUP DESTROY {_STREAM} other",
    f"XGROUP CREATECONSUMER {_STREAM} g cid",
    f"XGROUP DELCONSUMER {_STREAM} g cid",
    f"XDEL {_STREAM} #3 9-9",
    "XACK nowhere g 1-1",
    "XDEL nowhere 1-1",
    f"XADD {_STREAM} *",
    f"XADD {_STREAM} * n",
    "XADD",
    f"XRANGE {_STREAM} x y",
    f"XREADGROUP GROUP g ann STREAMS {_STREAM}",
    f"XGROUP DESTROY {_STREAM} g",
]

#: Fields whose values follow from what a Redis keeps of entries that are acknowledged, or from time.
_OTHER = (
    b"lag",
    b"entries-read",
    b"idle",
    b"inactive",
    b"radix-tree-keys",
    b"radix-tree-nodes",
    b"last-delivered-id",
)


def _shape(reply: Any) -> Any:
    """What kinds of values a reply has; of a list, those of its first item."""
    match reply:
        case list():
            return [_shape(one) for one in reply[:1]]
        case dict():
            return {name: _shape(one) for name, one in reply.items() if name not in _OTHER}
        case bytes() | str():
            return "text"
        case int():
            return "number"
    return reply


#: The replies that differ in their values on purpose, each with why.
_DIFFERENT = {
    "XINFO": "times, and what a Redis keeps of acknowledged entries",
    "XPENDING beside-redis g - +": "times",
    "XPENDING beside-redis g (#0 + 10 ann": "times",
    "XAUTOCLAIM beside-redis g ann 0 #1": "a lease is not taken from another consumer, so nothing comes behind",
    "XACK beside-redis other": "the group of XACK is not looked up: a queue has one",
}
_ERRORS = ("ERR", "INVALID_REQUEST")


@pytest.mark.parametrize("protocol", [2, 3])
def test_replies_are_those_of_redis(door: RespDoor, tmp_path: Path, protocol: int) -> None:
    with redis_server(tmp_path) as address:
        theirs = _Program(address, protocol).run()
    ours = _Program(door.address, protocol).run()
    _forget(door)
    for (line, expected), (_, got) in zip(theirs, ours, strict=True):
        if isinstance(expected, str) and expected == "ERR":
            assert got in _ERRORS, line
        elif any(line.startswith(command) for command in _DIFFERENT):
            assert _shape(got) == _shape(expected), line
        else:
            assert got == expected, line


def _forget(door: RespDoor) -> None:
    wire = Wire(door.address)
    wire.ask("FL.DELETE_QUEUE", _STREAM)
    wire.close()
