"""One run on the engine of the `fairlead` that is imported, and its transcript."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from fairlead import Complete
from fairlead.errors import FairleadError
from fairlead.request import LOCAL, Caller, Request
from fairlead.testing import ManualClock, Storage
from fairlead.testing.engine import engine_of, replace_hooks, run_due
from fairlead.testing.sizes import sized
from fairlead.verbs.browse import Browse
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigList
from fairlead.verbs.consumers import ConsumersList
from fairlead.verbs.dead_letters import Intents, Redrive
from fairlead.verbs.inspect import GetFailureMetrics, Stats
from fairlead.verbs.queues import ListQueues, Resume
from fairlead.verbs.settle import Goodbye, Settle
from fairlead.verbs.staging import StagingList
from tests.conformance.engines.running import QUEUES, Called, Run, Side, for_side
from tests.conformance.engines.stand_in_hooks import StandInHooks
from tests.differential.lend import is_first_engine
from tests.differential.plain import Refusal, plain
from tests.differential.transcript import Happened, Reopened

#: A request, perhaps with its caller, for a side to make; or milliseconds that pass.
Step = Request[Any] | Callable[[Side], Request[Any] | Called] | int

STEPS = 120
#: One run in so many is on disk on today's engine. On disk, the first engine drains a queue in another order.
ON_DISK_EVERY = 25
#: Compared after each reopening.
VIEWS = (
    ListQueues(),
    Intents(),
    ConsumersList(),
    ConfigList(),
    StagingList(),
    *[Stats(queue) for queue in QUEUES],
    *[GetFailureMetrics(queue) for queue in QUEUES],
    *[Browse(queue, view, limit=1000) for queue in QUEUES for view in ("messages", "dead")],
)
#: How many messages a step or page of today's engine has; a tiny one has 2 to 7.
STEP_SIZES = (
    "operation_step_messages",
    "scan_page_messages",
    "claim_piece_messages",
    "close_step_outcomes",
    "release_step_messages",
    "read_page_messages",
    "publish_step_messages",
    "staged_part_messages",
    "browse_step_messages",
)


class WiderRun(Run):
    """Draws more options than the recorded runs, and reports mostly outcomes of the latest deliveries."""

    def __init__(self, seed: int) -> None:
        in_streams = seed % 5 == 4
        super().__init__(seed, has_scripts=True, forgets=True, keeps=True, in_streams=in_streams)
        self._draws = self._draws | self._random.choice(({}, {"claim": 9, "settle": 12, "pass": 3}))
        self._delivered = 0
        self._reported = set[int]()

    def next_step(self, delivered: int) -> Step:
        self._delivered = delivered
        return super().next_step(delivered)

    def _item(self, at: int) -> Callable[[Side], Any]:
        latest = range(max(0, self._delivered - 20), self._delivered)
        if (fresh := [one for one in latest if one not in self._reported]) and self._random.random() < 0.7:
            at = self._random.choice(fresh)
        self._reported.add(at)
        return super()._item(at)

    def _options(self) -> dict[str, Any]:
        drawn, random = super()._options(), self._random
        late = {"timeout_exceeded": {"policy": "fixed", "cooldown": "2s"}}
        drawn["max_bytes"] = random.choice((0, 0, 30_000))
        drawn["retry_on"] = random.choice(({}, {}, {"dependency_failure": "none"}, late))
        return drawn


class SideWithoutSessions(Side):
    """Sends numbered requests without their numbers: only today's engine has sessions."""

    def place(self, number: int, arrived: int) -> Caller:
        return LOCAL


class Hooks(StandInHooks):
    #: The first engine asks for it.
    config_size = 0, 0


class Player:
    """One run on one engine."""

    def __init__(self, seed: int, path: Path | None, after_step: Callable[[Any], None]) -> None:
        self._run = WiderRun(seed)
        self._random = Random(f"reopenings of {seed}")
        self._reopens = self._random.choice((0.0, 0.01, 0.03))
        self._after_step = after_step
        self._was_reopened = self._is_over = False
        self._clock = ManualClock()
        self._storage = Storage(path)
        self._side = SideWithoutSessions(self._open(), self._clock)

    def _open(self) -> Callable[..., Any]:
        self._broker = self._storage.open_broker(clock=self._clock)
        replace_hooks(self._broker, Hooks())
        # As the timer does at once where time passes by itself.
        run_due(self._broker)
        return self._broker.do

    def play(self) -> Iterator[Happened]:
        for request in self._run.first_steps():
            yield self._carry_out(request)
        for _ in range(STEPS):
            yield from self._take(self._run.next_step(len(self._side.deliveries)))
            self._after_step(engine_of(self._broker))
            if self._random.random() < self._reopens:
                yield from self._reopen()
            if self._is_over:
                break
        yield from self._reopen()
        self._broker.close()

    def _take(self, step: Step) -> Iterator[Happened]:
        if isinstance(step, int):
            self._clock.advance(ms=step)
            yield Happened("pass", answer=step)
            return
        request: Any = for_side(step, self._side)
        if self._was_reopened and _acts_by_filter(request):
            # The first engine keeps no order of leases over a reopening.
            request = replace(request, dry_run=True)
        yield self._carry_out(request)
        if self._was_reopened and isinstance(request, Goodbye):
            # Here too: the keys of the released messages join the ring in another order.
            yield from self._deliver()

    def _carry_out(self, step: Request[Any] | Called) -> Happened:
        request, side = step.request if isinstance(step, Called) else step, self._side
        before = len(side.deliveries)
        answer = side.carry_out(step)
        if isinstance(answer, tuple) and len(answer) == 3 and all(isinstance(one, str) for one in answer):
            answer = Refusal(answer[1])
        delivered = [side.names[one.raw_id] for one in side.deliveries[before:]]
        return Happened(request.verb_name, delivered, plain(answer))

    def _reopen(self) -> Iterator[Happened]:
        self._broker.close()
        self._storage = self._storage.reopen()
        self._side.do = self._open()
        self._was_reopened = True
        yield Happened("reopen")
        for view in VIEWS:
            yield self._carry_out(view)
        yield from self._deliver()

    def _deliver(self) -> Iterator[Happened]:
        """Deliver and complete the ready messages, because the keys take turns in another order on each engine now. The
        run is over if some messages stay ready, such as those behind a message that waits.
        """
        do = self._side.do
        for key in do(ConfigList()):
            do(ConfigDelete(key))
        for queue in QUEUES:
            with suppress(FairleadError):
                yield Happened("deliver all", answer=self._deliver_all(queue))
                self._is_over |= do(Stats(queue)).ready > 0

    def _deliver_all(self, queue: str) -> Reopened:
        do, limit = self._side.do, self._random.choice((1, 3, 30))
        do(Resume(queue))
        (config,) = [info.config for info in do(ListQueues(queue)) if info.name == queue]
        turns = {key.key: key.weight * config.quantum for key in do(Stats(queue)).keys}
        keys, groups = list[str](), defaultdict[tuple[str, str], list[int]](list)
        while found := do(Claim(queue, limit, consumer="after a reopening")):
            for delivery in found:
                name = self._side.names[delivery.raw_id]
                keys.append(delivery.fairness_key)
                groups[delivery.fairness_key, delivery.stream or ""].append(name)
            do(Settle([Complete(delivery) for delivery in found]))
        is_fixed = not config.max_unsettled_per_key and not any(stream for _, stream in groups)
        return Reopened(keys, dict(groups), turns if is_fixed else None)


def _acts_by_filter(request: object) -> bool:
    return getattr(request, "filter", None) is not None and not isinstance(request, Redrive)


def play(seed: int) -> list[Happened]:
    """The seed decides everything about a run, also the store, the sizes of memory and the sizes of steps of today's engine."""
    with directory(seed) as path, sizes(seed) as after_step:
        happened = list[Happened]()
        try:
            happened += Player(seed, path, after_step).play()
        except Exception:
            happened.append(Happened("died", answer=traceback.format_exc()))
        return happened


@contextmanager
def directory(seed: int) -> Iterator[Path | None]:
    if seed % ON_DISK_EVERY or is_first_engine():
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-differential-", dir=_in_memory()) as made:
        yield Path(made) / "data"


def _in_memory() -> Path | None:
    shared_memory = Path("/dev/shm")
    return shared_memory if os.access(shared_memory, os.W_OK) else None


@contextmanager
def sizes(seed: int) -> Iterator[Callable[[Any], None]]:
    """Set the sizes of today's engine, and yield a function to call after each step. The first engine stays as it is."""
    if is_first_engine():
        yield lambda engine: None
        return
    from tests.conformance.engines.memory_sizes import eager_evacuation, evacuate, memory_sizes

    random = Random(f"steps of {seed}")
    tiny = {name: random.randint(2, 7) for name in STEP_SIZES} if random.random() < 0.5 else {}
    with memory_sizes(seed), eager_evacuation(), sized(**tiny):
        yield evacuate if random.random() < 0.5 else lambda engine: None
