"""Sessions in the engine: a request with a number has one effect however often it comes, also late, after a crash or a
reopening, and from several connections; only its own caller gets the answer, as long as it may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest

from fairlead import Complete, Fail, NewMessage, Release
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import WORK, WORK_IN_STEPS
from fairlead.errors import (
    FairleadError,
    Forbidden,
    InvalidRequest,
    QueueNotFound,
    RequestExpired,
    SessionExpired,
    SessionFull,
    StoreFull,
    Unauthenticated,
    Unavailable,
)
from fairlead.middleware.stack import Layers
from fairlead.model.limits import MAX_SESSION_ANSWERS, MAX_SESSION_BYTES, SESSION_KEPT_MS
from fairlead.request import LOCAL, VERBS, Caller, Request, Room
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.store.rows import decode_value
from fairlead.testing import ManualClock
from fairlead.testing.faulty import Fault, FaultyStore, Killed
from fairlead.verbs.browse import Browse
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigSet
from fairlead.verbs.dead_letters import CancelIntent
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.keys import KeysChangeGrants, KeysCreate, KeysRevoke, KeysRotate, KeysSetGrants
from fairlead.verbs.operate import Drop, ReleaseStream
from fairlead.verbs.queues import CreateQueue, ListQueues, Pause, Purge, UpdateQueue
from fairlead.verbs.sessions import OpenSession, session_rule
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle
from tests.turns import new_place, next_place

HOUR_MS = 3_600_000
X = Enqueue("q", b"x")


def open_broker(store: Any = None, clock: ManualClock | None = None) -> Broker:
    broker = Broker(store or DictionaryStore(), clock=clock or ManualClock())
    if "q" not in broker.engine.memory.by_name:
        broker.do(CreateQueue("q"))
    if not broker.engine.store.scan(Table.ANSWERS, limit=1):
        broker.open_session("s")
    return broker


def counts(broker: Broker) -> tuple[int, int]:
    stats = broker.stats("q")
    return stats.ready, stats.leased


def rows(broker: Broker, table: Table = Table.ANSWERS) -> list[bytes]:
    return [key for key, _ in broker.engine.store.scan(table, limit=10_000)]


def numbers(broker: Broker) -> list[int]:
    """The numbers under which anything is remembered."""
    stored = broker.engine.store.scan(Table.ANSWERS, limit=10_000)
    return sorted(decode_value(Table.ANSWERS, raw).number for _, raw in stored)


def forget_known(broker: Broker) -> None:
    broker.engine.memory.sessions.clear()


def at(number: int, arrived: int = 0, session: str = "s", key_id: str | None = None) -> Caller:
    return Caller(key_id, "name", "test", session, number, arrived)


# The same number again


def test_answers_are_remembered_until_they_have_arrived_also_after_a_reopening() -> None:
    data, clock = DictionaryData(), ManualClock()
    broker = open_broker(DictionaryStore(data), clock)
    calls = [(Enqueue("q", b"%d" % number), at(number)) for number in range(1, 301)]
    first = [broker.do(*call) for call in calls]
    assert len({*first}) == 300
    again = open_broker(DictionaryStore(data), clock)
    assert [again.do(*call) for call in calls] == first
    assert again.open_session("s").last == 300
    again.do(X, at(301, 299))
    assert numbers(again) == [300, 301]
    assert counts(again) == (301, 0)
    assert broken_laws(again.engine) == []


def test_300_numbers_fit_in_one_transaction() -> None:
    broker = open_broker()
    with broker.engine.transaction():
        first = [broker.do(X, at(number)) for number in range(1, 301)]
        assert [broker.do(X, at(number)) for number in range(1, 301)] == first
    assert [broker.do(X, at(number)) for number in range(1, 301)] == first
    assert counts(broker) == (300, 0)
    assert broken_laws(broker.engine) == []


def test_a_session_can_be_opened_and_used_in_one_transaction() -> None:
    broker = open_broker()
    with broker.engine.transaction():
        place = new_place(broker)
        shown = broker.once(X, **place)
        broker.once(X, **next_place(place))
    with pytest.raises(RequestExpired):
        broker.once(X, **place)
    assert shown
    assert counts(broker) == (2, 0)
    assert broken_laws(broker.engine) == []


def test_numbers_may_come_in_any_order() -> None:
    broker = open_broker()
    first = {
        number: broker.do(X, at(number, arrived)) for number, arrived in ((3, 0), (1, 0), (7, 1), (5, 1))
    }
    forget_known(broker)
    assert {number: broker.do(X, at(number)) for number in (3, 5, 7)} == {n: first[n] for n in (3, 5, 7)}
    broker.do(X, at(2))
    with pytest.raises(RequestExpired):
        broker.do(X, at(1))
    assert numbers(broker) == [2, 3, 5, 7]
    assert counts(broker) == (5, 0)
    assert broken_laws(broker.engine) == []


def test_two_connections_that_send_the_same_number_get_the_same_answer() -> None:
    broker = open_broker()
    for number in range(1, 21):
        answers: list[str] = []

        def send(number: int = number, answers: list[str] = answers) -> None:
            answers.append(broker.do(X, at(number, number - 1)))

        racers = [Thread(target=send) for _ in range(4)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert len(answers) == 4
        assert len({*answers}) == 1
    assert counts(broker) == (20, 0)


def test_a_remembered_answer_is_given_only_once_it_is_synced() -> None:
    data = DictionaryData()
    store = FaultyStore(DictionaryStore(data), forgets=True)
    broker = open_broker(store)
    with broker.engine.transaction():
        # Its caller is gone before anybody waits for the sync.
        broker.do(X, at(1))
    shown = broker.do(X, at(1))
    store.cut_power()
    again = open_broker(DictionaryStore(data), broker.clock)  # type: ignore[arg-type]
    assert again.do(X, at(1)) == shown
    assert counts(again) == (1, 0)


@pytest.mark.parametrize("fault", ["fail", "die_before", "die_after", "power_cut"])
def test_a_fault_at_any_step_and_a_repeat_have_one_effect(fault: Fault) -> None:
    """The steps of an exchange are the reads, the one write of the effect and of the answer, and the sync."""
    nth, struck = 0, True
    while struck:
        nth += 1
        data, clock = DictionaryData(), ManualClock()
        store = FaultyStore(DictionaryStore(data), forgets=True)
        broker = open_broker(store, clock)
        broker.do(EnqueueMany("q", [NewMessage(b"a"), NewMessage(b"b")]), at(1))
        held = broker.do(Claim("q", 2), at(2, 1))
        broker.engine.confirm(synced=True)
        forget_known(broker)
        call = Exchange([Settle([Complete(held[0]), Fail(held[1])]), Enqueue("q", b"c"), Claim("q", 5)])
        store.arm(nth, fault)
        with suppress(Killed, FairleadError):
            broker.do(call, at(3, 2))
        struck = store.struck
        store.arm(0, "fail")
        if store.dead:
            broker = open_broker(DictionaryStore(data), clock)
        first = broker.do(call, at(3, 2))
        assert [result.outcome for result in first[0]] == ["completed", "retry"]
        for _ in range(2):
            settled, shown, claimed = broker.do(call, at(3, 2))
            assert (settled, shown, [one.id for one in claimed]) == (
                first[0],
                first[1],
                [one.id for one in first[2]],
            )
        assert sum(counts(broker)) == 2
        assert broken_laws(broker.engine) == []
    assert nth > 3


def test_a_request_that_could_not_be_written_forgets_no_answer() -> None:
    store = FaultyStore(DictionaryStore())
    broker = open_broker(store)
    shown = broker.do(X, at(1))
    store.arm(1, "fail", only=["write"])
    with pytest.raises(StoreFull):
        broker.do(X, at(2, 1))
    assert broker.do(X, at(1)) == shown
    assert counts(broker) == (1, 0)
    assert broken_laws(broker.engine) == []


def test_a_refused_request_is_not_remembered() -> None:
    broker = open_broker()
    with pytest.raises(QueueNotFound):
        broker.do(Enqueue("later", b"x"), at(1))
    broker.do(CreateQueue("later"))
    broker.do(Enqueue("later", b"x"), at(1))
    assert broker.stats("later").ready == 1


def test_a_number_that_another_request_had_is_refused() -> None:
    broker = open_broker()
    (held,) = broker.do(Exchange([X, Claim("q")]), at(1))[1]
    broker.do(EnqueueMany("q", [NewMessage(b"x")] * 2), at(2))
    others: list[tuple[Request[Any], int]] = [
        (X, 1),
        (Exchange([X]), 1),
        (Exchange([Claim("q"), X]), 1),
        (Exchange([X, Settle([Complete(held)])]), 1),
        (EnqueueMany("q", [NewMessage(b"x")] * 3), 2),
        (Claim("q"), 2),
    ]
    for request, number in others:
        with pytest.raises(InvalidRequest, match="another"):
            broker.do(request, at(number))
    assert counts(broker) == (2, 1)


# Numbers whose answers have arrived


def test_a_late_first_copy_of_an_answered_request_is_not_carried_out() -> None:
    data, clock = DictionaryData(), ManualClock()
    store = FaultyStore(DictionaryStore(data))
    broker = open_broker(store, clock)
    broker.do(X, at(1))
    broker.do(X, at(2, 1))

    def is_refused(broker: Broker) -> None:
        with pytest.raises(RequestExpired) as refused:
            broker.do(X, at(1))
        assert refused.value.fields == {"session": "s", "number": 1, "arrived": 1}

    is_refused(broker)
    # Neither loading everything anew nor a reopening forgets it.
    store.arm(1, "fail", only=["write"])
    with pytest.raises(Unavailable):
        broker.do(KeysCreate("a"))
    is_refused(broker)
    is_refused(open_broker(DictionaryStore(data), clock))


def test_a_late_first_copy_is_refused_also_in_the_transaction_of_the_next_request() -> None:
    broker = open_broker()
    broker.do(X, at(1))
    with broker.engine.transaction():
        broker.do(X, at(2, 1))
        with pytest.raises(RequestExpired):
            broker.do(X, at(1))
    assert counts(broker) == (2, 0)


def test_a_number_that_never_came_is_refused_once_it_is_said_to_be_answered() -> None:
    broker = open_broker()
    broker.do(X, at(5, 4))
    with pytest.raises(RequestExpired):
        broker.do(X, at(3))
    assert numbers(broker) == [5]


def test_a_request_that_was_sent_before_others_were_answered_does_not_take_back_what_they_said() -> None:
    data, clock = DictionaryData(), ManualClock()
    broker = open_broker(DictionaryStore(data), clock)
    assert broker.do(Claim("q"), at(4, 3)) == []
    broker.do(X, at(5, 0))
    assert numbers(broker) == [5]
    with pytest.raises(RequestExpired):
        open_broker(DictionaryStore(data), clock).do(X, at(2))


@pytest.mark.parametrize(
    ("session", "number", "arrived", "field"),
    [
        ("", 1, 0, "session"),
        (5, 1, 0, "session"),
        ("s" * 129, 1, 0, "session"),
        ("a\0b", 1, 0, "session"),
        ("s", 0, 0, "number"),
        ("s", -1, 0, "number"),
        ("s", True, 0, "number"),
        ("s", "1", 0, "number"),
        ("s", 1 << 62, 0, "number"),
        ("s", 1, 1, "arrived"),
        ("s", 3, -1, "arrived"),
        ("s", 3, 2.0, "arrived"),
    ],
)
def test_what_is_no_place_in_a_session_is_refused(
    session: Any, number: Any, arrived: Any, field: str
) -> None:
    broker = open_broker()
    with pytest.raises(InvalidRequest) as refused:
        broker.once(X, session=session, number=number, arrived=arrived)
    assert refused.value.field == field
    if field == "session":
        with pytest.raises(InvalidRequest):
            broker.open_session(session)
    assert counts(broker) == (0, 0)


# Who asks


def test_the_same_session_of_another_key_is_another_session() -> None:
    broker = open_broker()
    keys = ("a", "b", None)
    for key_id in keys[:2]:
        with pytest.raises(SessionExpired):
            broker.do(X, at(1, key_id=key_id))
        broker.do(OpenSession("s"), at(0, key_id=key_id)._replace(session=None))
    request = Exchange([X, Claim("q")])
    first = [broker.do(request, at(1, key_id=key_id)) for key_id in keys]
    assert len({shown for shown, _ in first}) == 3
    assert len({delivery.id for _, (delivery,) in first}) == 3
    again = [broker.do(request, at(1, key_id=key_id)) for key_id in keys]
    assert [(shown, [one.id for one in found]) for shown, found in again] == [
        (shown, [delivery.id]) for shown, (delivery,) in first
    ]
    broker.do(X, at(2, 1, key_id="a"))
    assert broker.do(request, at(1, key_id="b"))[0] == first[1][0], "what another key says has no effect"
    assert broken_laws(broker.engine) == []


def test_an_answer_is_not_given_once_the_right_is_gone() -> None:
    broker = open_broker()
    layers = Layers(broker, keys=True)
    key = broker.do(KeysCreate("a", ["produce:q", "consume:q"]))
    caller = layers.admit(f"Bearer {key.secret}", "test")
    call, place = Exchange([X, Claim("q")]), new_place(caller)
    first = caller.once(call, **place)
    assert repr(caller.once(call, **place)) == repr(first)
    broker.do(KeysSetGrants(key.info.id, ["consume:q"]))
    with pytest.raises(Forbidden):
        caller.once(call, **place)
    broker.do(KeysRevoke(key.info.id))
    with pytest.raises(Unauthenticated):
        caller.once(call, **place)
    assert counts(broker) == (0, 1)


def test_a_key_without_any_right_opens_no_session() -> None:
    broker = open_broker()
    key = broker.do(KeysCreate("a"))
    with pytest.raises(Forbidden):
        Layers(broker, keys=True).admit(f"Bearer {key.secret}", "test").open_session("mine")


def test_a_refusal_by_the_session_is_audited_where_the_verb_is() -> None:
    broker = open_broker()
    layers = Layers(broker)
    refused: list[tuple[Request[Any], Caller, str]] = [
        (Purge("q"), at(1), "invalid_request"),
        (Pause("q"), at(1, session="unknown"), "session_expired"),
        (KeysCreate("x"), at(1), "invalid_request"),
    ]
    for request, caller, code in refused:
        with pytest.raises(FairleadError):
            layers.handle(request, caller)
        entry = broker.audit.read(limit=1)[0]
        assert (entry.verb, entry.outcome) == (request.verb_name, code)


# Verbs


def test_every_verb_of_one_transaction_that_changes_something_is_remembered_unless_its_answer_is_secret() -> (
    None
):
    rules = {
        name: session_rule(verb.request, is_one_transaction=verb.request in WORK)
        for name, verb in VERBS.items()
    }
    for name, rule in rules.items():
        kind = VERBS[name].request
        if kind in WORK and kind.room is not Room.READS and not kind.answers_secret:
            assert rule == "remembered", name
        else:
            assert rule == ("runs" if kind.repeatable and not kind.answers_secret else "refused"), name
    assert {name for name, verb in VERBS.items() if verb.request.answers_secret} == {
        "keys.create",
        "keys.rotate",
    }
    assert {kind.verb_name for kind in [*WORK, *WORK_IN_STEPS]} == VERBS.keys()


def one_of_each(broker: Broker) -> list[Request[Any]]:
    """Acts of one transaction that are not done alike twice."""
    broker.do(EnqueueMany("q", [NewMessage(b"%d" % n, stream="t") for n in range(4)]))
    a, b = broker.do(Claim("q", 2, max_per_stream=2))
    key = broker.do(KeysCreate("a", ["produce:q"]))
    broker.do(ConfigSet("old", "value"))
    return [
        CreateQueue("new"),
        UpdateQueue("q", {"quantum": 2}),
        Pause("q"),
        ConfigSet("key", "value"),
        ConfigDelete("old"),
        Ack("q", a.id),
        Nack("q", b.id, "why"),
        EnqueueMany("q", []),
        Settle([Complete(a), Release(b)]),
        Exchange([]),
        ReleaseStream("q", "t"),
        Quarantine("q", [NewMessage(b"bad")], reason="validation_failure", error="no"),
        KeysChangeGrants(key.info.id, ["consume:q"], ["produce:q"]),
        KeysRevoke(key.info.id),
        CancelIntent(1),
        OpenSession("another"),
    ]


def test_every_act_in_a_session_is_done_once_and_answered_alike_each_time() -> None:
    data, clock = DictionaryData(), ManualClock()
    broker = open_broker(DictionaryStore(data), clock)
    acts, answers = one_of_each(broker), []
    for number, request in enumerate(acts, 1):
        if type(request) in WORK:
            answers.append(broker.do(request, at(number)))
            commit = broker.engine.store.last_commit
            assert broker.do(request, at(number)) == answers[-1]
            assert broker.engine.store.last_commit == commit
    again = open_broker(DictionaryStore(data), clock)
    remembered = [
        again.do(request, at(number)) for number, request in enumerate(acts, 1) if type(request) in WORK
    ]
    assert remembered == answers
    assert broken_laws(again.engine) == []


def test_what_others_did_after_the_first_copy_stays() -> None:
    broker = open_broker()
    broker.do(ConfigSet("key", "mine"), at(1))
    broker.do(ConfigSet("key", "theirs"))
    broker.do(ConfigSet("key", "mine"), at(1))
    assert broker.config.get("key") == "theirs"


@pytest.mark.parametrize(
    "request_",
    [Purge("q"), Goodbye("me"), Drop("q", []), KeysCreate("x"), KeysRotate("x")],
    ids=lambda one: one.verb_name,
)
def test_a_verb_that_cannot_be_remembered_and_must_not_be_repeated_is_refused(request_: Request[Any]) -> None:
    broker = open_broker()
    with pytest.raises(InvalidRequest) as refused:
        broker.do(request_, at(1))
    assert refused.value.field == "session"
    assert numbers(broker) == [0]


@pytest.mark.parametrize(
    "request_", [ListQueues(), Browse("q"), Drop("q", [], dry_run=True)], ids=lambda one: one.verb_name
)
def test_a_verb_that_may_be_repeated_simply_runs(request_: Request[Any]) -> None:
    broker = open_broker()
    assert broker.do(request_, at(1)) == broker.do(request_)
    assert numbers(broker) == [0]


# Claims


def test_a_repeated_claim_gives_what_is_still_leased_and_leases_no_more() -> None:
    data, clock = DictionaryData(), ManualClock()
    broker = open_broker(DictionaryStore(data), clock)
    broker.do(EnqueueMany("q", [NewMessage(b"%d" % n) for n in range(5)]))
    first = broker.do(Claim("q", 3), at(1))
    broker.settle([Complete(first[0])])
    again = open_broker(DictionaryStore(data), clock)
    assert [one.payload for one in again.do(Claim("q", 3), at(1))] == [b"1", b"2"]
    again.settle([Complete(one) for one in first[1:]])
    assert again.do(Claim("q", 3), at(1)) == []
    assert counts(again) == (2, 0)
    assert broken_laws(again.engine) == []


def test_a_claim_that_found_nothing_is_not_remembered_but_what_arrived_is() -> None:
    broker = open_broker()
    broker.do(X, at(1))
    broker.do(Pause("q"))
    assert broker.do(Claim("q"), at(2, 1)) == []
    assert numbers(broker) == [0]
    with pytest.raises(RequestExpired):
        broker.do(X, at(1))
    commit = broker.engine.store.last_commit
    assert broker.do(Claim("q"), at(2, 1)) == []
    assert broker.engine.store.last_commit == commit
    broker.resume("q")
    (found,) = broker.do(Claim("q"), at(2, 1))
    assert found.payload == b"x"
    assert numbers(broker) == [2]
    assert broken_laws(broker.engine) == []


def test_a_claim_in_a_session_takes_no_token_of_its_own() -> None:
    broker = open_broker()
    with pytest.raises(InvalidRequest, match="token"):
        broker.do(Claim("q", token="mine"), at(1))


def test_a_claim_that_waits_is_remembered_with_what_it_found() -> None:
    broker = open_broker()
    found: list[Any] = []
    waiting = Thread(target=lambda: found.extend(broker.do(Claim("q", wait="1m"), at(1))))
    waiting.start()
    while not broker.engine.waiters.by_queue:
        pass
    broker.do(X)
    waiting.join()
    assert [one.id for one in broker.do(Claim("q", wait="1m"), at(1))] == [found[0].id]
    assert counts(broker) == (0, 1)


# Bounds


def test_a_session_with_1024_answers_that_have_not_arrived_takes_no_more_requests() -> None:
    broker = open_broker()
    with broker.engine.transaction():
        for number in range(1, MAX_SESSION_ANSWERS + 1):
            broker.do(Exchange([]), at(number))
    number = MAX_SESSION_ANSWERS + 1
    for _ in range(2):
        with pytest.raises(SessionFull) as refused:
            broker.do(X, at(number))
        forget_known(broker)
    assert refused.value.fields["answers"] == MAX_SESSION_ANSWERS
    assert counts(broker) == (0, 0)
    assert broker.do(Exchange([]), at(5)) == [], "repeats are still answered"
    broker.do(X, at(number, 1))
    with pytest.raises(SessionFull):
        broker.do(X, at(number + 1, 1))
    broker.do(X, at(number + 2, number))
    assert numbers(broker) == [number + 2]
    assert broken_laws(broker.engine) == []


def test_a_session_with_a_mebibyte_of_answers_that_have_not_arrived_takes_no_more_requests() -> None:
    broker = open_broker()
    many = EnqueueMany("q", [NewMessage(b"x")] * (MAX_SESSION_BYTES // 36))
    broker.do(many, at(1))
    for arrived in (0, 0):
        with pytest.raises(SessionFull):
            broker.do(X, at(2, arrived))
        forget_known(broker)
    before = counts(broker)
    broker.do(X, at(2, 1))
    assert counts(broker) == (before[0] + 1, 0)
    assert broken_laws(broker.engine) == []


def test_an_answer_in_place_of_one_that_arrived_needs_no_room_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreFull("here", 0, 1)

    broker = open_broker()
    broker.do(EnqueueMany("q", [NewMessage(b"%d" % n) for n in range(4)]))
    held = broker.do(Claim("q", 4))
    broker.do(Settle([Complete(held[0])]), at(1))
    broker.do(Settle([Complete(held[1])]), at(2))
    monkeypatch.setattr(broker.engine.store, "check_room", refuse)
    with pytest.raises(StoreFull):
        broker.do(Settle([Complete(held[2])]), at(3))
    assert broker.do(Settle([Complete(held[2])]), at(3, 2))[0].outcome == "completed"


def test_memory_knows_a_bounded_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.engine.session_index.MAX_KNOWN_ANSWERS", 5)
    broker = open_broker()
    names = [f"s{n}" for n in range(10)]
    for name in names:
        broker.open_session(name)
    first = [broker.do(X, at(number, session=name)) for name in names for number in (1, 2)]
    assert len(broker.engine.memory.sessions.sessions) <= 5
    assert [broker.do(X, at(number, session=name)) for name in names for number in (1, 2)] == first
    for name in names:
        broker.do(X, at(3, 2, session=name))
    assert counts(broker) == (30, 0)
    assert broken_laws(broker.engine) == []


def test_a_request_of_a_known_session_reads_nothing_and_costs_one_row() -> None:
    store = FaultyStore(DictionaryStore())
    broker = open_broker(store)
    broker.do(X, at(1))
    written: list[tuple[str, Table]] = []
    write = store.write

    def noted(batch: Any, epoch: int, commit: int) -> bool:
        written.extend(("put", table) for table, _, _ in batch.puts)
        written.extend(("delete", table) for table, _ in batch.deletes)
        return write(batch, epoch, commit)

    store.write = noted  # type: ignore[method-assign]
    before = store.reads
    broker.do(X, at(2, 1))
    assert store.reads == before
    of_session = [(name, table) for name, table in written if table in (Table.ANSWERS, Table.SESSION_ENDS)]
    assert of_session == [("put", Table.ANSWERS)]


def test_an_answer_keeps_its_row_until_it_has_arrived() -> None:
    """Requests take rows of answers that have arrived, also of a row that only says that the session was used."""
    data, clock = DictionaryData(), ManualClock()
    broker = open_broker(DictionaryStore(data), clock)
    first = {number: broker.do(X, at(number)) for number in (1, 2)}
    clock.advance(ms=2 * HOUR_MS)
    broker.open_session("s")
    assert numbers(broker) == [0, 1, 2]
    first[3] = broker.do(X, at(3))
    broker.do(Claim("q", 9), at(4))
    assert numbers(broker) == [1, 2, 3, 4]
    for again in (broker, open_broker(DictionaryStore(data), clock)):
        assert {number: again.do(X, at(number)) for number in (1, 2, 3)} == first
        assert broken_laws(again.engine) == []
    again.do(X, at(5, 3))
    assert numbers(again) == [4, 5]
    again.do(X, at(6, 5))
    again = open_broker(DictionaryStore(data), clock)
    for number in range(1, 6):
        with pytest.raises(RequestExpired):
            again.do(X, at(number))
    assert numbers(again) == [6]
    assert broken_laws(again.engine) == []


# The end of their lives


def test_a_session_that_nobody_used_is_forgotten_and_a_late_repeat_is_refused() -> None:
    clock = ManualClock()
    broker = open_broker(clock=clock)
    call = X, at(1)
    first = broker.do(*call)
    clock.advance(ms=SESSION_KEPT_MS)
    assert broker.do(*call) == first
    clock.advance(ms=2 * HOUR_MS)
    for late in (call, (X, at(2, 1))):
        with pytest.raises(SessionExpired) as refused:
            broker.do(*late)
    assert refused.value.fields == {"session": "s", "number": 2}
    assert (rows(broker), rows(broker, Table.SESSION_ENDS)) == ([], [])
    assert counts(broker) == (1, 0)
    assert broken_laws(broker.engine) == []


def test_a_session_that_is_used_is_kept() -> None:
    data, clock = DictionaryData(), ManualClock()
    broker = open_broker(DictionaryStore(data), clock)
    uses: list[Callable[[int], object]] = [
        lambda number: broker.do(X, at(number, number - 1)),
        lambda number: broker.open_session("s"),
        lambda number: broker.do(Claim("empty"), at(number)),
    ]
    broker.do(CreateQueue("empty"))
    for number in range(1, 10):
        clock.advance(ms=20 * HOUR_MS)
        uses[number % 3](number)
        assert len(rows(broker, Table.SESSION_ENDS)) == 1
        assert broken_laws(broker.engine) == []
    assert open_broker(DictionaryStore(data), clock).do(X, at(10, 9))


def test_sessions_are_forgotten_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.engine.sessions._STEP_SESSIONS", 2)
    monkeypatch.setattr("fairlead.engine.sessions._STEP_ANSWERS", 3)
    clock = ManualClock()
    broker = open_broker(clock=clock)
    for name in ("a", "b", "c", "d"):
        broker.open_session(name)
        for number in (1, 2, 3):
            broker.do(X, at(number, session=name))
    commit = broker.engine.store.last_commit
    clock.advance(ms=SESSION_KEPT_MS + 2 * HOUR_MS)
    assert (rows(broker), rows(broker, Table.SESSION_ENDS)) == ([], [])
    assert broker.engine.store.last_commit >= commit + 4
    assert broken_laws(broker.engine) == []


@pytest.mark.parametrize("is_known", [True, False])
def test_a_session_that_was_closed_leaves_nothing_and_a_late_repeat_is_refused(is_known: bool) -> None:
    broker = open_broker()
    for number in (1, 2, 5):
        broker.do(X, at(number))
    broker.open_session("other")
    if not is_known:
        forget_known(broker)
    assert broker.close_session("s") is True
    assert broker.close_session("s") is False
    assert (len(rows(broker)), len(rows(broker, Table.SESSION_ENDS))) == (1, 1)
    for number in (1, 2, 3, 5, 6):
        with pytest.raises(SessionExpired):
            broker.do(X, at(number))
    assert counts(broker) == (3, 0)
    assert broken_laws(broker.engine) == []
    assert broker.open_session("s").last == 0


def test_a_session_is_closed_by_its_own_key_alone() -> None:
    broker = open_broker()
    layers = Layers(broker, keys=True)
    one, two = [
        layers.admit(f"Bearer {broker.keys.create(name, ['produce:q']).secret}", "test") for name in "ab"
    ]
    one.open_session("mine")
    assert two.close_session("mine") is False
    assert one.once(X, session="mine", number=1)
    assert one.close_session("mine") is True


def test_a_session_is_opened_used_and_closed_in_one_transaction() -> None:
    broker = open_broker()
    with broker.engine.transaction():
        broker.open_session("t")
        broker.do(X, at(1, session="t"))
        assert broker.close_session("t") is True
        with pytest.raises(SessionExpired):
            broker.do(X, at(2, session="t"))
    assert counts(broker) == (1, 0)
    assert len(rows(broker)) == 1
    assert broken_laws(broker.engine) == []


@pytest.mark.parametrize("fault", ["die_before", "die_after"])
def test_a_crash_while_a_session_is_closed_leaves_all_of_it_or_nothing(fault: Fault) -> None:
    data, clock = DictionaryData(), ManualClock()
    store = FaultyStore(DictionaryStore(data))
    broker = open_broker(store, clock)
    first = [broker.do(X, at(number)) for number in (1, 2)]
    store.arm(1, fault, only=("write",))
    with suppress(Killed):
        broker.close_session("s")
    again = Broker(DictionaryStore(data), clock=clock)
    if fault == "die_before":
        assert [again.do(X, at(number)) for number in (1, 2)] == first
        assert again.close_session("s") is True
    assert (rows(again), rows(again, Table.SESSION_ENDS)) == ([], [])
    with pytest.raises(SessionExpired):
        again.do(X, at(1))
    assert counts(again) == (2, 0)
    assert broken_laws(again.engine) == []


def test_a_step_of_the_wall_clock_forgets_no_session() -> None:
    clock = ManualClock()
    broker = open_broker(clock=clock)
    first = broker.do(X, at(1))
    clock.jump(ms=48 * HOUR_MS)
    clock.advance(ms=2 * HOUR_MS)
    clock.jump(ms=-48 * HOUR_MS)
    assert broker.do(X, at(1)) == first
    assert counts(broker) == (1, 0)


def test_the_first_request_of_a_session_that_was_not_opened_is_refused() -> None:
    """A late copy of it would else make the session again, and have a second effect."""
    broker = open_broker()
    with pytest.raises(SessionExpired):
        broker.once(X, session="unknown", number=1)
    assert counts(broker) == (0, 0)


def test_a_session_says_how_far_it_has_come() -> None:
    broker = open_broker()
    assert (broker.open_session("s").arrived, broker.open_session("s").last) == (0, 0)
    broker.do(X, at(4, 2))
    broker.do(X, at(3))
    info = broker.open_session("s")
    assert (info.session, info.arrived, info.last) == ("s", 2, 4)
    broker.do(Claim("q", 9), LOCAL._replace(session="s", number=9, arrived=8))
    assert (broker.open_session("s").arrived, broker.open_session("s").last) == (8, 9)
