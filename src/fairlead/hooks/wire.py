"""The messages between the broker and the hook host: frames on a pipe, each one MessagePack value.

The host process imports this module, so it imports little itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.hooks.calls import HookFunction, OnFailureCall
from fairlead.hooks.confine import Confinement, Mode
from fairlead.processes.pipes import pack_frame

#: The longest frame accepted from the host: longer than a flush of the longest rows.
MAX_FRAME_BYTES = 16 * 1024 * 1024

# The status of a row, its first value, as sandbox.lua returns it. NEEDS_CONFIG stays inside the host.
OK, ERROR, TIME, MEMORY, NEEDS_CONFIG = range(5)


class HostSetup(msgspec.Struct, tag="setup", array_like=True):
    timeout_ms: int
    memory_bytes: int
    turn_ms: int
    #: The host ends itself after this much CPU time in one turn, in case no broker is left to kill it.
    last_resort_ms: int
    address_space_bytes: int
    confinement: Mode = "best"


class LoadScript(msgspec.Struct, tag="load", array_like=True):
    """Keep `script` under `key`, in a Lua state of its own, and discard the states of the keys in `drop`."""

    key: int
    function: HookFunction
    script: str
    drop: tuple[int, ...]


class CheckScript(msgspec.Struct, tag="check", array_like=True):
    function: HookFunction
    script: str


class _Run(msgspec.Struct, array_like=True):
    """One turn. `failures_left`: how many more failures in a row the breaker allows; `threshold`: after a
    success.
    """

    key: int
    queue: str
    config_version: int
    failures_left: int
    threshold: int


class RunEnqueue(_Run, tag="enqueue", array_like=True):
    """Calls by column. Headers are packed as stored: a map in MessagePack, or empty."""

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
    """The first frame of a host. `problem`: why it could not start, or ""."""

    problem: str
    held: Confinement = Confinement()


class ResultRows(msgspec.Struct, tag="rows", array_like=True):
    """Results of the next calls of the turn, in order: what the sandbox returned, unchecked."""

    rows: list[list[Any]]


class ConfigLookup(msgspec.Struct, tag="ask", array_like=True):
    key: str


class TurnDone(msgspec.Struct, tag="done", array_like=True):
    """The turn is over: all calls are made, or its time is up, or the breaker opens."""


class ScriptChecked(msgspec.Struct, tag="checked", array_like=True):
    status: int
    detail: str


ToHost = HostSetup | LoadScript | CheckScript | RunEnqueue | RunFailure | ConfigValue
FromHost = HostReady | ResultRows | ConfigLookup | TurnDone | ScriptChecked

_ENCODER = msgspec.msgpack.Encoder()


def frame(message: ToHost | FromHost) -> bytes:
    return pack_frame(_ENCODER.encode(message))
