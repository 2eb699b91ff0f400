"""A call that completes deliveries of one lease takes a short way; the way item by item is its oracle."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fairlead import Complete, Delivery, DeliveryRef, Extend, NewMessage
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


@pytest.mark.parametrize("seed", range(40))
def test_both_ways_answer_the_same_and_leave_the_same(seed: int) -> None:
    short = settled(seed, lambda delivery: delivery)
    long = settled(seed, lambda delivery: DeliveryRef(delivery.id, delivery.lease))
    assert short == long


def test_a_delivery_of_another_engine_completes_nothing() -> None:
    ours, theirs = opened(), opened(1_800_000_000_000)
    mine = ours.do(Claim("q", 6))
    strange = theirs.do(Claim("q", 6))
    assert [one.number for one in mine] == [one.number for one in strange]
    outcomes = {result.outcome for result in ours.do(Settle([Complete(one) for one in strange]))}
    assert outcomes == {"not_found"}
    assert {one.outcome for one in ours.do(Settle([Complete(one) for one in mine]))} == {"completed"}
