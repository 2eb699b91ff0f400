"""Exchanges and remembered answers in the engine: one write, no refusal after a change, and answers that are given
only to their callers, as long as they may ask.
"""

from __future__ import annotations

from typing import Any

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.errors import (
    Forbidden,
    InvalidRequest,
    QueueFull,
    QueueNotFound,
    RequestExpired,
    StoreFull,
    Unauthenticated,
    Unavailable,
)
from fairlead.middleware.stack import Layers
from fairlead.model.ids import IdSource, show_id
from fairlead.request import LOCAL, Caller, Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.audit import AuditRead
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.keys import KeysCreate, KeysRevoke, KeysSetGrants
from fairlead.verbs.queues import CreateQueue, Pause, UpdateQueue
from fairlead.verbs.settle import Settle

MINUTE_MS = 60_000
IDS = IdSource()


def open_broker(store: Any = None, clock: ManualClock | None = None) -> Broker:
    broker = Broker(store or DictionaryStore(), clock=clock or ManualClock())
    if "q" not in broker.engine.memory.by_name:
        broker.do(CreateQueue("q"))
    return broker


def new_id(broker: Broker) -> str:
    return show_id(IDS.next(broker.clock.now_ms(), 1)[0])


def counts(broker: Broker) -> tuple[int, int]:
    stats = broker.stats("q")
    return stats.ready, stats.leased


def answer_rows(broker: Broker) -> int:
    return len(broker.engine.store.scan(Table.ANSWERS, limit=10_000))


def test_an_exchange_and_its_answer_are_one_write() -> None:
    broker = open_broker()
    broker.do(EnqueueMany("q", [NewMessage(b"a"), NewMessage(b"b")]))
    a, b = broker.do(Claim("q", 2))
    before = broker.engine.store.last_commit
    requests = [Settle([Release(b), Complete(a)]), Enqueue("q", b"c"), Claim("q", 5)]
    settled, _, claimed = broker.once(Exchange(requests), new_id(broker))
    assert [result.outcome for result in settled] == ["released", "completed"]
    assert [delivery.payload for delivery in claimed] == [b"b", b"c"]
    assert (broker.engine.store.last_commit, answer_rows(broker)) == (before + 1, 1)
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
    caller = LOCAL._replace(request_id=new_id(broker))
    with broker.engine.transaction():
        broker.do(Enqueue("q", b"before"))
        with pytest.raises((InvalidRequest, QueueNotFound, QueueFull)):
            broker.do(Exchange([Settle([Complete(held)]), *bad]), caller)
        broker.do(Enqueue("q", b"after"))
    assert counts(broker) == (2, 1)
    assert answer_rows(broker) == 0
    assert broken_laws(broker.engine) == []


def test_a_write_that_fails_leaves_nothing_of_an_exchange_and_it_can_be_sent_again() -> None:
    store = FaultyStore(DictionaryStore())
    broker = open_broker(store)
    broker.do(EnqueueMany("q", [NewMessage(b"a"), NewMessage(b"b")]))
    a, b = broker.do(Claim("q", 2))
    call = Exchange([Settle([Complete(a), Fail(b)]), Enqueue("q", b"c"), Claim("q", 5)]), new_id(broker)
    store.arm(1, "fail", only=["write"])
    with pytest.raises(StoreFull):
        broker.once(*call)
    assert (counts(broker), answer_rows(broker)) == ((0, 2), 0)
    settled, _, claimed = broker.once(*call)
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
    call = Exchange([Settle([Complete(a)]), Claim("q")]), new_id(broker)
    for _ in range(2):
        settled, claimed = broker.once(*call)
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


# The same request again


def test_300_answers_are_remembered_also_after_a_reopening() -> None:
    data, clock = DictionaryData(), ManualClock()
    broker = open_broker(DictionaryStore(data), clock)
    calls = [(Enqueue("q", b"%d" % n), new_id(broker)) for n in range(300)]
    first = [broker.once(*call) for call in calls]
    again = open_broker(DictionaryStore(data), clock)
    assert [again.once(*call) for call in calls] == first
    assert counts(again) == (300, 0)
    assert broken_laws(again.engine) == []


def test_300_requests_under_ids_fit_in_one_transaction() -> None:
    broker = open_broker()
    callers = [LOCAL._replace(request_id=new_id(broker)) for _ in range(300)]
    with broker.engine.transaction():
        first = [broker.do(Enqueue("q", b"x"), caller) for caller in callers]
        assert [broker.do(Enqueue("q", b"x"), caller) for caller in callers] == first
    assert [broker.do(Enqueue("q", b"x"), caller) for caller in callers] == first
    assert counts(broker) == (300, 0)


def test_a_remembered_answer_is_given_only_once_it_is_synced() -> None:
    data = DictionaryData()
    store = FaultyStore(DictionaryStore(data), forgets=True)
    broker = open_broker(store)
    caller = LOCAL._replace(request_id=new_id(broker))
    with broker.engine.transaction():
        # Its caller is gone before anybody waits for the sync.
        broker.do(Enqueue("q", b"x"), caller)
    shown = broker.do(Enqueue("q", b"x"), caller)
    store.cut_power()
    again = open_broker(DictionaryStore(data), broker.clock)  # type: ignore[arg-type]
    assert again.do(Enqueue("q", b"x"), caller) == shown
    assert counts(again) == (1, 0)


def test_an_answer_is_not_given_to_another_key() -> None:
    broker = open_broker()
    callers = [Caller(key_id, "name", "test", new_id(broker)) for key_id in ("a", "b", None)]
    callers = [caller._replace(request_id=callers[0].request_id) for caller in callers]
    request = Exchange([Enqueue("q", b"x"), Claim("q")])
    first = [broker.do(request, caller) for caller in callers]
    assert len({shown for shown, _ in first}) == 3
    assert len({delivery.id for _, (delivery,) in first}) == 3
    again = [broker.do(request, caller) for caller in callers]
    assert [(shown, [one.id for one in found]) for shown, found in again] == [
        (shown, [delivery.id]) for shown, (delivery,) in first
    ]
    assert counts(broker) == (0, 3)


def test_an_answer_is_not_given_once_the_right_is_gone() -> None:
    broker = open_broker()
    layers = Layers(broker, keys=True)  # type: ignore[arg-type]
    key = broker.do(KeysCreate("a", ["produce:q", "consume:q"]))
    caller = layers.admit(f"Bearer {key.secret}", "test")
    call = Exchange([Enqueue("q", b"x"), Claim("q")]), new_id(broker)
    first = caller.once(*call)
    assert repr(caller.once(*call)) == repr(first)
    broker.do(KeysSetGrants(key.info.id, ["consume:q"]))
    with pytest.raises(Forbidden):
        caller.once(*call)
    broker.do(KeysRevoke(key.info.id))
    with pytest.raises(Unauthenticated):
        caller.once(*call)
    assert counts(broker) == (0, 1)


def test_a_request_that_is_not_remembered_takes_no_id() -> None:
    broker = open_broker()
    for request in (Pause("q"), Claim("q"), AuditRead()):
        with pytest.raises(InvalidRequest, match="request_id"):
            broker.once(request, new_id(broker))
    assert not broker.engine.memory.by_name["q"].record.paused


def test_an_answer_that_has_arrived_is_forgotten_and_its_request_is_not_carried_out_again() -> None:
    store = FaultyStore(DictionaryStore())
    broker = open_broker(store)
    first, second, third = new_id(broker), new_id(broker), new_id(broker)
    broker.once(Enqueue("q", b"a"), first)
    broker.once(Enqueue("q", b"b"), second, answered=[first])
    assert answer_rows(broker) == 1
    with pytest.raises(InvalidRequest, match="was answered"):
        broker.once(Enqueue("q", b"a"), first)
    # Loading everything anew forgets nothing of it.
    store.arm(1, "fail", only=["write"])
    with pytest.raises(Unavailable):
        broker.do(KeysCreate("a"))
    with pytest.raises(InvalidRequest, match="was answered"):
        broker.once(Enqueue("q", b"a"), first)
    broker.once(Exchange([]), third, answered=[second])
    assert counts(broker) == (2, 0)
    assert broken_laws(broker.engine) == []


def test_a_request_that_could_not_be_written_forgets_no_answer() -> None:
    store = FaultyStore(DictionaryStore())
    broker = open_broker(store)
    first, second = new_id(broker), new_id(broker)
    shown = broker.once(Enqueue("q", b"a"), first)
    store.arm(1, "fail", only=["write"])
    with pytest.raises(StoreFull):
        broker.once(Enqueue("q", b"b"), second, answered=[first])
    assert broker.once(Enqueue("q", b"a"), first) == shown
    assert counts(broker) == (1, 0)


def test_a_copy_of_an_answered_request_is_refused_also_in_the_same_transaction() -> None:
    broker = open_broker()
    first, second = new_id(broker), new_id(broker)
    broker.once(Enqueue("q", b"a"), first)
    with broker.engine.transaction():
        broker.once(Enqueue("q", b"b"), second, answered=[first])
        with pytest.raises(InvalidRequest, match="was answered"):
            broker.once(Enqueue("q", b"a"), first)
    assert counts(broker) == (2, 0)


# The end of their lives


def test_answers_are_forgotten_after_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.engine.answers._STEP", 2)
    clock = ManualClock()
    broker = open_broker(clock=clock)
    calls = [(Enqueue("q", b"x"), new_id(broker)) for _ in range(5)]
    first = [broker.once(*call) for call in calls]
    clock.advance(ms=10 * MINUTE_MS)
    assert [broker.once(*call) for call in calls] == first
    clock.advance(ms=1)
    with pytest.raises(RequestExpired):
        broker.once(*calls[0])
    assert answer_rows(broker) == 5
    clock.advance(ms=10 * MINUTE_MS)
    clock.advance(ms=MINUTE_MS)
    assert answer_rows(broker) == 0
    assert broken_laws(broker.engine) == []


def test_a_clock_that_was_ahead_for_a_while_forgets_no_answer() -> None:
    clock = ManualClock()
    broker = open_broker(clock=clock)
    clock.advance(ms=30 * MINUTE_MS)
    call = Enqueue("q", b"x"), new_id(broker)
    first = broker.once(*call)
    clock.jump(ms=60 * MINUTE_MS)
    clock.advance(ms=2 * MINUTE_MS)
    clock.jump(ms=-60 * MINUTE_MS)
    assert broker.once(*call) == first
    assert counts(broker) == (1, 0)
