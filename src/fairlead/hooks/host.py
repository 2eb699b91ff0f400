"""The program of the process that runs hook scripts. It reads turns from stdin and writes rows to stdout.

The host keeps one Lua state per script and knows nothing of breakers or defaults: it makes calls in order and
returns their results. Before each call it writes the call's number to memory shared with the broker, so that
the broker knows which call was running when it kills the host. Once ready, the host confines itself
(`confine.py`). A crash of it loses nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from fairlead.hooks.calls import OnFailureCall
from fairlead.hooks.confine import confine
from fairlead.hooks.wire import (
    ERROR,
    MEMORY,
    NEEDS_CONFIG,
    OK,
    CheckScript,
    ConfigLookup,
    ConfigValue,
    HostReady,
    HostSetup,
    LoadScript,
    ResultRows,
    RunEnqueue,
    RunFailure,
    ScriptChecked,
    ToHost,
    TurnDone,
    frame,
)
from fairlead.processes.lifetime import die_with_parent
from fairlead.processes.pipes import read_frame, write_all

_STDIN, _STDOUT = 0, 1
_INSTRUCTIONS_PER_MS = 10_000
_INSTRUCTIONS_PER_TICK = 1_000
_FLUSH_ROWS = 125
_FLUSH_SECONDS = 0.02
_MAX_ASKED_PER_CALL = 100
_MAX_CONFIG_VALUES = 1_000

Row = tuple[Any, ...]


class State:
    """One script in its own Lua state. A call returns a row, `(status, ...)`, and raises only what Lua itself
    raises.
    """

    def __init__(self, lua: Any, sandbox: str, script: LoadScript | CheckScript, setup: HostSetup) -> None:
        self._runtime = lua.LuaRuntime(
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=False,
            attribute_filter=_refuse,
            max_memory=0,
            encoding="utf-8",
        )
        ticks = -(-setup.timeout_ms * _INSTRUCTIONS_PER_MS // _INSTRUCTIONS_PER_TICK)
        prepare = self._runtime.execute(sandbox)
        self._runtime.set_max_memory(
            self._runtime.get_memory_used() + len(script.script) * 4 + setup.memory_bytes
        )
        compile_, self._probe, self._call, self._answer, self._forget = prepare(
            script.function, script.script, ticks, setup.timeout_ms / 1000
        )
        self._broken: Row = _as_row(compile_())
        self._max_bytes = self._runtime.get_memory_used() + setup.memory_bytes
        self._runtime.set_max_memory(self._max_bytes)
        self._config_version = 0
        self._config_bytes = 0
        self._config_values = 0

    def probe(self) -> Row:
        return self._broken if self._broken[0] != OK else self._run(self._probe, [])

    def call(self, arguments: list[Any]) -> Row:
        if self._broken[0] != OK:
            return self._broken
        row: Row = self._call(*arguments)
        return row if row[0] != NEEDS_CONFIG else self._run(self._call, arguments, row)

    def at_config(self, version: int) -> None:
        if version != self._config_version:
            self._config_version = version
            self._forget_all()

    def _run(self, function: Callable[..., Any], arguments: list[Any], row: Any = None) -> Row:
        """Repeat the call with each configuration value that it asks for. This is sound because calls share
        nothing.
        """
        if self._config_values > _MAX_CONFIG_VALUES:
            self._forget_all()
        for _ in range(_MAX_ASKED_PER_CALL):
            answered = _as_row(function(*arguments) if row is None else row)
            if answered[0] != NEEDS_CONFIG:
                return answered
            self._learn(answered[1])
            row = None
        return ERROR, f"asked for more than {_MAX_ASKED_PER_CALL} new configuration keys in one call"

    def _forget_all(self) -> None:
        self._config_values = self._config_bytes = 0
        self._forget()
        self._runtime.set_max_memory(self._max_bytes)

    def _learn(self, key: str) -> None:
        _write(ConfigLookup(key))
        answer = _read()
        assert isinstance(answer, ConfigValue)
        # The memory of a configuration value is not the script's, so the script's limit grows by as much.
        self._config_values += 1
        self._config_bytes += 200 + len(key) * 4 + len(answer.value or "") * 4
        self._runtime.set_max_memory(self._max_bytes + self._config_bytes)
        self._answer(key, answer.value)


class Host:
    def __init__(self, lua: Any, sandbox: str, setup: HostSetup, mark: memoryview) -> None:
        self._lua = lua
        self._sandbox = sandbox
        self._setup = setup
        self._mark = mark
        self._scripts: dict[int, LoadScript] = {}
        self._states: dict[int, State] = {}

    def serve(self) -> None:
        while True:
            match _read():
                case LoadScript() as load:
                    for key in load.drop:
                        self._scripts.pop(key, None)
                        self._states.pop(key, None)
                    self._scripts[load.key] = load
                case RunEnqueue() as run:
                    self._turn(run, _enqueue_arguments(run))
                case RunFailure() as run:
                    self._turn(run, _failure_arguments(run.queue, run.calls))
                case CheckScript() as check:
                    self._check(check)
                case unexpected:
                    raise AssertionError(unexpected)

    def _turn(self, run: RunEnqueue | RunFailure, calls: Iterable[list[Any]]) -> None:
        self._set_last_resort(self._setup.last_resort_ms)
        mark, clock = self._mark, time.monotonic
        started = flushed = clock()
        end = started + self._setup.turn_ms / 1000
        failures_left = run.failures_left
        rows: list[Any] = []
        state: State | None = None
        for number, arguments in enumerate(calls):
            mark[0] = number
            try:
                state = state or self._state(run)
                row = state.call(arguments)
            except (self._lua.LuaError, UnicodeError) as e:
                row = self._error_row(e)
            rows.append(row)
            if row[0] == OK:
                failures_left = run.threshold
            else:
                failures_left -= 1
                if row[0] == MEMORY:
                    # A state that ran out of memory is not trusted; the next call makes a new one.
                    self._states.pop(run.key, None)
                    state = None
            now = clock()
            if len(rows) >= _FLUSH_ROWS or now - flushed > _FLUSH_SECONDS:
                _write(ResultRows(rows))
                rows, flushed = [], now
            if now > end or failures_left <= 0:
                break
        write_all(_STDOUT, frame(ResultRows(rows)) + frame(TurnDone()))
        self._set_last_resort(0)

    def _state(self, run: RunEnqueue | RunFailure) -> State:
        state = self._states.get(run.key)
        if state is None:
            state = self._states[run.key] = State(
                self._lua, self._sandbox, self._scripts[run.key], self._setup
            )
        state.at_config(run.config_version)
        return state

    def _error_row(self, error: Exception) -> Row:
        return (MEMORY, "") if isinstance(error, self._lua.LuaMemoryError) else (ERROR, str(error)[:500])

    def _check(self, check: CheckScript) -> None:
        self._set_last_resort(self._setup.last_resort_ms)
        try:
            row = State(self._lua, self._sandbox, check, self._setup).probe()
        except (self._lua.LuaError, UnicodeError) as e:
            row = self._error_row(e)
        _write(ScriptChecked(row[0], str(row[1]) if len(row) > 1 and row[1] is not None else ""))
        self._set_last_resort(0)

    def _set_last_resort(self, ms: int) -> None:
        signal.setitimer(signal.ITIMER_PROF, ms / 1000)


def main() -> None:
    parent, mark_fd = int(sys.argv[1]), int(sys.argv[2])
    try:
        _die_with(parent)
        lua = importlib.import_module("lupa.lua54")
        sandbox = (Path(__file__).parent / "sandbox.lua").read_text(encoding="utf-8")
        mark = memoryview(mmap.mmap(mark_fd, mmap.PAGESIZE)).cast("q")
        os.close(mark_fd)
        setup = _read()
        assert isinstance(setup, HostSetup)
        host = Host(lua, sandbox, setup, mark)
        # Import and open everything that the first call needs before the confinement.
        State(lua, sandbox, CheckScript("on_enqueue", "function on_enqueue() return {} end"), setup).probe()
        gc.freeze()
        gc.disable()
        confinement = confine(setup.confinement, setup.address_space_bytes)
    except EOFError:
        return
    except Exception as e:
        _write(HostReady(f"{type(e).__name__}: {e}"))
        return
    # End of file: the broker has closed its side. Broken pipe: the broker is gone.
    with contextlib.suppress(EOFError, BrokenPipeError):
        _write(HostReady("", confinement))
        host.serve()


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    die_with_parent()
    if os.getppid() != parent:
        raise EOFError


def _enqueue_arguments(run: RunEnqueue) -> Iterable[list[Any]]:
    queue = run.queue
    for packed, payload_size in zip(run.headers, run.payload_sizes, strict=True):
        arguments: list[Any] = [queue, payload_size]
        if packed:
            for pair in _decode_headers(packed).items():
                arguments += pair
        yield arguments


def _failure_arguments(queue: str, calls: list[OnFailureCall]) -> Iterable[list[Any]]:
    for call in calls:
        # Lua's integers are signed: bit 63 becomes the sign, where Lua's bit operations still see it.
        progress = call.progress if call.progress < 1 << 63 else call.progress - (1 << 64)
        arguments: list[Any] = [queue, call.id, call.attempts, call.error, call.reason, progress]
        for pair in call.headers.items():
            arguments += pair
        yield arguments


def _as_row(answer: Any) -> Row:
    """Lua returns a single value as it is, several as a tuple."""
    return answer if type(answer) is tuple else (answer,)


def _refuse(owner: object, name: str, setting: bool) -> str:
    raise AttributeError(name)


_DECODER = msgspec.msgpack.Decoder(ToHost)
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode


def _read() -> ToHost:
    message: ToHost = _DECODER.decode(read_frame(_STDIN))
    return message


def _write(message: HostReady | ResultRows | ConfigLookup | TurnDone | ScriptChecked) -> None:
    write_all(_STDOUT, frame(message))
