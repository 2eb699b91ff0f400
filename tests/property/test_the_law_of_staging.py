"""The law of staged writes: all of a write or nothing, never twice, in order; whatever is staged, killed or
deleted meanwhile.

Random traffic drives a real broker, on both stores, beside a model that knows what is staged and what was
decided. A publish may be killed before any of its commits; the broker is then opened again, and finishes what
was begun, or never heard of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead import NewMessage
from fairlead.errors import StagedChunkMissing, StagedQueueGone
from fairlead.model.limits import PUBLISHED_KEPT_MS
from fairlead.testing import CommitStep, ManualClock, laws
from fairlead.testing.sizes import size
from fairlead.testing.stored import staged_bytes
from tests.property.running import OnMemoryStore, OnRocksStore, check_law

NAMES = ["a", "b", "c"]
QUEUES = st.sampled_from(["q", "r"])
#: Queue and token: the same token for two queues names two writes.
WRITES = st.tuples(QUEUES, st.sampled_from(["t", "u", "ü/7"]))
HOUR, DAY = 3_600_000, 86_400_000


class Killed(BaseException):
    pass


class Mortality:
    """Kills the broker before the n-th step from now on."""

    def __init__(self) -> None:
        self.steps_left = -1

    def meet(self, step: CommitStep) -> None:
        if self.steps_left == 0:
            raise Killed
        self.steps_left -= 1


@dataclass
class Chunk:
    life: int
    payloads: list[bytes]
    expires_ms: int
    dead: bool


@dataclass
class Write:
    """A decided one: what it must become in each life of its queue, and whether all of it is there by now."""

    payloads: dict[tuple[str, int, bool], list[bytes]]
    count: int
    forgotten_ms: int
    whole: bool


@dataclass
class Model:
    staged: dict[tuple[str, str], dict[str, Chunk]] = field(default_factory=dict)
    decided: dict[tuple[str, str], Write] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)
    #: Everything ever decided, also under tokens that are forgotten.
    writes: list[Write] = field(default_factory=list)

    def pass_time(self, now_ms: int) -> None:
        for write in self.writes:
            write.whole = True
        self.staged = {
            key: chunks
            for key, chunks in self.staged.items()
            if max(c.expires_ms for c in chunks.values()) > now_ms
        }
        self.decided = {key: write for key, write in self.decided.items() if write.forgotten_ms > now_ms}


class LawOfStaging(RuleBasedStateMachine):
    store: Any

    def _open(self) -> None: ...

    def _reopen(self) -> None: ...

    @initialize()
    def begin(self) -> None:
        self._open()
        self.clock = ManualClock()
        self.model = Model()
        self.made = 0
        self._start()
        for queue in ("q", "r"):
            self.broker.create_queue(queue)

    def _start(self) -> None:
        self.mortality = Mortality()
        self.store.on_step = self.mortality.meet
        self.broker = self.store.open_broker(clock=self.clock, durability="os")

    @rule()
    def restart(self) -> None:
        self.broker.close()
        self._reopen()
        self._start()

    @rule(
        key=WRITES,
        name=st.sampled_from(NAMES),
        count=st.integers(0, 7),
        hours=st.sampled_from([1, 24]),
        stream=st.sampled_from([None, "s", "z"]),
        dead=st.sampled_from([False, False, False, True]),
    )
    def stage(
        self, key: tuple[str, str], name: str, count: int, hours: int, stream: str | None, dead: bool
    ) -> None:
        queue, token = key
        payloads = [b"%d/%s/%d" % (self.made, name.encode(), n) for n in range(count)]
        self.made += 1
        why = ("unknown", "bad") if dead else None
        result = self.broker.staging.stage(
            token, name, queue, [NewMessage(p, stream=stream) for p in payloads], ttl=f"{hours}h", dead=why
        )
        assert (result.count, result.refused) == (count, [])
        if key not in self.model.decided:
            chunk = Chunk(self.model.lives[queue], payloads, self.clock.now_ms() + hours * HOUR, dead)
            self.model.staged.setdefault(key, {})[name] = chunk

    @rule(
        key=WRITES,
        names=st.permutations(NAMES),
        listed=st.integers(0, 3),
        dies_at=st.sampled_from([0, 0, 1, 2, 3, 4, 5]),
        amiss=st.booleans(),
    )
    def publish(self, key: tuple[str, str], names: list[str], listed: int, dies_at: int, amiss: bool) -> None:
        (queue, token), model, chunks = key, self.model, self.model.staged.get(key, {})
        names = [name for name in names if amiss or name in chunks][:listed]
        if key in model.decided:
            again = self.broker.staging.publish(token, queue, names)
            assert (again.outcome, again.count) == ("already", model.decided[key].count)
            model.decided[key].whole = True
            return
        if any(name not in chunks for name in names):
            with pytest.raises(StagedChunkMissing):
                self.broker.staging.publish(token, queue, names)
            return
        if any(chunks[name].life != model.lives[queue] for name in names):
            with pytest.raises(StagedQueueGone):
                self.broker.staging.publish(token, queue, names)
            return
        self.mortality.steps_left = dies_at - 1
        killed = False
        try:
            result = self.broker.staging.publish(token, queue, names)
        except Killed:
            killed = True
        self.mortality.steps_left = -1
        if killed:
            self.restart()
        if not killed or dies_at > 1:
            self._decide(key, [chunks[name] for name in names], whole=not killed)
        if not killed:
            assert (result.outcome, result.count) == (
                "published",
                sum(len(chunks[name].payloads) for name in names),
            )

    @rule(
        key=WRITES,
        parts=st.lists(
            st.tuples(st.integers(1, 8), st.sampled_from([None, "s"]), st.sampled_from([False, False, True])),
            min_size=1,
            max_size=3,
        ),
        names=st.permutations(NAMES),
        dies_at=st.sampled_from([0, 1, 2, 3, 4, 5, 6]),
    )
    def write(
        self, key: tuple[str, str], parts: list[tuple[int, str | None, bool]], names: list[str], dies_at: int
    ) -> None:
        """What the rules above come to by themselves only now and then."""
        for name, (count, stream, dead) in zip(NAMES, parts, strict=False):
            self.stage(key, name, count, 24, stream, dead)
        self.publish(key, names, 3, dies_at, False)

    def _decide(self, key: tuple[str, str], chunks: list[Chunk], *, whole: bool) -> None:
        payloads: dict[tuple[str, int, bool], list[bytes]] = {}
        for chunk in chunks:
            payloads.setdefault((key[0], chunk.life, chunk.dead), []).extend(chunk.payloads)
        count = sum(len(chunk.payloads) for chunk in chunks)
        write = Write(payloads, count, self.clock.now_ms() + PUBLISHED_KEPT_MS, whole)
        self.model.decided[key] = write
        self.model.writes.append(write)
        self.model.staged.pop(key, None)

    @rule(key=WRITES)
    def discard(self, key: tuple[str, str]) -> None:
        gone = self.model.staged.pop(key, {})
        assert self.broker.staging.discard(key[1], key[0]) == len(gone)

    @rule(ms=st.sampled_from([1, 10_000, HOUR, DAY, 4 * DAY]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms=ms)
        self.model.pass_time(self.clock.now_ms())

    @rule(queue=QUEUES)
    def delete_and_make_again(self, queue: str) -> None:
        self.broker.delete_queue(queue)
        self.broker.create_queue(queue)
        self.model.lives[queue] += 1

    @invariant()
    def the_stores_own_laws_hold(self) -> None:
        assert laws(self.store) == []

    @invariant()
    def every_write_is_there_whole_and_in_order_and_nothing_else_is(self) -> None:
        for queue in ("q", "r"):
            for dead in (False, True):
                self._check_queue(queue, dead)

    def _check_queue(self, queue: str, dead: bool) -> None:
        here = (queue, self.model.lives[queue], dead)
        shown = self.broker.browse(queue, view="dead" if dead else "messages", limit=10_000)
        found = [info.payload for info in shown]
        assert len(set(found)) == len(found), "something was made twice"
        for write in self.model.writes:
            expected = write.payloads.get(here, [])
            mine = [payload for payload in found if payload in set(expected)]
            assert mine == (expected if write.whole else expected[: len(mine)])
        assert set(found) <= {
            payload for write in self.model.writes for payload in write.payloads.get(here, [])
        }
        if not dead:
            by_seq = [info.payload for info in sorted(shown, key=lambda info: info.seq) if info.stream == "s"]
            assert by_seq == [info.payload for info in shown if info.stream == "s"]

    @invariant()
    def what_is_listed_is_what_is_staged_and_what_was_decided(self) -> None:
        listed = {
            (write.queue, write.token): (write.published, write.messages)
            for write in self.broker.staging.list()
        }
        assert listed == {
            **{
                key: (False, sum(len(c.payloads) for c in chunks.values()))
                for key, chunks in self.model.staged.items()
            },
            **{key: (True, write.count) for key, write in self.model.decided.items()},
        }
        if all(write.whole for write in self.model.writes):
            stored = staged_bytes(self.store)
            assert self.broker.measures().staged_bytes == stored
            has_messages = any(
                chunk.payloads for chunks in self.model.staged.values() for chunk in chunks.values()
            )
            assert bool(stored) == has_messages

    def teardown(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()
        super().teardown()


class InMemory(OnMemoryStore, LawOfStaging):  # type: ignore[misc]
    pass


class OnDisk(OnRocksStore, LawOfStaging):  # type: ignore[misc]
    pass


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("publish_step_messages"), 3)


def test_the_law_of_staging_holds_in_memory() -> None:
    check_law(InMemory, "the_law_of_staging_holds_in_memory", examples=100, steps=30)


def test_the_law_of_staging_holds_on_disk() -> None:
    check_law(OnDisk, "the_law_of_staging_holds_on_disk", examples=12, steps=30)
