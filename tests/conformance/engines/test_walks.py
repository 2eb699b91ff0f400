"""Walks through the messages of a queue of the engine: every place, in order, across many steps."""

from __future__ import annotations

from random import Random

import pytest

from fairlead import Delivery, Fail, NewMessage, Release
from fairlead.engine import met as met_module
from fairlead.engine import walk as walk_module
from fairlead.engine import walk_ids as walk_ids_module
from fairlead.engine.blocks import Blocks
from fairlead.engine.engine import Engine
from fairlead.engine.met import Met, bounded
from fairlead.engine.walk import Where, walk
from fairlead.engine.walk_ids import walk_ids
from fairlead.model.ids import find_id
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.operate import Drop, Hold, Unhold
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle


@pytest.fixture(params=(2, 1000))
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (met_module, walk_module, walk_ids_module):
        monkeypatch.setattr(module, "STEP_MESSAGES", request.param)
    monkeypatch.setattr(met_module, "_SORTED_AT_ONCE", 3)
    return int(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(step: int, clock: ManualClock) -> Engine:
    made = Engine(DictionaryStore(), clock=clock)
    made.do(CreateQueue("q"))
    made.do(CreateQueue("other"))
    made.do(EnqueueMany("other", [NewMessage(b"not mine")] * 5))
    return made


def queue_id(engine: Engine) -> int:
    return engine.memory.by_name["q"].record.queue_id


def bodies(met: list[Met]) -> list[bytes]:
    return [one.chunk.payloads[one.number - one.chunk.first] for one in met if one.chunk.payloads]


def walked(engine: Engine, where: Where, after: str | None = None) -> list[bytes]:
    raw_id = None if after is None else find_id(after)
    return bodies(list(bounded(walk(engine, queue_id(engine), where, raw_id), 1000)))


def fill(engine: Engine, count: int = 7) -> list[str]:
    return engine.do(
        EnqueueMany("q", [NewMessage(b"%d" % at, fairness_key=f"k{at % 2}") for at in range(count)])
    )


def test_ready_messages_come_lane_by_lane_in_the_order_of_their_places(engine: Engine) -> None:
    ids = fill(engine)
    assert walked(engine, "ready") == [b"0", b"2", b"4", b"6", b"1", b"3", b"5"]
    assert walked(engine, "ready", after=ids[4]) == [b"6", b"1", b"3", b"5"]


def test_a_walk_through_one_key_looks_at_its_lanes_only(engine: Engine) -> None:
    fill(engine)
    throttled = NewMessage(b"throttled", fairness_key="k1", throttle_keys=["t"])
    engine.do(EnqueueMany("q", [throttled, NewMessage(b"waits", fairness_key="k0", delay="1s")]))
    pages = walk(engine, queue_id(engine), "ready", key="k1")
    assert bodies(list(bounded(pages, 10))) == [b"1", b"3", b"5", b"throttled"]
    for where, key, found in (("waiting", "k0", [b"waits"]), ("waiting", "k1", []), ("ready", "none", [])):
        pages = walk(engine, queue_id(engine), where, key=key)  # type: ignore[arg-type]
        assert bodies(list(bounded(pages, 10))) == found


def test_messages_behind_the_fronts_of_streams_come_last_stream_by_stream(engine: Engine) -> None:
    streams = ["b", "a", "b", "a", "", "b", "a", "c"]
    new = [NewMessage(b"%d %s" % (at, name.encode()), stream=name or None) for at, name in enumerate(streams)]
    ids = engine.do(EnqueueMany("q", new))
    engine.do(Hold("q", ids[2:3]))
    fronts, behind = [b"0 b", b"1 a", b"4 ", b"7 c"], [b"3 a", b"6 a", b"5 b"]
    assert walked(engine, "ready") == fronts + behind
    assert walked(engine, "ready", after=ids[4]) == [b"7 c", *behind]
    assert walked(engine, "ready", after=ids[3]) == [b"6 a", b"5 b"]
    assert walked(engine, "ready", after=ids[5]) == []
    engine.do(Claim("q", 2))
    assert walked(engine, "ready") == [b"4 ", b"7 c", *behind]


def test_a_released_message_is_met_at_its_old_place(engine: Engine) -> None:
    fill(engine)
    held = engine.do(Claim("q", 5))
    engine.do(Settle([Release(held[2]), Release(held[4])]))
    assert walked(engine, "ready") == [b"2", b"4", b"6", b"5"]
    assert walked(engine, "ready", after=held[2].id) == [b"4", b"6", b"5"]
    assert walked(engine, "leased") == [b"0", b"1", b"3"]


def test_waiting_messages_come_in_the_order_of_their_due_times_and_held_ones_last(engine: Engine) -> None:
    late, early = (
        engine.do(Enqueue("q", body, delay=delay)) for body, delay in ((b"late", "9s"), (b"early", "1s"))
    )
    held = [engine.do(Enqueue("q", b"held %d" % at)) for at in range(3)]
    engine.do(Hold("q", held))
    assert walked(engine, "waiting") == [b"early", b"late", b"held 0", b"held 1", b"held 2"]
    assert walked(engine, "held") == [b"held 0", b"held 1", b"held 2"]
    assert walked(engine, "waiting", after=early) == [b"late", b"held 0", b"held 1", b"held 2"]
    assert walked(engine, "held", after=held[0]) == [b"held 1", b"held 2"]
    engine.do(Unhold("q", held))
    engine.do(Hold("q", held[:1]))
    engine.do(Drop("q", [late]))
    assert walked(engine, "waiting") == [b"early", b"held 0"]


def test_a_message_that_waits_a_second_time_is_met_once(engine: Engine, clock: ManualClock) -> None:
    message_id = engine.do(Enqueue("q", b"again", delay="60s"))
    engine.do(Hold("q", [message_id]))
    engine.do(Unhold("q", [message_id]))
    engine.do(Settle([Fail(held, retry_in="90s") for held in engine.do(Claim("q"))]))
    assert walked(engine, "waiting") == [b"again"]


def test_chunks_are_listed_in_the_order_of_their_ids(engine: Engine) -> None:
    fill(engine, 1)
    fill(engine, 1)
    first, second = engine.memory.by_name["q"].blocks
    blocks = Blocks(engine.memory.chunks)
    blocks.add(second)
    blocks.add(first)
    assert list(blocks) == [first, second]


def test_leased_messages_come_in_the_order_of_their_enqueues(engine: Engine) -> None:
    ids = fill(engine)
    engine.do(Claim("q", 3))
    engine.do(Claim("q", 2))
    assert walked(engine, "leased") == [b"0", b"1", b"2", b"3", b"4"]
    assert walked(engine, "leased", after=ids[1]) == [b"2", b"3", b"4"]


def test_dead_letters_are_met_whether_leased_or_not(engine: Engine) -> None:
    ids = fill(engine)
    engine.do(Settle([Fail(held, dead=True) for held in engine.do(Claim("q", 5))]))
    leased = engine.do(Claim("q.dlq", 2))
    assert len(leased) == 2
    assert sorted(walked(engine, "dead")) == [b"0", b"1", b"2", b"3", b"4"]
    assert walked(engine, "dead", after=ids[1]) == []
    assert sorted(walked(engine, "ready")) == [b"5", b"6"]


def test_a_walk_that_goes_on_behind_a_message_that_moved_begins_anew(engine: Engine) -> None:
    ids = fill(engine, 2)
    engine.do(Hold("q", ids[:1]))
    assert walked(engine, "ready", after=ids[0]) == [b"1"]


def test_a_walk_by_ids_meets_a_message_that_is_there_throughout_exactly_once(
    engine: Engine, clock: ManualClock
) -> None:
    random = Random(1)
    kept = set()
    for at in range(60):
        kept.add(engine.do(Enqueue("q", b"kept %d" % at, fairness_key=f"k{at % 3}")))
        clock.advance(ms=at % 2)
    held: list[Delivery] = []
    met: list[Met] = []
    for page in walk_ids(engine, queue_id(engine)):
        met += page
        engine.do(Enqueue("q", b"late"))
        held += engine.do(Claim("q", 3))
        if held:
            engine.do(Settle([Fail(held.pop(random.randrange(len(held))), retry_in="1ms")]))
        clock.advance(ms=3)
    seen = [one.raw_id for one in met]
    assert seen == sorted(seen)
    assert {find_id(one) for one in kept} == set(seen) - {
        one.raw_id for one in met if bodies([one]) == [b"late"]
    }
    assert len(seen) == len(set(seen))


def test_a_walk_by_ids_goes_on_behind_a_message_that_is_gone(engine: Engine) -> None:
    ids = fill(engine)
    engine.do(Drop("q", ids[2:4]))
    low = find_id(ids[3])
    assert low is not None
    assert bodies(list(bounded(walk_ids(engine, queue_id(engine), low), 10))) == [b"4", b"5", b"6"]
    assert bodies(list(bounded(walk_ids(engine, queue_id(engine), b"", low), 10))) == [b"0", b"1"]


def test_a_walk_by_ids_keeps_its_order_when_the_clock_went_back_before_a_reopening(
    engine: Engine, clock: ManualClock
) -> None:
    clock.advance(ms=60_000)
    fill(engine, 3)
    again = Engine(engine.store, clock=ManualClock())
    again.do(EnqueueMany("q", [NewMessage(b"later %d" % at) for at in range(3)]))
    met = list(bounded(walk_ids(again, queue_id(again)), 10))
    ids = [one.raw_id for one in met]
    assert ids == sorted(ids)
    # The store's own time does not go back with the clock, so later messages have later ids.
    assert bodies(met) == [b"0", b"1", b"2", b"later 0", b"later 1", b"later 2"]


def test_chunks_that_are_gone_are_forgotten(engine: Engine) -> None:
    ids = [engine.do(Enqueue("q", b"%d" % at)) for at in range(300)]
    engine.do(Drop("q", ids[:250]))
    blocks = engine.memory.by_name["q"].blocks
    assert len(blocks) == len(list(blocks)) == 50
    assert bodies(list(bounded(walk_ids(engine, queue_id(engine)), 1000))) == [
        b"%d" % at for at in range(250, 300)
    ]
