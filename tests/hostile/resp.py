"""What strangers send to the door that speaks Redis: bytes of commands, and words of a command."""

from __future__ import annotations

import random
from contextlib import nullcontext
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from fairlead.errors import FairleadError
from fairlead.middleware.stack import AdmittedCaller
from fairlead.request import Request
from fairlead.server.resp.arguments import read_words
from fairlead.server.resp.commands import ONCE, REQUESTS, read_once
from fairlead.server.resp.parser import Command, CommandReader, join_words, size_of
from fairlead.server.resp.streams.commands import COMMANDS, Running
from fairlead.server.resp.streams.session import Shared, StreamsSession
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.wire.packed import decode_request, encode_answer, encode_request
from tests.doors.resp.wire import pack

#: So small that the inputs of a fuzzer reach them.
MAX_BYTES, MAX_ARGUMENTS = 300, 6
#: A checkpoint writes files.
_NOT_CARRIED_OUT = (b"FL.CHECKPOINT",)


def read_bytes(raw: bytes) -> list[Command]:
    """One byte for how the rest is cut into pieces. However it is cut, the commands are the same, and so is whether it
    is refused; what is kept of a command that is not whole has a bound.
    """
    if not raw:
        return []
    cuts, data = random.Random(raw[0]), raw[1:]
    count = 1 + cuts.randrange(8)
    places = sorted([0, len(data), *[cuts.randrange(len(data) + 1) for _ in range(count)]])
    whole, is_refused = _feed([data])
    # Also where an argument stays in its pieces.
    with patch("fairlead.server.resp.parser.LARGE_BYTES", 20) if raw[0] % 2 else nullcontext():
        for pieces in ([data[start:stop] for start, stop in pairwise(places)], _single(data)):
            assert _feed(pieces) == (whole, is_refused), "cut otherwise, it is something else"
    return whole


def _single(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def _feed(pieces: list[bytes]) -> tuple[list[Command], bool]:
    reader = CommandReader(MAX_BYTES, MAX_ARGUMENTS)
    found: list[Command] = []
    for piece in pieces:
        commands = reader.feed(piece)
        for command in commands:
            assert command, "a command without words"
            assert size_of(command) <= MAX_BYTES, "a command that is too large"
        found += map(join_words, commands)
        # The header of an argument, and the end of its line.
        assert reader.buffered <= MAX_BYTES + 32 + len(piece), "more is kept than a command may have"
        assert reader.is_in_a_command or not reader.buffered
    return found, reader.error is not None


def run_commands(caller: AdmittedCaller, raw: bytes) -> None:
    """A command in each line, its words with blanks between them, as a connection carries them out; nothing waits."""
    session = StreamsSession(Shared(caller._broker), caller.caller)
    for line in raw.split(b"\n"):
        try:
            _run_command(caller, session, line.split(b" "))
        except FairleadError:
            continue


def _run_command(caller: AdmittedCaller, session: StreamsSession, words: Command) -> None:
    place: dict[str, Any] = {}
    name = words[0].upper()
    if name == ONCE:
        found, words = read_once(words)
        place, name = found._asdict(), words[0].upper()
    if name in COMMANDS:
        _run_steps(caller, session, name, words)
        return
    kind = REQUESTS.get(name)
    if kind is None or name in _NOT_CARRIED_OUT:
        return
    is_packed = len(words) == 2 and words[1][:1] >= b"\x80"
    request = decode_request(kind, words[1]) if is_packed else read_words(kind, words[1:])
    answer = caller.once(hasty(request), **place) if place else caller.do(hasty(request))
    encode_answer(request, answer, 0)


def _run_steps(caller: AdmittedCaller, session: StreamsSession, name: bytes, words: Command) -> None:
    running = Running(COMMANDS[name], session, words[1:])
    answer: Any = None
    error: FairleadError | None = None
    while not isinstance(request := running.advance(answer, error), bytes):
        answer = error = None
        try:
            answer = caller.do(hasty(request))
        except FairleadError as refused:
            error = refused


def hasty(request: Request[Any]) -> Request[Any]:
    fields: dict[str, Any] = {"wait": None}
    return replace(request, **fields) if hasattr(request, "wait") else request


_WORDS = b"""\
FL.SETTLE COMPLETE 01890f4e-7c1a-7002-8000-3a5c0d2b9e11 1 FAIL 01890f4e-7c1a-7002-8000-3a5c0d2b9e11 1 ERROR e RETRY_IN 1s
FL.ENQUEUE_MANY q MESSAGE 1 KEY a MESSAGE 2 DELAY 1h
FL.ENQUEUE q p HEADER a b THROTTLE t WEIGHT 2 STREAM s
FL.HOLD q ID x ID y FILTER {"error":"x"}
FL.CREATE_QUEUE r VISIBILITY_TIMEOUT 30s RETRY {"policy":"immediate"}
XADD s MAXLEN ~ 1000 * n 1
XREADGROUP GROUP g c COUNT 2 STREAMS s >
XGROUP CREATE s g 0 MKSTREAM
XAUTOCLAIM s g c 0 0-0 COUNT 5 JUSTID
XCLAIM s g c 0 1-1 JUSTID
XPENDING s g IDLE 5 - + 10
XRANGE s (1-1 + COUNT 2
XINFO STREAM s FULL"""
WORD_SEEDS = [
    *_WORDS.splitlines(),
    b"FL.OPEN_SESSION s\nFL.ONCE s 1 0 FL.ENQUEUE q x\nFL.ONCE s 1 0 FL.ENQUEUE q x",
    b"XGROUP CREATE q g 0\nXADD q * n 1\nXREADGROUP GROUP g c STREAMS q >\nXINFO GROUPS q",
    *[name + b" q x 1 1" for name in (*REQUESTS, *COMMANDS)],
    b"FL.ENQUEUE " + encode_request(Enqueue("q", b"x")) + b"\nFL.CLAIM " + encode_request(Claim("q")),
]
BYTE_SEEDS = [
    b"\x01" + pack("PING") + b"*2\r\n$4\r\nECHO\r\n$2\r\nab\r\n",
    b"\x02PING\r\nECHO \"a b\\x41\\n\" 'it\\'s'\r\n*0\r\n*-1\r\n",
    b"\x03*1\r\n*1\r\n$4\r\nPING\r\n",
    b"\x04*1\r\n$300\r\n" + b"x" * 300 + b"\r\n",
    b"\x05" + b"x" * 299 + b"\n",
    b"\x06*6\r\n" + b"$0\r\n\r\n" * 6,
]
