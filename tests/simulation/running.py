"""A broker under watch: opened, cut off, opened again, and looked at after every step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead import Broker, Settings
from fairlead.model.delivery import Delivery
from fairlead.model.ids import show_id
from fairlead.testing import CommitStep, ManualClock, Storage, laws
from fairlead.testing.engine import abandon, replace_hooks, seed_jitter
from fairlead.testing.sizes import sized
from tests.simulation.facts_seen import FactsSeen
from tests.simulation.looks import Look
from tests.simulation.picture import DONE, Doing, must
from tests.simulation.random_hooks import RandomHooks
from tests.simulation.traffic import STREAMS
from tests.simulation.witness import Witness


class Running:
    """`say` is told every step, for a replay that is read by people."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        *,
        on_disk: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.say = say
        self.directory = directory
        self.clock = ManualClock()
        self.hooks = RandomHooks(random.Random(seed + 1))
        self.sizes = {
            "let_by": rng.choice([1, 3, 1000]),
            "step": rng.choice([3, 5, 10_000]),
            "page": rng.choice([1, 2, 16]),
        }
        self.settings = Settings(
            read_ahead_rows=rng.choice([200_000, 2, 1]), body_cache_bytes=rng.choice([1 << 20, 0])
        )
        self.witness = Witness(self.clock, self.hooks, self.sizes["let_by"])
        self.store = Storage(directory / "data" if on_disk else None, cache_bytes=1 << 20, forgets=True)
        self.danger = rng.choice([0.0, 0.1, 0.3])
        self.in_streams = rng.choice([0.3, 0.7, 1.0])
        self.streams = STREAMS[: rng.choice([1, 2, 3])]
        self.held: list[Delivery] = []
        self.confirmed: set[bytes] = set()
        self.completed: set[bytes] = set()
        self.tokens: set[tuple[str, str]] = set()
        self.requests: list[tuple[dict[str, Any], Any]] = []
        #: Requests whose answers have arrived, as the caller has said.
        self.acknowledged: list[dict[str, Any]] = []
        #: The session of the caller, its last number, and up to where answers have arrived.
        self.session = ""
        self.number = self.arrived = 0
        self.made = 0
        self.cuts = 0
        self.stored = Look(self)
        self._seen = FactsSeen()
        self.broker = self._open()

    def _survive(self, *, power: bool) -> None:
        """Nothing is closed in good order: the broker is dropped, and another opens what is left."""
        self.cuts += 1
        abandon(self.broker)
        if power and self.store.in_memory:
            self.store.lose_unsynced()
            self.witness.lost_power()
        if self.rng.random() < 0.3:
            self.clock.advance(ms=self.rng.choice([500, 6000, 40_000]))
        self._reopen()

    def _reopen(self) -> None:
        self.store = self.store.reopen()
        self.witness.doing = Doing("open")
        # What is found at open counts as synced: it was read from the disk.
        self.witness.synced()
        self.broker = self._open()

    def _open(self) -> Broker:
        self.store.after_step = lambda step: self.witness.see(self._events_of(step))
        self.store.on_sync = self.witness.synced
        broker = self.store.open_broker(clock=self.clock, settings=self.settings)
        replace_hooks(broker, self.hooks)
        seed_jitter(broker, random.Random(self.rng.random()))
        return broker

    def _events_of(self, step: CommitStep) -> Iterator[Any]:
        return self._seen.events_of(step.facts, self.broker.engine.memory)

    @contextmanager
    def doing(self, verb: str, **fields: Any) -> Iterator[Doing]:
        self.witness.doing = doing = Doing(verb, **fields)
        told = {name: value for name, value in fields.items() if name != "items"}
        self.say(f"   {verb} {told or ''} {[_told(item) for item in fields.get('items', ())] or ''}")
        yield doing

    @contextmanager
    def _sizes(self) -> Iterator[None]:
        """Pages and steps so small that a few messages need several of them."""
        step, page = self.sizes["step"], self.sizes["page"]
        with sized(
            let_by_per_stream=self.sizes["let_by"],
            operation_step_messages=step,
            timer_step_messages=min(step, 1000),
            scan_page_messages=page,
        ):
            yield

    def any_queue(self, dead: float = 0.0) -> str:
        name = self.rng.choice([*(info.name for info in self.broker.queues() if info.source is None), "q"])
        return name + ".dlq" if self.rng.random() < dead else name

    # What must hold

    def check(self) -> None:
        problems = laws(self.store)
        must(not problems, "; ".join(problems))
        now = self.witness.now
        lost = [
            show_id(raw_id)
            for raw_id in self.confirmed
            if raw_id not in now.messages and raw_id not in now.gone
        ]
        must(not lost, f"confirmed, and nowhere: {lost}")
        undone = [
            now.messages[raw_id]
            for raw_id in self.completed
            if raw_id in now.messages and now.messages[raw_id].where != DONE
        ]
        must(
            not undone,
            f"confirmed as completed, and still there: {[self.witness.say(seen) for seen in undone]}",
        )
        self.stored.check(now)


def _told(item: Any) -> str:
    fields = {
        name: getattr(item, name) for name in item.__struct_fields__ if name not in ("delivery", "error")
    }
    d = item.delivery
    who = d.payload.decode() if isinstance(d, Delivery) else d.id[-8:]
    return f"{type(item).__name__}({who}, {', '.join(f'{name}={value}' for name, value in fields.items() if value)})"
