"""Messages that nobody can take make room in memory for those of queues that are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from fairlead import Complete, Delivery, Fail, NewMessage
from fairlead.engine import cold, demotion
from fairlead.engine.demotion import may_be_demoted
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.queue import Queue
from fairlead.errors import FairleadError
from fairlead.records.chunk import Chunk
from fairlead.records.facts import ChunkDemoted
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import KeyValueStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigSet
from fairlead.verbs.consumers import ConsumersClaim, ConsumersRegister
from fairlead.verbs.dead_letters import Redrive
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.operate import Bury, Hold, ReleaseStream, Unhold
from fairlead.verbs.queues import CreateQueue, Pause, Resume
from fairlead.verbs.settle import Settle

#: Of the hot messages in these tests.
HOT = 400
#: The part of them that a search leaves.
LEFT = HOT * 3 // 4


class Scene:
    """A queue with an active tenant, whom a consumer serves, and messages that nobody takes."""

    def __init__(self, store: KeyValueStore | None = None) -> None:
        self.clock, self.data = ManualClock(), DictionaryData()
        self.engine = Engine(store or DictionaryStore(self.data), clock=self.clock)
        self.engine.do(CreateQueue("q", {"retry": {"policy": "fixed", "cooldown": "1h"}}))
        self.engine.do(CreateQueue("idle"))
        self.engine.do(ConfigSet("throttle:t:rate", "0"))
        self.engine.do(ConfigSet("throttle:t:burst", "1"))
        # The bucket is empty from now on.
        self.engine.do(EnqueueMany("q", [NewMessage(b"first", throttle_keys=["t"])]))
        self.served = self.serve(2)

    @property
    def queue(self) -> Queue:
        return self.engine.memory.by_name["q"]

    @property
    def used(self) -> int:
        return self.engine.memory.used_room

    def hot_chunks(self) -> list[Chunk]:
        return [chunk for chunk in self.engine.memory.chunks.values() if not chunk.is_cold]

    def enqueue(self, bodies: Sequence[bytes], queue: str = "q", **fields: Any) -> list[str]:
        messages = [NewMessage(body, **fields) for body in bodies]
        ids: list[str] = []
        for start in range(0, len(messages), 10):
            ids += self.engine.do(EnqueueMany(queue, messages[start : start + 10]))
        return ids

    def fill(self, count: int = HOT, queue: str = "q", **fields: Any) -> list[str]:
        return self.enqueue([b"%d" % at for at in range(count)], queue, **fields)

    def claim(self, limit: int, queue: str = "q") -> list[Delivery]:
        return self.engine.do(Claim(queue, limit, consumer="c"))

    def serve(self, limit: int = 10, queue: str = "q") -> list[bytes]:
        found = self.claim(limit, queue)
        self.engine.do(Settle([Complete(one) for one in found]))
        return [one.payload for one in found]

    def new_chunk_is_cold(self) -> bool:
        """Enqueue and complete a message of the active tenant."""
        before = self.queue.counts.cold
        self.enqueue([b"active"], fairness_key="active")
        after = self.queue.counts.cold
        assert self.serve() == [b"active"]
        return after > before

    def let_time_pass(self, seconds: float = 1.0) -> None:
        self.clock.advance(seconds=seconds)
        assert broken_laws(self.engine) == []

    def reopen(self) -> None:
        self.engine.close()
        self.engine = Engine(DictionaryStore(self.data), clock=self.clock)
        assert broken_laws(self.engine) == []


@contextmanager
def sizes(hot: int = HOT, **more: int) -> Iterator[None]:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=0, WINDOW_MESSAGES=5):
        if more:
            with patch.multiple(demotion, **more):
                yield
        else:
            yield


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with sizes():
        yield


@pytest.fixture
def scene() -> Scene:
    return Scene()


def park(scene: Scene) -> None:
    scene.fill(fairness_key="parked", throttle_keys=["t"])
    assert scene.serve() == []


def park_many(scene: Scene) -> None:
    """Each lane is a chunk of its own."""
    for at in range(HOT // 10):
        scene.fill(10, fairness_key=f"parked {at}", throttle_keys=["t"])
    assert scene.serve() == []


def pause(scene: Scene) -> None:
    scene.fill(queue="idle")
    scene.engine.do(Pause("idle"))


def leave_unserved(scene: Scene) -> None:
    scene.fill(queue="idle")
    scene.clock.advance(seconds=11)
    scene.enqueue([b"active"], fairness_key="active")
    scene.serve()


def block(scene: Scene) -> None:
    """Two streams wait for their first messages, which failed."""
    for at in range(HOT // 80):
        scene.fill(10, fairness_key="blocked", stream=f"s{at % 2}")
    for delivery in scene.claim(2):
        scene.engine.do(Settle([Fail(delivery, error="no")]))


def park_streams(scene: Scene) -> None:
    for at in range(HOT // 80):
        scene.fill(10, fairness_key="parked", throttle_keys=["t"], stream=f"s{at}")
    assert scene.serve() == []


@pytest.mark.parametrize("fill", [park, pause, leave_unserved, block, park_streams])
def test_messages_that_nobody_takes_make_room_for_those_of_an_active_tenant(
    scene: Scene, fill: Callable[[Scene], None]
) -> None:
    fill(scene)
    assert scene.used > LEFT
    assert scene.new_chunk_is_cold(), "memory is full"
    scene.let_time_pass()
    assert scene.used <= LEFT
    assert not scene.new_chunk_is_cold()
    scene.reopen()
    assert scene.used <= LEFT
    assert not scene.new_chunk_is_cold()


@pytest.mark.parametrize("fill", [park, pause, leave_unserved, block, park_streams])
def test_what_makes_room_is_delivered_in_order_when_its_time_comes(
    scene: Scene, fill: Callable[[Scene], None]
) -> None:
    orders = []
    for hot in (1_000_000, HOT):
        with sizes(hot):
            scene = Scene()
            fill(scene)
            scene.enqueue([b"active"], fairness_key="active")
            scene.let_time_pass()
            assert scene.serve() == [b"active"]
            assert (scene.engine.memory.cold_count > 1) == (hot == HOT)
            scene.engine.do(ConfigDelete("throttle:t:rate"))
            scene.engine.do(Resume("idle"))
            scene.let_time_pass(3600)
            order = []
            while some := scene.serve(7) or scene.serve(7, "idle"):
                order += some
                assert broken_laws(scene.engine) == []
            orders.append(order)
    assert orders[0] == orders[1]
    assert len(orders[0]) >= HOT // 10


def test_the_newest_messages_make_room_and_those_that_go_next_stay(scene: Scene) -> None:
    park(scene)
    scene.new_chunk_is_cold()
    scene.let_time_pass()
    kept = sorted(chunk.first for chunk in scene.hot_chunks())
    assert kept[0] < scene.queue.schedule.cold_from(("parked", "t"))
    assert kept[-1] < scene.queue.schedule.cold_from(("parked", "t"))
    assert scene.queue.schedule.parked_on(("parked", "t")) == "t", "its turn stays"


def test_what_a_throttle_lets_through_soon_stays(scene: Scene) -> None:
    scene.engine.do(ConfigSet("throttle:t:rate", "1000"))
    scene.fill(fairness_key="fast", throttle_keys=["t"])
    while scene.claim(1):
        pass
    assert scene.queue.schedule.parked_lanes
    used = scene.used
    scene.enqueue([b"active"], fairness_key="active")
    with scene.engine.transaction() as tx:
        assert not any(demotion.is_idle(tx.memory, chunk, tx.now_ms) for chunk in scene.hot_chunks())
    scene.engine.run_due()
    assert scene.used == used


def test_memory_stays_bounded_while_ever_more_lanes_wait(scene: Scene) -> None:
    memory, was_cold = scene.engine.memory, []
    for tenant in range(30):
        scene.fill(50, fairness_key=f"tenant {tenant}", throttle_keys=["t"])
        was_cold.append(scene.new_chunk_is_cold())
        scene.let_time_pass()
        assert memory.used_room <= HOT
        assert scene.queue.schedule.held <= HOT
        assert len(memory.chunks) <= HOT // 10
    assert scene.queue.counts.ready == 1 + 30 * 50 - 1
    # Only those that found memory full.
    assert was_cold.count(True) < 20


def test_an_engine_with_room_and_an_idle_one_look_for_nothing(scene: Scene) -> None:
    scene.fill(HOT // 2, fairness_key="parked", throttle_keys=["t"])
    scene.serve()
    scene.let_time_pass()
    assert scene.engine.memory.demotion.next_look_ms is None
    scene.fill(HOT, "idle")
    scene.new_chunk_is_cold()
    for _ in range(5):
        scene.let_time_pass(20)
    assert scene.engine.memory.demotion.next_look_ms is None
    assert scene.used <= LEFT


def test_a_search_that_finds_nothing_ends_and_begins_again_later(scene: Scene) -> None:
    # All of it is about to be claimed.
    scene.fill(fairness_key="active")
    scene.claim(1)
    scene.fill(10, fairness_key="other")
    used, search = scene.used, scene.engine.memory.demotion
    assert search.next_look_ms is not None
    scene.let_time_pass(0.5)
    assert (scene.used, search.next_look_ms) == (used, None)
    scene.fill(1, fairness_key="third")
    assert search.next_look_ms == scene.engine.time.now_ms() + demotion.LONG_PAUSE_MS


def test_a_chunk_with_a_leased_message_stays(scene: Scene) -> None:
    scene.enqueue([b"leased"], fairness_key="leased")
    generation = scene.engine.do(ConsumersRegister("etl", "q")).generation
    scene.engine.do(ConsumersClaim("etl", "q", generation, 1, 1))
    scene.enqueue([b"free"] * 3, fairness_key="free")
    held = {number >> BLOCK_SHIFT for number in scene.engine.memory.held}
    with scene.engine.transaction() as tx:
        chunks = scene.hot_chunks()
        demotable = [chunk for chunk in chunks if may_be_demoted(tx.memory, chunk)]
    assert held
    assert len(demotable) < len(chunks)
    assert not held & {chunk.block for chunk in demotable}


@pytest.mark.parametrize("most", [0, 1000])
def test_a_chunk_before_a_hot_message_of_its_lane_or_stream_stays(scene: Scene, most: int) -> None:
    scene.enqueue([b"1"], fairness_key="k")
    scene.enqueue([b"2"], fairness_key="k")
    scene.enqueue([b"3"], fairness_key="s", stream="s")
    scene.enqueue([b"4"], fairness_key="s", stream="s")
    first, second, third, fourth = sorted(scene.hot_chunks(), key=lambda chunk: chunk.first)
    with scene.engine.transaction() as tx:
        with patch.object(demotion, "MAX_BEHIND", most):
            demotable = [may_be_demoted(tx.memory, one) for one in (first, second, third, fourth)]
        assert demotable == [False, True, False, True]
        tx.add(ChunkDemoted(fourth))
        assert may_be_demoted(tx.memory, third)
        tx.add(ChunkDemoted(third))
        tx.add(ChunkDemoted(second))
        tx.add(ChunkDemoted(first))
    assert broken_laws(scene.engine) == []
    assert scene.serve() == [b"1", b"3", b"2"]
    assert scene.serve() == [b"4"]


@pytest.mark.parametrize("fault", ["fail", "die"])
@pytest.mark.parametrize("fill", [park_many, block])
def test_a_write_that_fails_leaves_the_chunk_as_it_was(fault: Any, fill: Callable[[Scene], None]) -> None:
    data = DictionaryData()
    store = FaultyStore(DictionaryStore(data))
    scene = Scene(store)
    fill(scene)
    scene.new_chunk_is_cold()
    used = scene.used
    store.arm(1, fault, only=["write"])
    with pytest.raises(BaseException) as raised:
        scene.clock.advance(seconds=1)
    assert store.struck
    if isinstance(raised.value, FairleadError):
        assert (scene.used, scene.engine.memory.cold_count) == (used, 0)
        assert broken_laws(scene.engine) == []
        # The lanes were loaded anew, and wait for tokens again.
        assert scene.serve() == []
        scene.clock.advance(seconds=1)
        assert scene.used == used, "it is not tried again at once"
        scene.clock.advance(seconds=10)
        scene.serve()
        scene.enqueue([b"1"], fairness_key="active")
        assert scene.serve() == [b"1"]
        scene.new_chunk_is_cold()
        scene.let_time_pass()
        assert scene.used <= LEFT
    again = Engine(DictionaryStore(data), clock=scene.clock)
    assert broken_laws(again) == []


def test_held_messages_of_a_stream_that_became_cold_come_back(scene: Scene) -> None:
    ids = scene.fill(30, fairness_key="k", stream="s")
    scene.engine.do(Hold("q", ids[:1]))
    with scene.engine.transaction() as tx:
        for chunk in sorted(scene.hot_chunks(), key=lambda chunk: -chunk.first):
            if may_be_demoted(tx.memory, chunk):
                tx.add(ChunkDemoted(chunk))
    assert scene.hot_chunks() == []
    assert broken_laws(scene.engine) == []
    scene.reopen()
    scene.engine.do(Unhold("q", ids[:1]))
    assert broken_laws(scene.engine) == []
    order: list[bytes] = []
    while some := scene.serve(4):
        order += some
    assert order == [b"%d" % at for at in range(30)]


def test_a_step_is_bounded_and_others_have_the_lock_in_between(scene: Scene) -> None:
    with sizes(STEP_COST=50):
        park(scene)
        scene.new_chunk_is_cold()
        before = scene.engine.store.last_commit
        scene.let_time_pass()
    assert scene.engine.store.last_commit - before >= 2
    assert scene.used <= LEFT


def test_a_stream_that_a_consumer_works_on_stays(scene: Scene) -> None:
    scene.fill(20, fairness_key="k", stream="s")
    scene.claim(1)
    assert len(scene.hot_chunks()) == 2
    with scene.engine.transaction() as tx:
        assert not any(demotion.is_idle(tx.memory, chunk, tx.now_ms) for chunk in scene.hot_chunks())


def test_a_redriven_message_behind_those_that_became_cold_leaves_memory_with_them(scene: Scene) -> None:
    scene.enqueue([b"1"], fairness_key="k", stream="s")
    (_, third) = scene.enqueue([b"2", b"3"], fairness_key="k", stream="s")
    scene.engine.do(Bury("q", [third]))
    scene.engine.do(Redrive("q.dlq"))
    newest = max(scene.hot_chunks(), key=lambda chunk: chunk.first)
    assert scene.engine.memory.own
    with scene.engine.transaction() as tx:
        assert may_be_demoted(tx.memory, newest)
        tx.add(ChunkDemoted(newest))
    assert broken_laws(scene.engine) == []
    assert not scene.engine.memory.own
    assert [scene.serve(1) for _ in range(3)] == [[b"1"], [b"2"], [b"3"]]


def test_the_front_of_a_hot_stream_waits_for_plain_messages_that_became_cold(scene: Scene) -> None:
    scene.enqueue([b"plain"], fairness_key="k")
    scene.enqueue([b"front"], fairness_key="k", stream="s")
    for chunk in sorted(scene.hot_chunks(), key=lambda chunk: chunk.first):
        with scene.engine.transaction() as tx:
            assert may_be_demoted(tx.memory, chunk)
            tx.add(ChunkDemoted(chunk))
        assert broken_laws(scene.engine) == []
    assert scene.queue.schedule.held == 0
    assert scene.serve() == [b"plain", b"front"]


def test_a_message_that_passes_a_waiting_one_can_become_cold(scene: Scene) -> None:
    scene.enqueue([b"1"], fairness_key="k", stream="s")
    scene.engine.do(
        EnqueueMany("q", [NewMessage(body, fairness_key="k", stream="s") for body in (b"2", b"3")])
    )
    (first,) = scene.claim(1)
    scene.engine.do(Settle([Fail(first, error="no")]))
    scene.engine.do(ReleaseStream("q", "s"))
    newest = max(scene.hot_chunks(), key=lambda chunk: chunk.first)
    with scene.engine.transaction() as tx:
        assert may_be_demoted(tx.memory, newest)
        tx.add(ChunkDemoted(newest))
    assert broken_laws(scene.engine) == []
    assert scene.serve(1) == [b"2"]
    assert broken_laws(scene.engine) == []
