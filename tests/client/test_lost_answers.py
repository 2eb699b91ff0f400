"""The connection breaks after the server has done its work: nothing is doubled, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, Extend, NewMessage, Release, errors
from fairlead.client.client import BulkClient
from fairlead.errors import AnswerLost, Overloaded, ServerStopping, ServerUnreachable, SessionExpired
from fairlead.request import LOCAL, Caller
from fairlead.testing.engine import engine_of, forget_sessions, rows_in
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle
from fairlead.wire.calls import ClaimCall, EnqueueCall, ExchangeCall, SettleCall, decode
from fairlead.wire.numbered import Numbered
from tests.client.scene import PATIENCE_S, Scene, until
from tests.turns import new_place, next_place, turn


def replace_numbered_work(
    scene: Scene, patch: pytest.MonkeyPatch, replacement: Callable[[Callable[[], object], Caller], object]
) -> None:
    """`replacement` runs in the place of each request that has a number, and gets its work as a function."""
    engine = engine_of(scene.broker)
    do = engine.do

    def replaced(request: Any, caller: Caller = LOCAL) -> object:
        if caller.session is None:
            return do(request, caller)
        return replacement(lambda: do(request, caller), caller)

    patch.setattr(engine, "do", replaced)


@pytest.mark.parametrize("times", [1, 3])
def test_an_enqueue_whose_answer_is_lost_is_one_message(scene: Scene, times: int) -> None:
    client, transport = scene.client()
    transport.lose("enqueue", times)
    message_id = client.enqueue("q", b"once")
    assert scene.payloads() == [b"once"]
    assert scene.broker.find(message_id).payload == b"once"
    places = {place_of(decode(metadata, EnqueueCall)) for metadata in transport.requests("enqueue")}
    assert (len(transport.requests("enqueue")), len(places)) == (times + 1, 1)


def test_a_batch_whose_answer_is_lost_keeps_its_order_and_ids(scene: Scene) -> None:
    client, transport = scene.client()
    transport.lose("enqueue")
    ids = client.enqueue_many("q", [NewMessage(b"%d" % at) for at in range(20)])
    assert [info.id for info in scene.broker.peek("q", limit=100)] == ids


def test_a_settle_whose_answer_is_lost_says_what_it_did(scene: Scene) -> None:
    client, transport = scene.client()
    client.enqueue_many("q", [NewMessage(b"a"), NewMessage(b"b"), NewMessage(b"c")])
    first, second, third = client.claim("q", limit=3)
    transport.lose("settle", 2)
    results = client.settle([Complete(first), Release(second), Extend(third)])
    assert [result.outcome for result in results] == ["completed", "released", "extended"]
    assert scene.counts() == (1, 0, 1, 0)


def test_a_claim_whose_answer_is_lost_gives_the_same_deliveries(scene: Scene) -> None:
    client, transport = scene.client()
    ids = client.enqueue_many("q", [NewMessage(b"%d" % at) for at in range(4)])
    transport.lose("claim")
    claimed = client.claim("q", limit=2)
    assert [delivery.id for delivery in claimed] == ids[:2]
    assert scene.counts() == (2, 0, 2, 0)
    assert all(result.ok for result in client.settle([Complete(delivery) for delivery in claimed]))


def test_two_claims_are_not_taken_for_one(scene: Scene) -> None:
    client, transport = scene.client()
    client.enqueue_many("q", [NewMessage(b"a"), NewMessage(b"b")])
    assert [client.claim("q")[0].payload for _ in range(2)] == [b"a", b"b"]
    tokens = [decode(metadata, ClaimCall).token for metadata in transport.requests("claim")]
    assert None not in tokens
    assert len({*tokens}) == 2


def test_an_exchange_whose_answer_is_lost_takes_effect_once(scene: Scene) -> None:
    client, transport = scene.client()
    client.enqueue("q", b"work")
    (delivery,) = client.claim("q")
    transport.lose("exchange")
    done = turn(
        client,
        "me",
        settle=[Complete(delivery)],
        enqueue={"q": [NewMessage(b"next")]},
        claim={"queue": "q", "limit": 5},
    )
    assert [result.outcome for result in done.settled] == ["completed"]
    assert [found.payload for found in done.deliveries] == [b"next"]
    assert scene.counts() == (0, 0, 1, 0)


def test_gathered_calls_whose_answer_is_lost_are_each_one_message(scene: Scene) -> None:
    client, transport = scene.client()
    transport.lose("enqueue", 5)
    threads = [threading.Thread(target=lambda at=at: client.enqueue("q", b"%d" % at)) for at in range(20)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(scene.payloads()) == sorted(b"%d" % at for at in range(20))


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.create_queue("new"),
        lambda client: client.purge("q"),
        lambda client: client.delete_queue("q"),
        lambda client: client.retry("q", []),
        lambda client: client.goodbye("me"),
        lambda client: client.config.delete("a"),
    ],
    ids=["create_queue", "purge", "delete_queue", "retry", "goodbye", "config.delete"],
)
def test_a_verb_that_must_not_be_repeated_says_that_its_answer_is_lost(
    scene: Scene, call: Callable[[BulkClient], object]
) -> None:
    client, transport = scene.client()
    client.config.set("a", "b")
    transport.lose("request")
    sent = len(transport.requests("request"))
    with pytest.raises(AnswerLost):
        call(client)
    assert len(transport.requests("request")) == sent + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.stats("q"),
        lambda client: client.pause("q"),
        lambda client: client.config.set("a", "b"),
        lambda client: client.drop("q", [], dry_run=True),
    ],
    ids=["stats", "pause", "config.set", "dry run"],
)
def test_a_verb_that_may_be_repeated_is(scene: Scene, call: Callable[[BulkClient], object]) -> None:
    client, transport = scene.client()
    transport.lose("request", 2)
    call(client)
    assert len(transport.requests("request")) == 3


def test_a_verb_of_which_nothing_was_sent_is_tried_again(scene: Scene) -> None:
    client, transport = scene.client()
    transport.refuse("request", 3)
    assert client.create_queue("new").name == "new"


def place_of(call: Numbered) -> tuple[str, int, int]:
    return call.session, call.number, call.arrived


def test_the_server_remembers_only_the_last_request(scene: Scene) -> None:
    client, transport = scene.client()
    for _ in range(10):
        client.enqueue("q", b"")
    client.settle([Complete(delivery) for delivery in client.claim("q", limit=5)])
    calls = [decode(metadata, EnqueueCall) for metadata in transport.requests("enqueue")]
    assert [(call.number, call.arrived) for call in calls] == [(n, n - 1) for n in range(1, 11)]
    (settle,) = [decode(metadata, SettleCall) for metadata in transport.requests("settle")]
    assert place_of(settle) == (calls[0].session, 11, 10), "requests of all kinds share a session"
    assert len(rows_in(scene.broker, "answers")) == 1


def test_after_a_request_that_was_refused_the_server_forgets_the_one_before(scene: Scene) -> None:
    client, transport = scene.client()
    client.enqueue("q", b"")
    with pytest.raises(errors.QueueNotFound):
        client.enqueue("nowhere", b"")
    client.enqueue("q", b"")
    calls = [decode(metadata, EnqueueCall) for metadata in transport.requests("enqueue")]
    assert [(call.number, call.arrived) for call in calls] == [(1, 0), (2, 1), (3, 2)]
    assert len(rows_in(scene.broker, "answers")) == 1


def test_requests_under_way_together_have_a_session_each_and_later_ones_use_them_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, transport = scene.client()
    together = threading.Barrier(2)

    def meet(work: Callable[[], object], caller: Caller) -> object:
        together.wait(PATIENCE_S)
        return work()

    with monkeypatch.context() as patch:
        replace_numbered_work(scene, patch, meet)
        threads = [threading.Thread(target=client.exchange, args=([],)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    turn(client, "me")
    calls = [decode(metadata, ExchangeCall) for metadata in transport.requests("exchange")]
    assert sorted(call.number for call in calls) == [1, 1, 2]
    assert all(call.arrived == call.number - 1 for call in calls)
    assert len({call.session for call in calls}) == 2


def test_a_session_that_the_server_has_forgotten_is_followed_by_another(scene: Scene) -> None:
    client, transport = scene.client()
    client.enqueue("q", b"1")
    forget_sessions(scene.broker)
    client.enqueue("q", b"2")
    client.enqueue("q", b"3")
    assert scene.payloads() == [b"1", b"2", b"3"]
    numbers = [decode(metadata, EnqueueCall).number for metadata in transport.requests("enqueue")]
    assert numbers == [1, 2, 1, 2]


def test_after_a_restart_a_repeat_has_no_second_effect_and_the_session_goes_on(scene: Scene) -> None:
    client, transport = scene.client()
    transport.lose("enqueue")
    client.enqueue("q", b"once")
    scene.restart_door()
    client.enqueue("q", b"more")
    assert scene.payloads() == [b"once", b"more"]
    sessions = {decode(metadata, EnqueueCall).session for metadata in transport.requests("enqueue")}
    assert len(sessions) == 1


def test_an_opening_whose_answer_is_lost_opens_one_session(scene: Scene) -> None:
    client, transport = scene.client()
    transport.lose("request", 3)
    client.enqueue("q", b"once")
    assert scene.payloads() == [b"once"]
    assert len(rows_in(scene.broker, "session_ends")) == 1


def test_a_server_that_stays_away_is_unreachable_after_the_time_allowed(scene: Scene) -> None:
    client, transport = scene.client(retry_for_ms=300)
    transport.refuse("enqueue", 1_000)
    with pytest.raises(ServerUnreachable, match="refused"):
        client.enqueue("q", b"")
    assert scene.counts() == (0, 0, 0, 0)


def test_a_request_that_was_sent_and_given_up_has_a_fate_that_is_not_known(scene: Scene) -> None:
    client, transport = scene.client(retry_for_ms=100)
    transport.lose("enqueue")
    transport.refuse("enqueue", 1000)
    with pytest.raises(AnswerLost):
        client.enqueue("q", b"")


def test_a_question_that_was_sent_and_given_up_is_only_unanswered(scene: Scene) -> None:
    client, transport = scene.client(retry_for_ms=100)
    for verb in ("claim", "request"):
        transport.lose(verb)
        transport.refuse(verb, 1000)
    with pytest.raises(ServerUnreachable):
        client.claim("q")
    with pytest.raises(ServerUnreachable):
        client.stats("q")


def test_an_overloaded_server_is_given_the_time_it_asks_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = scene.client()
    answers = [Overloaded("calls", 1, 120), Overloaded("calls", 1, 120)]
    pauses: list[int] = []
    wait = client._core.pauses.wait
    monkeypatch.setattr(client._core.pauses, "wait", lambda ms: (pauses.append(ms), wait(ms))[1])
    refuse_some(scene, monkeypatch, answers)
    client.enqueue("q", b"")
    assert answers == []
    assert len(pauses) == 2
    assert min(pauses) >= 120


def test_a_server_that_stays_overloaded_is_said_to_be(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = scene.client(retry_for_ms=50)
    refuse_some(scene, monkeypatch, [Overloaded("calls", 1, 10)] * 1000)
    with pytest.raises(Overloaded):
        client.enqueue("q", b"")


@pytest.mark.parametrize("error", [ServerStopping, errors.BrokerClosed])
def test_a_server_that_is_stopping_is_one_to_come_back_to(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: type[errors.FairleadError]
) -> None:
    client, _ = scene.client()
    answers = [error(), error()]
    refuse_some(scene, monkeypatch, answers)
    client.enqueue("q", b"back again")
    assert answers == []
    assert scene.payloads() == [b"back again"]


def test_after_an_outage_too_long_to_repeat_the_answer_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the first copy was carried out can no longer be known: a new number might do it twice."""
    client, transport = scene.client()
    transport.lose("enqueue")
    seen = 0

    def too_old(work: Callable[[], object], caller: Caller) -> object:
        nonlocal seen
        seen += 1
        if seen == 1:
            return work()
        raise SessionExpired(str(caller.session), caller.number)

    replace_numbered_work(scene, monkeypatch, too_old)
    with pytest.raises(AnswerLost):
        client.enqueue("q", b"once")
    assert scene.payloads() == [b"once"]
    assert len(transport.requests("enqueue")) == 2


def test_a_heartbeat_whose_answer_is_lost_loses_nothing(scene: Scene) -> None:
    scene.broker.create_queue("short", visibility_timeout="2s", retry="none")
    client, transport = scene.client()
    message_id = client.enqueue("short", b"")
    (delivery,) = client.claim("short")
    transport.lose("settle", 3)
    until(lambda: len(transport.requests("settle")) > 5, "more heartbeats")
    assert scene.broker.find(message_id).where == "leased"
    assert client.settle([Complete(delivery)])[0].outcome == "completed"


def test_a_session_of_the_callers_own_is_used(scene: Scene) -> None:
    client, transport = scene.client()
    place = new_place(client)
    transport.lose("exchange")
    for _ in range(2):
        done = turn(client, "me", enqueue={"q": [NewMessage(b"once")]}, place=place)
    assert scene.payloads() == [b"once"]
    assert done.enqueued == {"q": [scene.broker.peek("q")[0].id]}
    assert client.open_session(place["session"]).last == 1


OWN: dict[str, Callable[[BulkClient], Any]] = {
    "enqueue": lambda client: Enqueue("q", b"new"),
    "settle": lambda client: Settle([Release(client.claim("q")[0])]),
    "claim": lambda client: Claim("q"),
    "config.delete": lambda client: ConfigDelete("a"),
    "create_queue": lambda client: CreateQueue("new"),
    "stats": lambda client: Stats("q"),
}


@pytest.mark.parametrize("verb", OWN)
def test_each_verb_can_be_repeated_in_a_session_of_the_callers_own(scene: Scene, verb: str) -> None:
    client, transport = scene.client()
    client.config.set("a", "b")
    client.enqueue("q", b"x")
    place, request = new_place(client), OWN[verb](client)
    transport.lose({"claim": "claim", "enqueue": "exchange", "settle": "exchange"}.get(verb, "request"), 2)
    first = client.once(request, **place)
    before = scene.counts()
    assert repr(client.once(request, **place)) == repr(first)
    assert scene.counts() == before
    if verb == "config.delete":
        with pytest.raises(errors.ConfigKeyNotFound):
            client.once(request, **next_place(place))


def test_a_caller_in_its_own_session_is_told_when_its_number_has_arrived(scene: Scene) -> None:
    client, _ = scene.client()
    place = new_place(client)
    client.once(Enqueue("q", b"a"), **place)
    client.once(Enqueue("q", b"b"), **next_place(place))
    with pytest.raises(errors.RequestExpired):
        client.once(Enqueue("q", b"a"), **place)
    with pytest.raises(errors.SessionExpired):
        client.once(Enqueue("q", b"a"), session="unknown", number=1)
    assert scene.payloads() == [b"a", b"b"]


def refuse_some(scene: Scene, monkeypatch: pytest.MonkeyPatch, answers: list[errors.FairleadError]) -> None:
    """The next exchanges of the engine raise these, in turn."""

    def refuse(work: Callable[[], object], caller: Caller) -> object:
        if answers:
            raise answers.pop(0)
        return work()

    replace_numbered_work(scene, monkeypatch, refuse)


def test_the_transport_of_these_tests_loses_answers_after_the_work(scene: Scene) -> None:
    """Or they would prove nothing."""
    client, transport = scene.client(retry_for_ms=0)
    transport.lose("enqueue")
    with pytest.raises(AnswerLost):
        client.enqueue("q", b"done all the same")
    assert scene.payloads() == [b"done all the same"]
