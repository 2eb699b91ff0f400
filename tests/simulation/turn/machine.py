"""What the door runs on: a loop, a pool and a thread that syncs, each of which takes a step when it is told to."""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlead import Broker
from fairlead.errors import FairleadError
from fairlead.middleware.stack import Layers
from fairlead.server.limits import Limits
from fairlead.server.resp.door import RespDoor
from fairlead.testing import ManualClock
from fairlead.testing.engine import abandon, engine_of
from fairlead.testing.faulty import FaultyStore


class Timer:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """As much of asyncio's as the door uses."""

    def __init__(self, clock: ManualClock, pool: Pool) -> None:
        self._clock = clock
        self._pool = pool
        self._ready: deque[Callable[[], object]] = deque()
        self._timers: list[tuple[float, int, Timer, Callable[[], object]]] = []
        self._count = 0

    def time(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def call_soon(self, call: Callable[..., object], *given: Any) -> None:
        self._ready.append(partial(call, *given))

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, call: Callable[..., object], *given: Any) -> Timer:
        timer, self._count = Timer(), self._count + 1
        heapq.heappush(self._timers, (self.time() + delay_s, self._count, timer, partial(call, *given)))
        return timer

    def run_in_executor(self, pool: object, call: Callable[..., Any], *given: Any) -> Job:
        return self._pool.submit(call, *given)

    @property
    def has_work(self) -> bool:
        self._take_due()
        return bool(self._ready)

    def run(self) -> None:
        """What is ready now, as one round of a loop."""
        self._take_due()
        for _ in range(len(self._ready)):
            self._ready.popleft()()

    def _take_due(self) -> None:
        while self._timers and self._timers[0][0] <= self.time():
            _, _, timer, call = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                self._ready.append(call)


class Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self.callbacks: list[Callable[[Job], object]] = []

    def add_done_callback(self, callback: Callable[[Job], object]) -> None:
        self.callbacks.append(callback)

    def result(self) -> Any:
        return self._result

    def run(self) -> None:
        self._result = self._call()


class Pool:
    """A job runs at any time after it was submitted, and before or behind others."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, call: Callable[..., Any], *given: Any) -> Job:
        job = Job(partial(call, *given))
        self.jobs.append(job)
        return job


class SyncThread:
    """`sync` and `tell` are two steps: a crash may come between them."""

    def __init__(
        self, confirm: Callable[[int], None], tell: Callable[[int, FairleadError | None], None]
    ) -> None:
        self._confirm = confirm
        self._tell = tell
        self._asked: deque[int] = deque()
        self._done: deque[tuple[int, FairleadError | None]] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._asked or self._done)

    def ask(self, commit: int) -> None:
        self._asked.append(commit)

    def step(self) -> None:
        if self._done:
            self._tell(*self._done.popleft())
            return
        commit, failed = self._asked.popleft(), None
        try:
            self._confirm(commit)
        except FairleadError as error:
            failed = error
        self._done.append((commit, failed))


class _OwnThread:
    """In place of the event loop: whoever wakes a claim is in the loop's thread, or in another."""

    def __init__(self, loop: Loop, *, is_this: bool) -> None:
        self.loop = loop
        self.thread_id = threading.get_ident() if is_this else -1


class Server:
    """A life of the process, from its start to its death."""

    def __init__(
        self, store: FaultyStore, clock: ManualClock, rng: random.Random, *, asks_for_keys: bool = False
    ) -> None:
        self.store = store
        self.broker = Broker(store, clock=clock, rng=random.Random(rng.random()))
        limits = Limits()
        layers = Layers(self.broker, limits=limits, keys=asks_for_keys)
        self.door = RespDoor(self.broker, "127.0.0.1:0", limits, layers=layers, asks_for_keys=asks_for_keys)
        self.pool = Pool()
        self.loop = Loop(clock, self.pool)
        self.syncs = SyncThread(engine_of(self.broker).confirm, self.door._tell_synced)
        stand_ins: dict[str, Any] = {
            "_loop": self.loop,
            "_pool": self.pool,
            "_syncs": self.syncs,
            "_event_loop": _OwnThread(self.loop, is_this=rng.random() < 0.5),
            "_all_gone": asyncio.Event(),
        }
        for name, stand_in in stand_ins.items():
            setattr(self.door, name, stand_in)
        self._rng = rng

    def run_job(self) -> None:
        job = self.pool.jobs.pop(self._rng.randrange(len(self.pool.jobs)))
        job.run()
        for callback in job.callbacks:
            self.loop.call_soon(callback, job)

    @property
    def has_work(self) -> bool:
        return self.loop.has_work or bool(self.pool.jobs) or self.syncs.has_work

    def run_all(self) -> None:
        """Until everything that has begun is over, or waits for messages."""
        for _ in range(10_000):
            if not self.has_work:
                return
            self.loop.run()
            if self.pool.jobs:
                self.run_job()
            if self.syncs.has_work:
                self.syncs.step()
        raise AssertionError("the server comes to no rest")

    def die(self) -> None:
        abandon(self.broker)
        self.door._pool = self.pool  # type: ignore[assignment]
