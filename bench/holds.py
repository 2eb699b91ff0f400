"""How long each verb, view and timer holds the lock of the engine, and how long an enqueue beside it waits:
`python -m bench.holds [--messages 1000000 --dead 100000 --keys 100000] [--only purge ...]`.

On RocksDB in a fresh directory, durability `os`. *hold* is the longest time between taking the lock and letting go of
it, in CPU time of the thread without Python's garbage collector; *gc* is the longest run of that collector. *wall* is
the hold in wall time, which includes the collector, other threads and other processes. *wait* is the longest time that
an enqueue of one message took in another thread meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter, sleep, thread_time
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.conditions import conditions_here
from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage
from fairlead.engine import engine as engine_module
from fairlead.engine.broker import Broker
from fairlead.engine.evacuation import LOOK_MS
from fairlead.engine.fair_lock import FairLock
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock

#: More than this is a defect.
MAX_HOLD_MS = 10.0
_BATCH = 4000


class Collector:
    """The CPU time that Python's garbage collector took in each thread, and its longest run."""

    def __init__(self) -> None:
        self._spent: dict[int, float] = {}
        self._began = 0.0
        self.longest = 0.0
        gc.callbacks.append(self._run)

    def _run(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = thread_time()
            return
        took = thread_time() - self._began
        self._spent[threading.get_ident()] = self.spent() + took
        self.longest = max(self.longest, took)

    def spent(self) -> float:
        return self._spent.get(threading.get_ident(), 0.0)


class MeasuredLock(FairLock):
    """Notes its longest hold by each thread."""

    def __init__(self) -> None:
        super().__init__()
        # The lock's own methods, which do not measure.
        self.__dict__.clear()
        self._depth = 0
        self._began = self._began_cpu = 0.0
        self.collector = Collector()
        self.holds: dict[int, tuple[float, float]] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        has_it = super().acquire(blocking, timeout)
        if has_it:
            self._taken()
        return has_it

    def acquire_now(self, blocking: bool = True) -> bool:
        return self.acquire(blocking)

    def __enter__(self) -> None:
        super().__enter__()
        self._taken()

    def _taken(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._began, self._began_cpu = perf_counter(), thread_time() - self.collector.spent()

    def _left(self) -> None:
        self._depth -= 1
        assert self._depth >= 0, "expected to notice each way to take the lock"
        if self._depth == 0:
            self._note()

    def _note(self) -> None:
        cpu = thread_time() - self.collector.spent() - self._began_cpu
        wall = perf_counter() - self._began
        before = self.holds.get(threading.get_ident(), (0.0, 0.0))
        self.holds[threading.get_ident()] = max(cpu, before[0]), max(wall, before[1])

    def release(self) -> None:
        self._left()
        self._lock.release()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _release_save(self) -> Any:
        self._note()
        depth, self._depth = self._depth, 0
        return depth, self._lock._release_save()

    def _acquire_restore(self, state: Any) -> None:
        super()._acquire_restore(state[1])
        self._depth = 0
        self._taken()
        self._depth = state[0]


class Measured(NamedTuple):
    name: str
    hold_ms: float
    gc_ms: float
    wall_ms: float
    wait_ms: float
    took_ms: float


class Scene:
    """A broker with the messages, dead letters and keys of the options, and the figures so far."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.options = options
        self.clock = ManualClock()
        self.broker = Broker(RocksKeyValueStore.open(path), clock=self.clock, durability="os")
        self.measured: list[Measured] = []
        self.broker.create_queue("side")
        lock = self.broker.engine.lock
        assert isinstance(lock, MeasuredLock)
        self.lock = lock

    def fill(self, queue: str, count: int, keys: int = 1, **fields: Any) -> None:
        for start in range(0, count, _BATCH):
            some = range(start, min(count, start + _BATCH))
            messages = [NewMessage(b"x" * 100, fairness_key=f"k{n % keys}", **fields) for n in some]
            self.broker.enqueue_many(queue, messages)

    def measure(self, name: str, work: Callable[[], object]) -> None:
        if self.options.only and not any(part in name for part in self.options.only):
            # Later cases need its effect.
            work()
            return
        gc.collect()
        if self.options.freeze:
            gc.freeze()
        with self.enqueues() as waits:
            self.lock.holds.clear()
            self.lock.collector.longest = 0.0
            began = perf_counter()
            work()
            took = perf_counter() - began
            # Before the queue of the enqueues is emptied, in this thread too.
            cpu, wall = self.lock.holds.get(threading.get_ident(), (0.0, 0.0))
            collected = self.lock.collector.longest
        figures = (cpu, collected, wall, max(waits, default=0.0), took)
        self.measured.append(Measured(name, *[1000 * seconds for seconds in figures]))

    @contextmanager
    def enqueues(self) -> Iterator[list[float]]:
        """An enqueue after the other in another thread, and how long each took."""
        waits: list[float] = []
        is_over = threading.Event()

        def run() -> None:
            while not is_over.is_set():
                began = perf_counter()
                self.broker.enqueue("side", b"x")
                waits.append(perf_counter() - began)
                sleep(0.001)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield waits
        finally:
            is_over.set()
            thread.join()
            self.broker.purge("side")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.holds", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--dead", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument(
        "--freeze",
        action="store_true",
        help="freeze the objects of each scene: the collector passes them over",
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names contain one of these")
    options = parser.parse_args()
    engine_module.FairLock = MeasuredLock  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as directory:
        scene = Scene(Path(directory, "data"), options)
        for run in (run_views, run_verbs, run_operators, run_claims, run_timers, run_ends):
            run(scene)
        scene.broker.close()
    show(scene)


def show(scene: Scene) -> None:
    options, console = scene.options, Console(width=100)
    title = (
        f"{options.messages:,} messages, {options.dead:,} dead, {options.keys:,} keys; {conditions_here()}"
    )
    table = Table("", "hold ms", "gc ms", "wall ms", "wait ms", "took ms", title=title)
    for one in sorted(scene.measured, key=lambda one: -one.hold_ms):
        style = "red" if one.hold_ms > MAX_HOLD_MS else ""
        table.add_row(one.name, *[f"{value:,.1f}" for value in one[1:]], style=style)
    console.print(table)


def run_views(scene: Scene) -> None:
    broker, options = scene.broker, scene.options
    broker.create_queue("big", retry="immediate")
    scene.fill("big", options.messages, options.keys)
    for start in range(0, options.dead, _BATCH):
        count = min(_BATCH, options.dead - start)
        broker.quarantine("big", [NewMessage(b"x" * 100) for _ in range(count)], error="broken")
    (last,) = islice(broker.browse("big"), 1)
    views: dict[str, Callable[[], object]] = {
        "stats": lambda: broker.stats("big"),
        "stats with keys": lambda: broker.stats("big", keys=True),
        "queues": broker.queues,
        "peek ready": lambda: broker.peek("big", limit=1000),
        "peek ready of a key": lambda: broker.peek("big", limit=1000, key="k7"),
        "peek dead": lambda: broker.peek("big.dlq", limit=1000),
        "browse": lambda: list(islice(broker.browse("big"), 20_000)),
        "browse splits": lambda: broker.browse_splits("big"),
        "explain queue": lambda: broker.explain_queue("big"),
        "explain message": lambda: broker.explain(last.id),
        "find by tail": lambda: broker.find(last.id[-8:], "big"),
        "failure metrics": lambda: broker.failure_metrics("big"),
        "config list": broker.config.list,
        "intents": broker.intents,
        "audit": lambda: list(broker.audit.read(limit=100)),
    }
    for name, view in views.items():
        scene.measure(name, view)


def run_verbs(scene: Scene) -> None:
    broker = scene.broker
    messages = [NewMessage(b"x" * 100, fairness_key=f"k{n}") for n in range(50_000)]
    broker.create_queue("work", visibility_timeout="1h", retry="immediate")
    scene.measure("enqueue 1", lambda: broker.enqueue("work", b"x"))
    scene.measure("enqueue 4,096", lambda: broker.enqueue_many("work", messages[:4096]))
    scene.measure("enqueue 50,000", lambda: broker.enqueue_many("work", messages))
    scene.measure(
        "enqueue 30 of 1 MiB", lambda: broker.enqueue_many("work", [NewMessage(bytes(1 << 20))] * 30)
    )
    broker.purge("work")
    broker.enqueue_many("work", messages)
    broker.create_queue("rows", dedup="1h")
    for name, fields in (("delays", {"delay": "1h"}), ("dedup keys", {"dedup_key": "d"})):
        some = [NewMessage(b"x" * 100, **_numbered(fields, n)) for n in range(4000)]
        scene.measure(f"enqueue 4,000 with {name}", lambda some=some: broker.enqueue_many("rows", some))
    scene.measure("quarantine 4,000", lambda: broker.quarantine("rows", messages[:4000], error="no"))
    held: list[Any] = []
    scene.measure("claim 50,000", lambda: held.extend(broker.claim("work", limit=50_000, consumer="c")))
    scene.measure("extend every second", lambda: broker.settle([Extend(one, "2h") for one in held[::2]]))
    scene.measure("fail 5,000", lambda: broker.settle([Fail(one, "no") for one in held[:5000]]))
    scene.measure("complete 10,000", lambda: broker.settle([Complete(one) for one in held[5000:15_000]]))
    scene.measure("complete 1,000 one by one from the back", lambda: _from_back(broker, held[-1000:]))
    scene.measure("goodbye", lambda: broker.goodbye("c"))
    scene.measure("claim 1 of many keys", lambda: broker.claim("big"))
    scene.measure("set a throttle", lambda: broker.config.set("throttle:t:rate", "5"))
    scene.measure("set a weight", lambda: broker.config.set("weight:big:k1", "5"))
    scene.measure("update queue", lambda: broker.update_queue("big", quantum=3))
    scene.measure("limit per key", lambda: broker.update_queue("big", max_unsettled_per_key=3))
    broker.update_queue("big", max_unsettled_per_key=0)


def _numbered(fields: dict[str, str], number: int) -> dict[str, Any]:
    """Each message has a dedup key of its own."""
    return {name: f"{value}{number}" if name == "dedup_key" else value for name, value in fields.items()}


def _from_back(broker: Broker, held: list[Any]) -> None:
    for one in reversed(held):
        broker.settle([Complete(one)])


def run_operators(scene: Scene) -> None:
    broker = scene.broker
    every = DeadFilter()
    scene.measure("hold by filter", lambda: broker.hold("work", filter=every))
    scene.measure("unhold by filter", lambda: broker.unhold("work", filter=every))
    scene.measure("bury by filter", lambda: broker.bury("work", filter=every))
    scene.measure("retry by filter", lambda: broker.retry("work", filter=every))
    scene.measure("drop by filter", lambda: broker.drop("work", filter=every))
    scene.measure("drain 1,000", lambda: broker.drain("work", limit=1000))
    scene.measure("redrive, dry run", lambda: broker.redrive("big", dry_run=True))


def run_claims(scene: Scene) -> None:
    broker = scene.broker
    broker.create_queue("read", retry="immediate")
    scene.fill("read", 50_000, 100)
    consumers = broker.consumers
    generation = consumers.register("etl", "read").generation
    claim = lambda: consumers.claim("etl", "read", generation, 1, limit=50_000)  # noqa: E731
    scene.measure("numbered claim of 50,000", claim)
    found: list[Any] = []
    scene.measure("read of 50,000", lambda: found.extend(consumers.read("etl", "read", generation, 1)))
    failed = [Fail(one, "no") for one in found[:5000]]
    scene.measure("record 5,000", lambda: consumers.record("etl", "read", generation, 1, failed))
    scene.measure("close", lambda: consumers.close("etl", "read", generation, 1))
    messages = [NewMessage(b"x" * 100, fairness_key=f"k{n % 100}") for n in range(50_000)]
    scene.measure("stage 50,000", lambda: broker.staging.stage("w", "a", "read", messages))
    scene.measure("publish 50,000", lambda: broker.staging.publish("w", "read", ["a"]))


def run_timers(scene: Scene) -> None:
    broker, clock, count = scene.broker, scene.clock, scene.options.dead
    broker.create_queue("leased", visibility_timeout="10s", retry="immediate")
    scene.fill("leased", count, 100)
    while broker.claim("leased", limit=1000):
        pass
    scene.measure(f"expiry of {count:,} leases", lambda: clock.advance(ms=10_000))
    broker.create_queue("due")
    scene.fill("due", count, 100, delay="10s")
    scene.measure(f"{count:,} waits end", lambda: clock.advance(ms=10_000))
    broker.create_queue("lives", ttl="10s")
    scene.fill("lives", count, 100)
    scene.measure(f"{count:,} lives end", lambda: clock.advance(ms=10_000))
    broker.create_queue("keyed", dedup="10s")
    for start in range(0, count, _BATCH):
        some = range(start, min(count, start + _BATCH))
        broker.enqueue_many("keyed", [NewMessage(b"x", dedup_key=f"d{n}") for n in some])
    scene.measure(f"{count:,} windows end", lambda: clock.advance(ms=10_000))
    broker.create_queue("kept", retain_completed="10s")
    scene.fill("kept", count, 100)
    while held := broker.claim("kept", limit=1000):
        broker.settle([Complete(one) for one in held])
    scene.measure(f"{count:,} kept messages end", lambda: clock.advance(ms=10_000))
    broker.create_queue("sparse")
    for size in (100, 900):
        messages = [
            NewMessage(b"x" * size, {"n": str(n)}, f"k{n % 900}", stream=f"s{n}", ttl=f"{n + 60}s")
            for n in range(4096)
        ]
        ids = broker.enqueue_many("sparse", messages)
        broker.drop("sparse", ids[: len(ids) // 2 + 10])
    scene.measure("evacuation of two chunks", lambda: [clock.advance(ms=LOOK_MS) for _ in range(3)])
    broker.delete_queue("sparse")


def run_ends(scene: Scene) -> None:
    broker, clock = scene.broker, scene.clock
    scene.measure("redrive", lambda: broker.redrive("big", count=max(1, scene.options.dead // 2)))
    broker.update_queue("big", dead_retention="10s")
    scene.measure("dead letters end", lambda: clock.advance(ms=20_000))
    scene.measure("purge", lambda: broker.purge("big"))
    scene.fill("big", scene.options.messages, scene.options.keys)
    scene.measure("delete queue", lambda: broker.delete_queue("big"))


if __name__ == "__main__":
    main()
