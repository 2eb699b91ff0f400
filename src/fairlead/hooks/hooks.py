"""The broker's side of the hooks: scripts in, checked decisions out."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from fairlead.clock import Clock
from fairlead.config import HookSettings
from fairlead.errors import BrokerClosed, HookHostUnavailable, HookInvalid
from fairlead.hooks.breaker import Breaker
from fairlead.hooks.calls import (
    HOOK_FUNCTIONS,
    EnqueueDecision,
    FailureDecision,
    HookFunction,
    OnEnqueueCall,
    OnFailureCall,
    Outcome,
)
from fairlead.hooks.fifo_lock import FifoLock
from fairlead.hooks.process import OUT_OF_TURN, HostDied, HostDoesNotStart, HostProcess, HostStalled
from fairlead.hooks.results import (
    enqueue_defaults,
    failure_defaults,
    find_plain_enqueues,
    is_ok,
    read_enqueue,
    read_failure,
    unreadable,
    what_went_wrong,
)
from fairlead.hooks.supply import HostSupply
from fairlead.hooks.wire import (
    OK,
    TIME,
    CheckScript,
    HostSetup,
    LoadScript,
    ResultRows,
    RunEnqueue,
    RunFailure,
    ScriptChecked,
    TurnDone,
)
from fairlead.model.limits import MAX_SCRIPT_BYTES
from fairlead.model.timings import Timing
from fairlead.model.views import HookStats

#: The most calls of one turn. Between two turns of a batch, others get theirs.
_TURN_CALLS = 500
#: The most Lua states that a host keeps. The least recently used one is discarded, and made again when
#: needed.
_MAX_STATES = 128
#: A call is blamed for two deaths of a host while it ran, or for four before it began.
_MAX_BLAME = 4
_SPARE_BYTES = 512 * 1024 * 1024
_pack = msgspec.msgpack.Encoder().encode
_D = TypeVar("_D", EnqueueDecision, FailureDecision)
_LINE = re.compile(r"on_\w+:(\d+): (.*)", re.DOTALL)


@dataclass(slots=True)
class _Hook:
    """One script of one queue. `key` is its name in hosts; every script gets a new one."""

    key: int
    function: HookFunction
    script: str
    breaker: Breaker
    lock: threading.Lock = field(default_factory=threading.Lock)
    calls: int = 0
    failures: int = 0
    bypassed: int = 0
    last_error: str = ""
    corrected: int = 0
    last_note: str = ""


@dataclass(slots=True)
class _Turn:
    """The result of one turn. `ended` is "done", "died", or why the turn was stopped.

    `blamed`: the call, counted within the turn, that was running when the host stalled or died. `begun`:
    whether the host had begun a call.
    """

    rows: list[list[Any]]
    ended: str = "done"
    blamed: int = 0
    begun: bool = False


class Hooks:
    """Runs the Lua hooks of all queues in a process of their own. Thread-safe.

    Calls never raise for what a script does: a failing call gets the defaults, and is counted by the breaker
    and in `stats`. Batches are sent in turns, in the order they came. A turn ends after about half of
    `kill_after_ms`, so a slow or stuck queue delays another one by one turn or one kill, not by its batch. No
    process is started before the first use.
    """

    def __init__(self, settings: HookSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._hooks: dict[tuple[int, HookFunction], _Hook] = {}
        self._next_key = 1
        self._config: dict[str, str] = {}
        self._config_version = 1
        self._turn_lock = FifoLock()
        self._host: HostProcess | None = None
        self._closed = False
        #: Called with the duration of each batch of calls.
        self.timed: Callable[[Timing], None] | None = None
        setup = HostSetup(
            settings.default_timeout_ms,
            settings.default_memory_limit_bytes,
            max(1, settings.kill_after_ms // 2),
            settings.kill_after_ms * 20,
            _SPARE_BYTES + _MAX_STATES * settings.default_memory_limit_bytes,
            settings.confinement,
        )
        self._supply = HostSupply(setup, settings.kill_after_ms)

    def check(self, script: str, function: HookFunction) -> None:
        """Run the top level of the script once. Raises `HookInvalid` for a script that cannot run.

        `docs/reference/lua.md` lists what a script must be.
        """
        try:
            size = len(script.encode())
        except UnicodeEncodeError:
            raise HookInvalid(function, None, "cannot be written as UTF-8") from None
        if size > MAX_SCRIPT_BYTES:
            raise HookInvalid(function, None, f"has {size} bytes, more than {MAX_SCRIPT_BYTES}")
        for _ in range(_MAX_BLAME):
            with contextlib.suppress(HostDied), self._turn_lock:
                checked = self._check_once(CheckScript(function, script))
                break
        else:
            raise HookInvalid(function, None, "ends the hook host when it is loaded")
        if checked.status == OK:
            return
        what = self._error_of((checked.status, checked.detail))
        if found := _LINE.fullmatch(what):
            raise HookInvalid(function, int(found[1]), found[2])
        raise HookInvalid(function, None, what)

    def set_script(self, queue_id: int, function: HookFunction, script: str | None) -> None:
        """Set or remove a script from the next turn on. A changed script starts with a closed breaker and
        zero counts.
        """
        with self._lock:
            old = self._hooks.get((queue_id, function))
            if script is None:
                self._hooks.pop((queue_id, function), None)
            elif old is None or old.script != script:
                breaker = Breaker(
                    self._settings.circuit_breaker_threshold, self._settings.circuit_breaker_cooldown_ms
                )
                self._hooks[queue_id, function] = _Hook(self._next_key, function, script, breaker)
                self._next_key += 1

    def on_enqueue(
        self, queue_id: int, queue: str, messages: Sequence[OnEnqueueCall]
    ) -> list[EnqueueDecision]:
        headers = [_pack(message.headers) if message.headers else b"" for message in messages]
        sizes = [message.payload_size for message in messages]
        return self.on_enqueue_columns(queue_id, queue, headers, sizes)

    def on_enqueue_columns(
        self, queue_id: int, queue: str, headers: Sequence[bytes], payload_sizes: Sequence[int]
    ) -> list[EnqueueDecision]:
        """`on_enqueue` for messages by column, with their headers packed as stored."""
        hook = self._find(queue_id, "on_enqueue")
        if hook is None:
            return [EnqueueDecision("absent")] * len(headers)

        def run(at: int, to: int) -> RunEnqueue:
            counts = self._allowed(hook)
            some = list(headers[at:to]), list(payload_sizes[at:to])
            return RunEnqueue(hook.key, queue, self._config_version, *counts, *some)

        return self._decide(queue_id, hook, len(headers), run, read_enqueue, enqueue_defaults)

    def on_failure(
        self, queue_id: int, queue: str, failures: Sequence[OnFailureCall]
    ) -> list[FailureDecision]:
        hook = self._find(queue_id, "on_failure")
        if hook is None:
            return [FailureDecision("absent")] * len(failures)

        def run(at: int, to: int) -> RunFailure:
            return RunFailure(
                hook.key, queue, self._config_version, *self._allowed(hook), list(failures[at:to])
            )

        return self._decide(queue_id, hook, len(failures), run, read_failure, failure_defaults)

    def set_config(self, key: str, value: str | None) -> None:
        """Set what `fila.get` and `fairlead.get` return from the next turn on; None removes the key."""
        with self._lock:
            self._config.pop(key, None)
            if value is not None:
                self._config[key] = value
            self._config_version += 1

    def load_config(self, values: dict[str, str]) -> None:
        with self._lock:
            self._config = dict(values)
            self._config_version += 1

    def stats(self, queue_id: int) -> list[HookStats]:
        found = []
        for function in HOOK_FUNCTIONS:
            hook = self._find(queue_id, function)
            if hook is None:
                continue
            with hook.lock:
                open_ms = hook.breaker.open_for_ms(self._clock.monotonic_ms())
                until = self._clock.now_ms() + open_ms if open_ms else None
                found.append(
                    HookStats(
                        function,
                        hook.calls,
                        hook.failures,
                        hook.bypassed,
                        hook.breaker.consecutive,
                        until,
                        hook.last_error,
                        hook.corrected,
                        hook.last_note,
                    )
                )
        return found

    def pids(self) -> list[int]:
        """The current processes: the host at work and its spare."""
        host = self._host
        return [*([host.pid] if host is not None else []), *self._supply.pids()]

    def close(self) -> None:
        """Kill the host and its spare. A batch under way in another thread raises `BrokerClosed`. May be
        repeated.
        """
        self._closed = True
        host = self._host
        if host is not None:
            host.kill()
        self._supply.close()
        with self._turn_lock:
            self._drop_host()

    def _find(self, queue_id: int, function: HookFunction) -> _Hook | None:
        with self._lock:
            return self._hooks.get((queue_id, function))

    def _allowed(self, hook: _Hook) -> tuple[int, int]:
        return max(1, hook.breaker.threshold - hook.breaker.consecutive), hook.breaker.threshold

    def _decide(
        self,
        queue_id: int,
        hook: _Hook,
        count: int,
        run: Callable[[int, int], RunEnqueue | RunFailure],
        read: Callable[[Sequence[Any]], _D],
        defaults: Callable[[Outcome, str], _D],
    ) -> list[_D]:
        if self.timed is None:
            return self._turn_by_turn(hook, count, run, read, defaults)
        began = perf_counter()
        decisions = self._turn_by_turn(hook, count, run, read, defaults)
        outcomes = Counter([decision.outcome for decision in decisions])
        self.timed(
            Timing(
                hook.function,
                perf_counter() - began,
                queue_id,
                outcomes["ran"],
                outcomes["failed"],
                outcomes["bypassed"],
            )
        )
        return decisions

    def _turn_by_turn(
        self,
        hook: _Hook,
        count: int,
        run: Callable[[int, int], RunEnqueue | RunFailure],
        read: Callable[[Sequence[Any]], _D],
        defaults: Callable[[Outcome, str], _D],
    ) -> list[_D]:
        """Run turns until every call has its decision. Results that arrived count, also if the host died
        later.
        """
        decisions: list[_D] = []
        stopped: dict[int, str] = {}
        blame: Counter[int] = Counter()
        while len(decisions) < count:
            at = len(decisions)
            if self._closed:
                raise BrokerClosed
            if self._is_open(hook):
                with hook.lock:
                    hook.bypassed += count - at
                return decisions + [defaults("bypassed", "")] * (count - at)
            if at in stopped:
                with hook.lock:
                    self._count_failure(hook, error := stopped.pop(at), killed=True)
                decisions.append(defaults("failed", error))
                continue
            with self._turn_lock:
                turn = self._run_turn(hook, run(at, min(count, at + _TURN_CALLS, *stopped)))
            decisions += self._decisions_of(hook, turn.rows, read, defaults)
            blamed = at + turn.blamed
            if turn.ended == "died":
                # Somebody else may have killed the host: only a second death in the same call is blamed on
                # the call.
                blame[blamed] += 2 if turn.begun else 1
                if blame[blamed] >= _MAX_BLAME:
                    stopped[blamed] = "stopped: ended the hook host, twice"
            elif turn.ended != "done":
                stopped[blamed] = turn.ended
        return decisions

    def _run_turn(self, hook: _Hook, run: RunEnqueue | RunFailure) -> _Turn:
        turn = _Turn([])
        try:
            host = self._working_host()
        except HostDoesNotStart as e:
            turn.ended = str(e)
            return turn
        try:
            self._load(host, hook)
            self._collect_rows(host, run, turn.rows)
            return turn
        except HostStalled:
            turn.ended = f"stopped: no result within {self._settings.kill_after_ms} ms"
        except HostDied:
            turn.ended = "died"
        del turn.rows[run.count :]
        turn.blamed = len(turn.rows)
        # Read once: a host that sent something unasked is still alive here and may change the number.
        running = host.running_call
        turn.begun = running >= 0
        if turn.blamed < running < run.count:
            # Rows that the host had not sent yet are lost with it; those calls are made again.
            turn.blamed = running
        self._drop_host()
        return turn

    def _collect_rows(self, host: HostProcess, run: RunEnqueue | RunFailure, rows: list[list[Any]]) -> None:
        """Add the rows of the turn as they come. Raises `HostStalled` or `HostDied`."""
        for answer in host.turn(run, self._config):
            if isinstance(answer, ResultRows):
                rows += answer.rows
                is_expected = len(rows) <= run.count
            else:
                is_expected = isinstance(answer, TurnDone) and 0 < len(rows) <= run.count
            if not is_expected:
                raise HostDied(OUT_OF_TURN)
            if isinstance(answer, TurnDone):
                return

    def _check_once(self, check: CheckScript) -> ScriptChecked:
        try:
            host = self._working_host()
        except HostDoesNotStart as e:
            raise HookHostUnavailable(str(e)) from None
        try:
            for answer in host.turn(check, self._config):
                if isinstance(answer, ScriptChecked):
                    return answer
                raise HostDied(OUT_OF_TURN)
        except HostStalled:
            self._drop_host()
            return ScriptChecked(TIME, "")
        except HostDied:
            self._drop_host()
            raise
        raise AssertionError("a turn ends only with an answer or an error")

    def _working_host(self) -> HostProcess:
        if self._closed:
            raise BrokerClosed
        if self._host is not None and not self._host.alive:
            self._drop_host()
        if self._host is None:
            self._host = self._supply.take()
        return self._host

    def _drop_host(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def _load(self, host: HostProcess, hook: _Hook) -> None:
        """Make sure that the host has the script, and mark the script as used last."""
        if hook.key in host.loaded:
            del host.loaded[hook.key]
        else:
            drop = tuple(host.loaded)[: max(0, len(host.loaded) + 1 - _MAX_STATES)]
            for key in drop:
                del host.loaded[key]
            host.send(LoadScript(hook.key, hook.function, hook.script, drop))
        host.loaded[hook.key] = None

    def _is_open(self, hook: _Hook) -> bool:
        with hook.lock:
            return hook.breaker.open_for_ms(self._clock.monotonic_ms()) > 0

    def _decisions_of(
        self,
        hook: _Hook,
        rows: list[list[Any]],
        read: Callable[[Sequence[Any]], _D],
        defaults: Callable[[Outcome, str], _D],
    ) -> list[_D]:
        plain: list[Any] | None = find_plain_enqueues(rows) if hook.function == "on_enqueue" else None
        if plain is not None:
            with hook.lock:
                hook.calls += len(plain)
                hook.breaker.succeeded()
            return plain
        decisions = []
        with hook.lock:
            for row in rows:
                try:
                    decision = read(row) if is_ok(row) else defaults("failed", self._error_of(row))
                except (ValueError, TypeError):
                    decision = defaults("failed", unreadable(row))
                if decision.outcome == "failed":
                    self._count_failure(hook, decision.error)
                else:
                    hook.calls += 1
                    hook.breaker.succeeded()
                    if decision.notes:
                        hook.corrected += 1
                        hook.last_note = "; ".join(decision.notes)
                decisions.append(decision)
        return decisions

    def _count_failure(self, hook: _Hook, error: str, *, killed: bool = False) -> None:
        """With the hook's lock held."""
        hook.calls += 1
        hook.failures += 1
        hook.last_error = error
        hook.breaker.failed(self._clock.monotonic_ms(), killed=killed)

    def _error_of(self, row: Sequence[Any]) -> str:
        return what_went_wrong(
            row,
            timeout_ms=self._settings.default_timeout_ms,
            memory_bytes=self._settings.default_memory_limit_bytes,
        )
