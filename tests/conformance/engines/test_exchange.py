"""Exchanges in the engine: one write, and no refusal after a change."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.errors import (
    InvalidRequest,
    QueueFull,
    QueueNotFound,
    StoreFull,
)
from fairlead.request import LOCAL, Request
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.store.rows import decode_value
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.queues import CreateQueue, UpdateQueue
from fairlead.verbs.settle import Settle
from tests.turns import new_place


def open_broker(store: Any = None, clock: ManualClock | None = None) -> Broker:
    broker = Broker(store or DictionaryStore(), clock=clock or ManualClock())
    if "q" not in broker.engine.memory.by_name:
        broker.do(CreateQueue("q"))
    return broker


def counts(broker: Broker) -> tuple[int, int]:
    stats = broker.stats("q")
    return stats.ready, stats.leased


def numbers(broker: Broker) -> set[int]:
    """The numbers under which anything is remembered."""
    stored = broker.engine.store.scan(Table.ANSWERS, limit=10_000)
    return {decode_value(Table.ANSWERS, raw).number for _, raw in stored}


def test_an_exchange_and_its_answer_are_one_write() -> None:
    broker = open_broker()
    broker.do(EnqueueMany("q", [NewMessage(b"a"), NewMessage(b"b")]))
    a, b = broker.do(Claim("q", 2))
    place = new_place(broker)
    before = broker.engine.store.last_commit
    requests = [Settle([Release(b), Complete(a)]), Enqueue("q", b"c"), Claim("q", 5)]
    settled, _, claimed = broker.once(Exchange(requests), **place)
    assert [result.outcome for result in settled] == ["released", "completed"]
    assert [delivery.payload for delivery in claimed] == [b"b", b"c"]
    assert (broker.engine.store.last_commit, numbers(broker)) == (before + 1, {1})
    assert broken_laws(broker.engine) == []


@pytest.mark.parametrize(
    "bad",
    [
        [EnqueueMany("none", [NewMessage(b"x")])],
        [EnqueueMany("q", [NewMessage(b"x")]), EnqueueMany("q.dlq", [NewMessage(b"x")])],
        [EnqueueMany("q", [NewMessage(b"x")]), EnqueueMany("full", [NewMessage(b"x")] * 2)],
        [Enqueue("full", b"1"), Enqueue("full", b"2")],
        [EnqueueMany("q", [NewMessage(b"x")]), Claim("none")],
        [Claim("q", limit=0)],
    ],
    ids=lambda bad: repr(bad)[:60],
)
def test_a_refused_part_leaves_the_neighbours_of_the_exchange_their_work(bad: list[Request[Any]]) -> None:
    broker = open_broker()
    broker.do(CreateQueue("full", {"max_messages": 1}))
    broker.do(Enqueue("q", b"held"))
    (held,) = broker.do(Claim("q"))
    caller = LOCAL._replace(**new_place(broker))
    with broker.engine.transaction():
        broker.do(Enqueue("q", b"before"))
        with pytest.raises((InvalidRequest, QueueNotFound, QueueFull)):
            broker.do(Exchange([Settle([Complete(held)]), *bad]), caller)
        broker.do(Enqueue("q", b"after"))
    assert counts(broker) == (2, 1)
    assert numbers(broker) == {0}
    assert broken_laws(broker.engine) == []


def test_a_write_that_fails_leaves_nothing_of_an_exchange_and_it_can_be_sent_again() -> None:
    store = FaultyStore(DictionaryStore())
    broker = open_broker(store)
    broker.do(EnqueueMany("q", [NewMessage(b"a"), NewMessage(b"b")]))
    a, b = broker.do(Claim("q", 2))
    call = Exchange([Settle([Complete(a), Fail(b)]), Enqueue("q", b"c"), Claim("q", 5)])
    place = new_place(broker)
    store.arm(1, "fail", only=["write"])
    with pytest.raises(StoreFull):
        broker.once(call, **place)
    assert (counts(broker), numbers(broker)) == ((0, 2), {0})
    settled, _, claimed = broker.once(call, **place)
    assert [result.outcome for result in settled] == ["completed", "retry"]
    assert len(claimed) == 2
    assert broken_laws(broker.engine) == []


def test_a_claim_without_room_is_empty_and_the_rest_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreFull("here", 0, 1)

    broker = open_broker()
    broker.do(EnqueueMany("q", [NewMessage(b"a"), NewMessage(b"b")]))
    (a,) = broker.do(Claim("q"))
    monkeypatch.setattr("fairlead.engine.work.exchange.claim_now", refuse)
    call, place = Exchange([Settle([Complete(a)]), Claim("q")]), new_place(broker)
    for _ in range(2):
        settled, claimed = broker.once(call, **place)
        assert ([result.outcome for result in settled], claimed) == (["completed"], [])
    assert counts(broker) == (1, 0)


def test_a_dedup_key_that_a_settle_sets_free_is_free_for_the_enqueue_behind_it() -> None:
    broker = open_broker()
    broker.do(CreateQueue("live", {"dedup": "live", "max_messages": 1}))
    broker.do(Enqueue("live", b"first", dedup_key="d"))
    (first,) = broker.do(Claim("live"))
    _, (second, again) = broker.exchange(
        [Settle([Extend(first, "1m")]), EnqueueMany("live", [NewMessage(b"x", dedup_key="d")] * 2)]
    )
    assert second == again == first.id, "it still lives"
    broker.do(CreateQueue("roomy", {"dedup": "live"}))
    broker.do(Enqueue("roomy", b"first", dedup_key="d"))
    (held,) = broker.do(Claim("roomy"))
    _, enqueued = broker.exchange([Settle([Complete(held)]), Enqueue("roomy", b"second", dedup_key="d")])
    assert enqueued != held.id
    assert [one.payload for one in broker.do(Claim("roomy", 5))] == [b"second"]
    assert broken_laws(broker.engine) == []


def test_an_enqueue_under_a_key_that_a_settle_sets_free_is_not_refused_by_a_queue_over_its_bound() -> None:
    """A refusal would come after the settle, and lose the whole transaction."""
    broker = open_broker()
    broker.do(CreateQueue("live", {"dedup": "live"}))
    broker.do(EnqueueMany("live", [NewMessage(b"%d" % n, dedup_key=f"d{n}") for n in range(3)]))
    broker.do(UpdateQueue("live", {"max_messages": 1}))
    (held,) = broker.do(Claim("live"))
    _, enqueued = broker.exchange([Settle([Complete(held)]), Enqueue("live", b"again", dedup_key="d0")])
    assert enqueued != held.id
    assert broker.stats("live").ready == 3
