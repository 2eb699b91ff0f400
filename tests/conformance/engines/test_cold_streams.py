"""Queues that order streams, with most of their messages on disk: what memory holds, and that nothing else differs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.queue import Queue
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigSet
from fairlead.verbs.dead_letters import Redrive
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Explain, ExplainQueue, GetFailureMetrics, Peek, Stats
from fairlead.verbs.operate import Drop, Hold, ReleaseStream, Unhold
from fairlead.verbs.queues import CreateQueue, Purge
from fairlead.verbs.settle import Settle

HOUR_MS = 3_600_000


@contextmanager
def sizes(hot: int, cached: int = 0, window: int = 5) -> Iterator[None]:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=cached, WINDOW_MESSAGES=window):
        yield


class Scene:
    """An engine that can be closed and opened again."""

    def __init__(self) -> None:
        self.clock, self.data = ManualClock(), DictionaryData()
        self.engine = Engine(DictionaryStore(self.data), clock=self.clock)
        self.engine.do(CreateQueue("q", {"retry": {"policy": "fixed", "cooldown": "1h"}, "poison_after": 0}))

    @property
    def queue(self) -> Queue:
        return self.engine.memory.by_name["q"]

    @property
    def hot_chunks(self) -> int:
        return len(self.engine.memory.chunks) - len(self.engine.memory.cold_chunks)

    def reopen(self) -> None:
        self.engine.close()
        self.engine = Engine(DictionaryStore(self.data), clock=self.clock)
        self.check()

    def check(self) -> None:
        assert broken_laws(self.engine) == []

    def enqueue(self, streams: list[str], keys: int = 3) -> list[str]:
        """Bodies are numbered; the key follows from the body."""
        messages = [
            NewMessage(b"%d" % at, fairness_key=f"k{at % keys}", stream=name or None)
            for at, name in enumerate(streams)
        ]
        ids: list[str] = []
        for start in range(0, len(messages), 20):
            ids += self.engine.do(EnqueueMany("q", messages[start : start + 20]))
        return ids

    def claim(self, limit: int, queue: str = "q", **options: int) -> list[Delivery]:
        return self.engine.do(Claim(queue, limit, consumer="c", **options))  # type: ignore[arg-type]

    def drain(self, *, reopens: bool = False, **options: int) -> list[bytes]:
        """Complete everything; returns the bodies in the order of delivery."""
        bodies: list[bytes] = []
        while found := self.claim(7, **options):
            bodies += [one.payload for one in found]
            self.engine.do(Settle([Complete(one) for one in found]))
            if reopens:
                self.reopen()
        self.check()
        assert self.queue.counts.messages == 0
        return bodies


@pytest.fixture
def scene() -> Scene:
    return Scene()


PLAIN = [""] * 120
SINGLE = [f"s{at}" for at in range(120)]
MIXED = ["" if at % 3 else f"s{at % 10}" for at in range(120)]
LONG = ["long"] * 120


@pytest.mark.parametrize("streams", [PLAIN, SINGLE, MIXED, LONG], ids=["plain", "single", "mixed", "long"])
@pytest.mark.parametrize("most", [1, 4])
def test_the_order_of_delivery_does_not_depend_on_what_is_in_memory(streams: list[str], most: int) -> None:
    orders = []
    for hot in (1_000_000, 200, 0):
        with sizes(hot):
            scene = Scene()
            scene.enqueue(streams)
            scene.check()
            orders.append(scene.drain(max_per_stream=most))
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("streams", [PLAIN, SINGLE, MIXED, LONG], ids=["plain", "single", "mixed", "long"])
def test_messages_of_a_stream_come_in_order_when_the_engine_is_opened_again_and_again(
    scene: Scene, streams: list[str]
) -> None:
    with sizes(50):
        scene.enqueue(streams)
        found = [int(body) for body in scene.drain(reopens=True)]
    assert sorted(found) == list(range(120))
    for name in set(streams) - {""}:
        of_stream = [at for at in found if streams[at] == name]
        assert of_stream == sorted(of_stream)


@pytest.mark.parametrize("streams", [PLAIN, SINGLE, LONG], ids=["plain", "single", "long"])
def test_messages_that_find_no_room_are_neither_in_memory_nor_read_at_open(
    scene: Scene, streams: list[str]
) -> None:
    with sizes(0):
        scene.enqueue(streams)
        for _ in range(2):
            memory = scene.engine.memory
            assert (len(memory.chunks), len(memory.own), len(scene.queue.streams.by_name)) == (0, 0, 0)
            assert scene.queue.schedule.held == 0
            scene.reopen()


def block_streams(scene: Scene, count: int) -> None:
    """Each stream has a message that waits for an hour, and two more behind it."""
    names = [f"s{at}" for at in range(count)]
    scene.enqueue(names)
    while found := scene.claim(10):
        scene.engine.do(Settle([Fail(one) for one in found]))
    scene.enqueue(names)
    scene.enqueue(names)


def test_blocked_streams_need_no_memory_and_go_on_when_their_first_messages_do(scene: Scene) -> None:
    with sizes(0):
        block_streams(scene, 30)
        scene.reopen()
        assert scene.claim(10) == []
        memory = scene.engine.memory
        assert (len(memory.chunks), len(memory.own), len(scene.queue.streams.by_name)) == (0, 0, 0)
        blocked = scene.engine.do(GetFailureMetrics("q", streams=100)).blocked_streams
        assert [(one.stream, one.behind) for one in blocked] == [
            (one.stream, 2) for one in sorted(blocked, key=lambda one: (one.since, one.stream))
        ]
        assert len(blocked) == 30
        scene.clock.advance(ms=HOUR_MS)
        bodies = scene.drain()
    assert sorted(bodies) == sorted(b"%d" % at for at in range(30) for _ in range(3))


@pytest.mark.parametrize("window", [1, 3, 50])
def test_all_messages_behind_a_blocked_one_are_counted_also_those_that_only_the_disk_has(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    with sizes(0):
        monkeypatch.setattr(cold, "STREAM_MESSAGES", window)
        scene.enqueue(["s"] * 45)
        (first,) = scene.claim(1)
        for _ in range(2):
            scene.engine.do(Settle([Extend(first, "2h")]))
            assert "; 44 behind it" in scene.engine.do(ExplainQueue("q")).reasons[0].text
            scene.reopen()


def test_lanes_that_only_the_disk_had_end_with_their_last_message(scene: Scene) -> None:
    with sizes(0):
        messages = [NewMessage(b"%d" % at, throttle_keys=[f"t{at % 3}"]) for at in range(9)]
        ids = scene.engine.do(EnqueueMany("q", messages))
        assert scene.queue.schedule.lane_count == 3
        scene.engine.do(Drop("q", ids[::3]))
        assert scene.queue.schedule.lane_count == 2
        scene.engine.do(Purge("q"))
        assert scene.queue.schedule.lane_count == 0
        scene.check()


@pytest.mark.parametrize("hot", [0, 1000])
@pytest.mark.parametrize("streams", [["s"], ["s", "s"]])
def test_a_redriven_message_of_a_reopened_stream_is_known_once(
    scene: Scene, streams: list[str], hot: int
) -> None:
    with sizes(hot, cached=100):
        scene.enqueue(streams)
        scene.engine.do(Settle([Fail(one, dead=True) for one in scene.claim(2, max_per_stream=2)]))
        assert scene.engine.do(Redrive("q")).moved == len(streams)
        scene.reopen()
        found = scene.claim(2, max_per_stream=2)
        for _ in range(3):
            assert [one.payload for one in found] == [b"%d" % at for at in range(len(streams))]
            scene.check()
            released = Settle([Release(one) for one in found])
            # Memory lets go of the stream between transactions, but not within one.
            _, found = scene.engine.do(Exchange([released, Claim("q", 2, max_per_stream=2)]))
        scene.engine.do(Settle([Complete(one) for one in found[1:]]))
        scene.check()


def test_an_operator_lets_messages_of_a_blocked_stream_pass_that_memory_knows_nothing_of(
    scene: Scene,
) -> None:
    with sizes(0):
        block_streams(scene, 4)
        scene.reopen()
        assert scene.engine.do(ReleaseStream("q", "s2"))
        scene.check()
        scene.reopen()
        (passing,) = scene.claim(10)
        assert passing.payload == b"2"
        scene.engine.do(Settle([Complete(passing)]))
        (second,) = scene.claim(10)
        scene.engine.do(Settle([Release(second)]))
        scene.check()
        assert [one.payload for one in scene.claim(10)] == [b"2"]


def test_new_messages_of_a_stream_in_memory_that_all_may_pass_are_known_once(scene: Scene) -> None:
    with sizes(0, cached=100):
        block_streams(scene, 1)
        while scene.engine.do(ReleaseStream("q", "s0")) and (found := scene.claim(10)):
            scene.engine.do(Settle([Complete(one) for one in found]))
        scene.engine.do(EnqueueMany("q", [NewMessage(b"", stream="s0")] * 3))
        scene.check()
        assert len(scene.claim(10, max_per_stream=10)) == 3


def test_a_stream_keeps_its_key_also_where_only_the_disk_has_its_messages(scene: Scene) -> None:
    with sizes(0):
        scene.engine.do(Enqueue("q", b"first", fairness_key="a", stream="s"))
        scene.reopen()
        scene.engine.do(EnqueueMany("q", [NewMessage(b"second", fairness_key="b", stream="s")]))
        scene.check()
        found = scene.claim(2, max_per_stream=2)
        assert [(one.payload, one.fairness_key) for one in found] == [(b"first", "a"), (b"second", "a")]
        scene.engine.do(Settle([Complete(one) for one in found]))
        scene.engine.do(Enqueue("q", b"third", fairness_key="b", stream="s"))
        assert [one.fairness_key for one in scene.claim(1)] == ["b"]


def test_the_front_of_a_stream_waits_for_earlier_messages_of_its_lane_on_disk(scene: Scene) -> None:
    with sizes(50):
        held = scene.engine.do(Enqueue("q", b"held up", fairness_key="k", stream="s"))
        scene.engine.do(Hold("q", [held]))
        scene.engine.do(EnqueueMany("q", [NewMessage(b"plain", fairness_key="k")] * 60))
        behind = scene.engine.do(Enqueue("q", b"behind", fairness_key="k", stream="s"))
        scene.engine.do(Drop("q", [held]))
        scene.check()
        ready = [info.id for info in scene.engine.do(Peek("q", 100))]
        assert ready.index(behind) == len(ready) - 1 == 60
        assert scene.drain() == [b"plain"] * 60 + [b"behind"]


def test_redriven_messages_stand_at_the_end_of_their_streams(scene: Scene) -> None:
    with sizes(0):
        scene.enqueue(["s", "s", "t", "t"], keys=1)
        found = scene.claim(4)
        scene.engine.do(Settle([Fail(one, dead=True) for one in found]))
        scene.reopen()
        scene.engine.do(Redrive("q", [one.id for one in found]))
        scene.check()
        scene.reopen()
        assert scene.drain() == [b"1", b"3", b"0", b"2"]


def test_a_queue_with_cold_streams_is_purged(scene: Scene) -> None:
    with sizes(20):
        scene.enqueue(MIXED)
        scene.engine.do(Purge("q"))
        scene.clock.advance(ms=1)
        scene.check()
        assert scene.drain() == []


def test_explanations_find_who_holds_up_a_message_of_a_stream_on_disk(scene: Scene) -> None:
    with sizes(0):
        first, second = scene.enqueue(["s", "s"], keys=1)
        scene.engine.do(Hold("q", [first]))
        scene.reopen()
        (reason, *_) = scene.engine.do(Explain(second)).reasons
        assert reason.code == "behind_in_stream"
        assert first in reason.text


# A chunk that one message pins


def complete_all_but(scene: Scene, kept: bytes) -> Delivery:
    found = scene.claim(1000, max_per_stream=1000)
    scene.engine.do(Settle([Complete(one) for one in found if one.payload != kept]))
    return next(one for one in found if one.payload == kept)


@pytest.mark.parametrize("stream", ["", "s"])
def test_a_chunk_with_one_dead_letter_is_not_in_memory(scene: Scene, stream: str) -> None:
    with sizes(1_000_000):
        scene.engine.do(EnqueueMany("q", [NewMessage(b"%d" % at, stream=stream or None) for at in range(50)]))
        scene.engine.do(Settle([Fail(complete_all_but(scene, b"20"), dead=True)]))
        assert scene.engine.memory.hot_messages == 0
        scene.reopen()
        assert scene.hot_chunks == 0
        scene.engine.do(Redrive("q"))
        assert scene.drain() == [b"20"]
    assert not scene.engine.memory.cold_count


@pytest.mark.parametrize("stream", ["", "s"])
def test_a_chunk_with_one_held_message_goes_on_when_that_is_let_go(scene: Scene, stream: str) -> None:
    with sizes(1_000_000):
        ids = scene.engine.do(
            EnqueueMany("q", [NewMessage(b"%d" % at, stream=stream or None) for at in range(50)])
        )
        scene.engine.do(Hold("q", [ids[20]]))
        for _ in range(3):
            found = scene.claim(1000, max_per_stream=1000)
            scene.engine.do(Settle([Complete(one) for one in found]))
        scene.reopen()
        # Behind one that a stream orders others are ready, which stay in memory with it.
        assert scene.hot_chunks == (1 if stream else 0)
        scene.engine.do(Unhold("q", [ids[20]]))
        scene.check()
        bodies = scene.drain()
    assert bodies[0] == b"20"


def test_a_chunk_with_one_parked_lane_goes_on_when_tokens_come(scene: Scene) -> None:
    with sizes(0, window=3):
        scene.engine.do(ConfigSet("throttle:t:rate", "0"))
        scene.engine.do(ConfigSet("throttle:t:burst", "1"))
        messages = [NewMessage(b"free")] * 49 + [NewMessage(b"parked", throttle_keys=["t"])] * 2
        scene.engine.do(EnqueueMany("q", messages))
        for _ in range(60):
            scene.engine.do(Settle([Complete(one) for one in scene.claim(5)]))
        assert scene.queue.counts.ready == 1
        scene.reopen()
        assert scene.claim(5) == []
        scene.engine.do(ConfigDelete("throttle:t:rate"))
        assert scene.drain() == [b"parked"]


def test_messages_behind_a_blocked_one_count_where_memory_has_a_part_of_their_chunk(scene: Scene) -> None:
    with sizes(0), patch.object(cold, "STREAM_MESSAGES", 3):
        scene.enqueue(["s"] * 20)
        (first,) = scene.claim(1, max_per_stream=1)
        scene.engine.do(Settle([Fail(first, error="no")]))
        (blocked,) = scene.engine.do(GetFailureMetrics("q")).blocked_streams
    assert blocked.behind == 19


def test_lanes_on_disk_end_with_a_purge(scene: Scene) -> None:
    with sizes(0):
        scene.enqueue(PLAIN)
        scene.engine.do(Purge("q"))
        assert scene.queue.schedule.lane_count == 0
        scene.check()


def test_a_lane_on_disk_whose_key_is_at_its_limit_ends_with_a_purge(scene: Scene) -> None:
    scene.engine.do(CreateQueue("limited", {"max_unsettled_per_key": 1}))
    with sizes(0):
        scene.engine.do(EnqueueMany("limited", [NewMessage(b"", fairness_key="k")] * 30))
        (leased,) = scene.claim(5, "limited")
        scene.engine.do(Purge("limited"))
        schedule = scene.engine.memory.by_name["limited"].schedule
        assert not schedule.has_lane(("k",))
        scene.engine.do(Settle([Complete(leased)]))
        assert (schedule.ring(), schedule.lane_count) == ([], 0)
        scene.check()


@pytest.mark.parametrize("hot", [0, 1000])
def test_the_next_front_of_a_lane_that_lost_its_messages_sets_the_weight_of_the_key(hot: int) -> None:
    """Memory knows at once that such a lane is over. Where only the disk has it, the engine has to look."""
    with sizes(hot=hot):
        scene = Scene()
        weights_and_throttles = ((1, "t1", "s"), (5, "t1", "s"), (1, "t2", None))
        first, *_ = scene.engine.do(
            EnqueueMany(
                "q",
                [
                    NewMessage(b"", fairness_key="k", weight=weight, throttle_keys=[throttle], stream=stream)
                    for weight, throttle, stream in weights_and_throttles
                ],
            )
        )
        scene.engine.do(Drop("q", [first]))
        (key,) = scene.engine.do(Stats("q", True)).keys
        assert (key.weight, key.pending) == (5, 2)
        scene.check()


@pytest.mark.parametrize("hot", [0, 1_000_000])
def test_lanes_that_wait_for_tokens_go_out_in_the_same_order_whether_or_not_memory_knows_that_a_stream_is_over(
    hot: int,
) -> None:
    """Memory that holds no message has seen rows of a stream, and does not know that none is left."""
    with sizes(hot):
        scene = Scene()
        engine = scene.engine
        engine.do(Enqueue("q", b"streamed", stream="s"))
        engine.do(Settle([Complete(one) for one in engine.do(Claim("q"))]))
        engine.do(ConfigSet("throttle:t:rate", "1"))
        engine.do(
            EnqueueMany("q", [NewMessage(b"0", throttle_keys=["t"]), NewMessage(b"1", throttle_keys=["t"])])
        )
        (first,) = engine.do(Claim("q"))
        engine.do(Enqueue("q", b"2", throttle_keys=["t", "u"]))
        assert engine.do(Claim("q", max_per_stream=5)) == []
        engine.do(Settle([Release(first)]))
        engine.do(ConfigSet("throttle:t:rate", "20"))
        scene.clock.advance(ms=400)
        claimed = engine.do(Claim("q", 9, max_per_stream=5))
        assert [one.payload for one in claimed] == [b"0", b"1", b"2"]
        scene.check()


@pytest.mark.parametrize("hot", [0, 1000])
def test_a_key_at_its_limit_that_loses_all_its_messages_at_once_gets_no_turn(hot: int) -> None:
    """A lane that only the disk has ends before the key may take turns again."""
    with sizes(hot=hot):
        scene = Scene()
        engine = scene.engine
        engine.do(CreateQueue("limited", {"max_unsettled_per_key": 1}))
        ids = engine.do(EnqueueMany("limited", [NewMessage(b"", fairness_key="k")] * 30))
        assert len(scene.claim(5, "limited")) == 1
        engine.do(Drop("limited", ids))
        assert engine.memory.by_name["limited"].schedule.ring() == []
        scene.check()
