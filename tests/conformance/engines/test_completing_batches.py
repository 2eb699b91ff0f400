"""A call that completes deliveries of one lease takes a short way; the way item by item is its oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, Delivery, DeliveryRef, Extend, NewMessage, Release
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.model.settle import Handle, SettleResult
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle


def opened(prefix_ms: int = 1_700_000_000_000) -> Engine:
    engine = Engine(DictionaryStore(), clock=ManualClock(prefix_ms))
    engine.do(CreateQueue("q", {"visibility_timeout": "10m"}))
    for batch in range(3):
        streams = [f"s{batch}", None]
        engine.do(
            EnqueueMany(
                "q", [NewMessage(b"x", fairness_key=f"k{n % 3}", stream=streams[n % 2]) for n in range(6)]
            )
        )
    return engine


def settled(seed: int, handle: Callable[[Delivery], Handle]) -> tuple[list[SettleResult], list[str]]:
    rng, engine = random.Random(seed), opened()
    deliveries: list[Delivery] = engine.do(Claim("q", 20))
    results: list[SettleResult] = []
    while deliveries:
        some = [deliveries.pop(rng.randrange(len(deliveries))) for _ in range(min(len(deliveries), 4))]
        if rng.random() < 0.3:
            engine.do(Settle([Extend(some[0], "20m")]))
        if rng.random() < 0.3:
            some.append(some[0])
        progress = 4 if rng.random() < 0.1 else 0
        results += engine.do(Settle([Complete(handle(one), progress) for one in some]))
        assert broken_laws(engine) == []
    return results, [str(one.payload) for one in engine.do(Claim("q", 20))]


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(40))
def test_both_ways_answer_the_same_and_leave_the_same(seed: int) -> None:
    short = settled(seed, lambda delivery: delivery)
    long = settled(seed, lambda delivery: DeliveryRef(delivery.id, delivery.lease))
    assert short == long


#: Of the first six deliveries of an engine, four more of another claim, and six of another engine with the same numbers.
MIXES: dict[str, Callable[[list[Delivery], list[Delivery], list[Delivery]], list[Delivery]]] = {
    "as they came": lambda ours, others, strange: ours,
    "backwards": lambda ours, others, strange: ours[::-1],
    "some": lambda ours, others, strange: ours[1:4],
    "one of them twice": lambda ours, others, strange: [*ours[:5], ours[0]],
    "all, and one of them twice": lambda ours, others, strange: [*ours, ours[0]],
    "one of another claim": lambda ours, others, strange: [*ours[:5], others[0]],
    "one of another engine": lambda ours, others, strange: [*ours[:3], strange[3], *ours[4:]],
    "the last one of another engine": lambda ours, others, strange: [*ours[:5], strange[5]],
    "one of another claim in between": lambda ours, others, strange: [ours[0], others[-1], *ours[1:]],
}


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_a_claim_that_is_completed_as_a_whole_ends_like_one_item_by_item(mix: str, *, is_split: bool) -> None:
    answers: list[object] = []
    for handle in (lambda one: one, lambda one: DeliveryRef(one.id, one.lease)):
        engine, theirs = opened(), opened(1_800_000_000_000)
        ours, others = engine.do(Claim("q", 6)), engine.do(Claim("q", 4))
        strange = theirs.do(Claim("q", 6))
        assert [one.number for one in ours] == [one.number for one in strange]
        if is_split:
            engine.do(Settle([Extend(ours[1], "20m")]))
        items = [Complete(handle(one)) for one in MIXES[mix](ours, others, strange)]
        for _ in range(2):
            answers.append(engine.do(Settle(items)))
            assert broken_laws(engine) == []
        answers.append(sorted(engine.memory.held))
    assert answers[:3] == answers[3:]


@pytest.mark.parametrize("progress", [3, -1, 1 << 70, "none"])
def test_progress_of_one_item_is_looked_at(progress: Any) -> None:
    answers = []
    for handle in (lambda one: one, lambda one: DeliveryRef(one.id, one.lease)):
        engine = opened()
        first, *others = engine.do(Claim("q", 6))
        items = [*[Complete(handle(one)) for one in others], Complete(handle(first), progress)]
        answers.append(engine.do(Settle(items)))
        assert broken_laws(engine) == []
    assert answers[0] == answers[1]
    assert (answers[0][-1].outcome == "completed") == (progress == 3)


@pytest.mark.parametrize("late", [range(6), range(1), range(5, 6), range(2, 4)])
def test_deliveries_of_an_earlier_claim_are_late(late: range) -> None:
    engine = opened()
    before = engine.do(Claim("q", 6))
    engine.do(Settle([Release(one, keep_order=True) for one in before]))
    now = engine.do(Claim("q", 6))
    assert [one.number for one in now] == [one.number for one in before]
    some = [before[at] if at in late else now[at] for at in range(6)]
    results = engine.do(Settle([Complete(one) for one in some]))
    assert [result.outcome for result in results] == [
        "lost_lease" if at in late else "completed" for at in range(6)
    ]
    assert sorted(engine.memory.held) == sorted([now[at].number for at in late])


def test_a_delivery_of_another_engine_completes_nothing() -> None:
    ours, theirs = opened(), opened(1_800_000_000_000)
    mine = ours.do(Claim("q", 6))
    strange = theirs.do(Claim("q", 6))
    assert [one.number for one in mine] == [one.number for one in strange]
    outcomes = {result.outcome for result in ours.do(Settle([Complete(one) for one in strange]))}
    assert outcomes == {"not_found"}
    assert {one.outcome for one in ours.do(Settle([Complete(one) for one in mine]))} == {"completed"}
