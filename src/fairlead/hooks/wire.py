"""The frames between the broker and the hook host: a length (4 bytes, big-endian), then one msgpack value.

Both sides import this file, and what the host process sees of fairlead is this, `calls` and `confine`: keep
it small.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from fairlead.hooks.calls import HookFunction, OnFailureCall
from fairlead.hooks.confine import Confinement, Mode

#: Of a frame from the host: more than a flush of its longest rows.
MAX_FRAME_BYTES = 16 * 1024 * 1024

# The first value of a row, as sandbox.lua returns it. ASK never leaves the host as a row.
OK, ERROR, TIME, MEMORY, NEEDS_CONFIG = range(5)


class HostSetup(msgspec.Struct, tag="setup", array_like=True):
    timeout_ms: int
    memory_bytes: int
    turn_ms: int
    #: The host ends itself after this much CPU time in one turn, should nobody be left to kill it.
    last_resort_ms: int
    address_space_bytes: int
    confinement: Mode = "best"


class LoadScript(msgspec.Struct, tag="load", array_like=True):
    """Keep `script` under `key`, in a state of its own; `drop` are keys whose states may go."""

    key: int
    function: HookFunction
    script: str
    drop: tuple[int, ...]


class CheckScript(msgspec.Struct, tag="check", array_like=True):
    function: HookFunction
    script: str


class _Run(msgspec.Struct, array_like=True):
    """One turn. `failures_left` is how many failures in a row the breaker still allows, `threshold` its full
    count.
    """

    key: int
    queue: str
    config_version: int
    failures_left: int
    threshold: int


class RunEnqueue(_Run, tag="enqueue", array_like=True):
    """Calls by column. Headers are packed as they are stored: a map in MessagePack, empty where there are none."""

    headers: list[bytes]
    payload_sizes: list[int]

    @property
    def count(self) -> int:
        return len(self.headers)


class RunFailure(_Run, tag="failure", array_like=True):
    calls: list[OnFailureCall]

    @property
    def count(self) -> int:
        return len(self.calls)


class ConfigValue(msgspec.Struct, tag="answer", array_like=True):
    value: str | None


class HostReady(msgspec.Struct, tag="ready", array_like=True):
    """First frame of a host. `problem` is what kept it from starting, empty if it did."""

    problem: str
    held: Confinement = Confinement()


class ResultRows(msgspec.Struct, tag="rows", array_like=True):
    """Results of the next calls of the turn, in order. A row is what the sandbox returned; nothing about it
    is certain.
    """

    rows: list[list[Any]]


class ConfigRequest(msgspec.Struct, tag="ask", array_like=True):
    key: str


class TurnDone(msgspec.Struct, tag="done", array_like=True):
    """The turn is over: all calls made, or its time is up, or the breaker would have opened."""


class ScriptChecked(msgspec.Struct, tag="checked", array_like=True):
    status: int
    detail: str


ToHost = HostSetup | LoadScript | CheckScript | RunEnqueue | RunFailure | ConfigValue
FromHost = HostReady | ResultRows | ConfigRequest | TurnDone | ScriptChecked

_ENCODER = msgspec.msgpack.Encoder()


def frame(message: ToHost | FromHost) -> bytes:
    body = _ENCODER.encode(message)
    return len(body).to_bytes(4, "big") + body


def read_exactly(fd: int, size: int) -> bytes:
    """Blocking. Raises EOFError when the other side is gone."""
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
