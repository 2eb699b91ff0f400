"""What follows an answer that did not come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fairlead import Complete, Extend, NewMessage, Release, Start
from fairlead.client.attempts import Attempts
from fairlead.errors import (
    AnswerLost,
    BrokerClosed,
    FairleadError,
    Overloaded,
    QueueNotFound,
    RequestExpired,
    ServerStopping,
    ServerUnreachable,
    SessionExpired,
    StoreFull,
)
from fairlead.testing.engine import forget_sessions, rows_in
from fairlead.testing.verbs import replaced_work
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigSet
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Settle
from fairlead.wire.numbered import read_place
from tests.client.lossy import LossyRelay
from tests.client.scene import until
from tests.client.two_clients import Site
from tests.turns import new_place, next_place


@pytest.fixture
def relay(site: Site) -> Iterator[LossyRelay]:
    with LossyRelay(site.door.address) as relay:
        yield relay


def test_a_question_is_asked_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.STATS", 2)
    assert client.stats("q").ready == 0
    assert relay.connections > 2


@pytest.mark.parametrize("times", [1, 3])
def test_an_enqueue_whose_answer_is_lost_is_one_message(
    site: Site, relay: LossyRelay, kind: str, times: int
) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.ENQUEUE", times)
    message_id = client.enqueue("q", b"once")
    assert [info.id for info in site.broker.peek("q")] == [message_id]
    assert b"".join(relay.sent).count(b"FL.ENQUEUE") == times + 1
    ids = client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(20)])
    assert [info.id for info in site.broker.peek("q", limit=100)] == [message_id, *ids]
    assert len(rows_in(site.broker, "session_ends")) == 1


def test_an_opening_whose_answer_is_lost_opens_one_session(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.OPEN_SESSION", 2)
    client.enqueue("q", b"once")
    assert site.counts() == (1, 0, 0, 0)
    assert len(rows_in(site.broker, "session_ends")) == 1


def test_a_session_that_the_server_has_forgotten_is_followed_by_another(site: Site, kind: str) -> None:
    client = site.connect(kind)
    client.enqueue("q", b"1")
    forget_sessions(site.broker)
    client.enqueue("q", b"2")
    client.enqueue("q", b"3")
    assert site.counts() == (3, 0, 0, 0)


def test_a_repeat_that_comes_when_its_session_is_forgotten_is_a_lost_answer(
    site: Site, relay: LossyRelay, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another session it might be done twice."""
    client = site.connect(kind, relay.address)
    pause_ms = Attempts.pause_ms

    def forget(attempts: Attempts, trouble: Exception) -> int:
        forget_sessions(site.broker)
        return pause_ms(attempts, trouble)

    monkeypatch.setattr(Attempts, "pause_ms", forget)
    relay.lose(b"FL.ENQUEUE")
    with pytest.raises(AnswerLost, match="enqueue"):
        client.enqueue("q", b"once")
    assert site.counts() == (1, 0, 0, 0)


def test_a_request_that_was_sent_and_given_up_has_a_fate_that_is_not_known(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address, retry_for="200ms")
    relay.lose(b"FL.ENQUEUE", 1000)
    with pytest.raises(AnswerLost, match="enqueue"):
        client.enqueue("q", b"once")
    assert site.counts() == (1, 0, 0, 0)


def test_on_a_disk_without_room_for_a_session_requests_go_without_a_number(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    def refuse(work: Callable[[], Any]) -> Any:
        raise StoreFull("here", 0, 1)

    with replaced_work(OpenSession, refuse):
        client = site.connect(kind, relay.address)
        client.enqueue("q", b"x")
        assert site.counts() == (1, 0, 0, 0)
        assert b"FL.ONCE" not in b"".join(relay.sent)
        relay.lose(b"FL.ENQUEUE")
        with pytest.raises(AnswerLost):
            client.enqueue("q", b"y")


@pytest.mark.parametrize(
    ("word", "call"),
    [
        (b"FL.CREATE_QUEUE", lambda client: client.create_queue("new")),
        (b"FL.PURGE", lambda client: client.purge("q")),
        (b"FL.DELETE_QUEUE", lambda client: client.delete_queue("q")),
        (b"FL.RETRY", lambda client: client.retry("q", [])),
        (b"FL.GOODBYE", lambda client: client.goodbye("me")),
        (b"FL.CONFIG.DELETE", lambda client: client.do(ConfigDelete("a"))),
    ],
    ids=lambda one: one.decode() if isinstance(one, bytes) else "",
)
def test_a_verb_that_must_not_be_repeated_says_that_its_answer_is_lost(
    site: Site, relay: LossyRelay, kind: str, word: bytes, call: Callable[[Any], object]
) -> None:
    client = site.connect(kind, relay.address)
    site.broker.config.set("a", "b")
    relay.lose(word)
    with pytest.raises(AnswerLost):
        call(client)
    assert sent(relay).count(word) == 1


@pytest.mark.parametrize(
    ("word", "call"),
    [
        (b"FL.STATS", lambda client: client.stats("q")),
        (b"FL.PAUSE", lambda client: client.pause("q")),
        (b"FL.CONFIG.SET", lambda client: client.do(ConfigSet("a", "b"))),
        (b"FL.DROP", lambda client: client.drop("q", [], dry_run=True)),
    ],
    ids=lambda one: one.decode() if isinstance(one, bytes) else "",
)
def test_a_verb_that_may_be_repeated_is(
    site: Site, relay: LossyRelay, kind: str, word: bytes, call: Callable[[Any], object]
) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(word, 2)
    call(client)
    assert sent(relay).count(word) == 3


def test_a_verb_of_which_nothing_was_sent_is_tried_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.end_all()
    relay.refuse(3)
    assert client.create_queue("new").name == "new"


def sent(relay: LossyRelay) -> bytes:
    return b"".join(relay.sent)


def places(relay: LossyRelay) -> list[tuple[str, int, int]]:
    """Session, number and what has arrived, of each request of a session that was sent."""
    found = re.findall(rb"FL\.ONCE\r\n\$(\d+)\r\n(?=(\x94.{,99}))", sent(relay), re.DOTALL)
    packed = [read_place(rest[: int(size)]) for size, rest in found]
    return [(place.session, place.number, place.arrived) for place in packed]


def test_the_server_remembers_only_the_last_request(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    for _ in range(10):
        client.enqueue("q", b"")
    client.settle([Complete(delivery) for delivery in client.claim("q", limit=5)])
    told = places(relay)
    assert [(number, arrived) for _, number, arrived in told] == [(n, n - 1) for n in range(1, 12)]
    assert len({session for session, *_ in told}) == 1, "requests of all kinds share a session"
    assert len(rows_in(site.broker, "answers")) == 1


def test_after_a_request_that_was_refused_the_server_forgets_the_one_before(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address)
    client.enqueue("q", b"")
    with pytest.raises(QueueNotFound):
        client.enqueue("nowhere", b"")
    client.enqueue("q", b"")
    assert [(number, arrived) for _, number, arrived in places(relay)] == [(1, 0), (2, 1), (3, 2)]
    assert len(rows_in(site.broker, "answers")) == 1


def test_after_a_restart_a_repeat_has_no_second_effect_and_the_session_goes_on(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.ENQUEUE")
    client.enqueue("q", b"once")
    site.restart_door()
    client.enqueue("q", b"more")
    assert [info.payload for info in site.broker.peek("q")] == [b"once", b"more"]
    assert len({session for session, *_ in places(relay)}) == 1


def test_calls_of_many_threads_whose_answers_are_lost_are_each_one_message(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.ENQUEUE", 5)
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda at: client.enqueue("q", b"%d" % at), range(20)))
    payloads = [info.payload for info in site.broker.peek("q", limit=100)]
    assert sorted(payloads) == sorted(b"%d" % at for at in range(20))


def test_two_claims_are_not_taken_for_one(site: Site, kind: str) -> None:
    client = site.connect(kind)
    client.enqueue_many("q", [NewMessage(b"a"), NewMessage(b"b")])
    assert [client.claim("q")[0].payload for _ in range(2)] == [b"a", b"b"]


def test_a_server_that_stays_away_is_unreachable_after_the_time_allowed(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address, retry_for="300ms")
    relay.end_all()
    relay.refuse(1000)
    with pytest.raises(ServerUnreachable):
        client.enqueue("q", b"")
    assert site.counts() == (0, 0, 0, 0)


def test_a_question_that_was_sent_and_given_up_is_only_unanswered(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address, retry_for="100ms")
    relay.lose(b"FL.", 1000)
    for call in (lambda: client.claim("q"), lambda: client.stats("q")):
        with pytest.raises(ServerUnreachable):
            call()


def refuse_some(answers: list[FairleadError]) -> Callable[[Callable[[], Any]], Any]:
    """The next requests get these in the place of their answers, in turn."""

    def refuse(work: Callable[[], Any]) -> Any:
        if answers:
            raise answers.pop(0)
        return work()

    return refuse


def test_an_overloaded_server_is_given_the_time_it_asks_for(
    site: Site, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = site.connect(kind)
    answers: list[FairleadError] = [Overloaded("calls", 1, 120), Overloaded("calls", 1, 120)]
    pauses: list[int] = []
    pause_ms = Attempts.pause_ms
    monkeypatch.setattr(
        Attempts, "pause_ms", lambda *told: (pauses.append(found := pause_ms(*told)), found)[1]
    )
    with replaced_work(Exchange, refuse_some(answers)):
        client.do(Exchange([Enqueue("q", b"")]))
    assert answers == []
    assert len(pauses) == 2
    assert min(pauses) >= 120


def test_a_server_that_stays_overloaded_is_said_to_be(site: Site, kind: str) -> None:
    client = site.connect(kind, retry_for="50ms")
    with (
        replaced_work(Exchange, refuse_some([Overloaded("calls", 1, 10)] * 1000)),
        pytest.raises(Overloaded),
    ):
        client.do(Exchange([Enqueue("q", b"")]))


@pytest.mark.parametrize("error", [ServerStopping, BrokerClosed])
def test_a_server_that_is_stopping_is_one_to_come_back_to(
    site: Site, kind: str, error: type[FairleadError]
) -> None:
    client = site.connect(kind)
    answers: list[FairleadError] = [error(), error()]
    with replaced_work(Exchange, refuse_some(answers)):
        client.do(Exchange([Enqueue("q", b"back again")]))
    assert answers == []
    assert [info.payload for info in site.broker.peek("q")] == [b"back again"]


def test_a_heartbeat_whose_answer_is_lost_loses_nothing(site: Site, relay: LossyRelay, kind: str) -> None:
    site.broker.create_queue("short", visibility_timeout="2s", retry="none")
    client = site.connect(kind, relay.address)
    message_id = client.enqueue("short", b"")
    (delivery,) = client.claim("short")
    relay.lose(b"FL.SETTLE", 3)
    until(lambda: sent(relay).count(b"FL.SETTLE") > 5, "more heartbeats")
    assert site.broker.find(message_id).where == "leased"
    assert client.settle([Complete(delivery)])[0].outcome == "completed"


def test_a_caller_in_its_own_session_is_told_when_its_number_has_arrived(site: Site, kind: str) -> None:
    client = site.connect(kind)
    place = new_place(client)
    client.once(Enqueue("q", b"a"), **place)
    client.once(Enqueue("q", b"b"), **next_place(place))
    with pytest.raises(RequestExpired):
        client.once(Enqueue("q", b"a"), **place)
    with pytest.raises(SessionExpired):
        client.once(Enqueue("q", b"a"), session="unknown", number=1)
    assert [info.payload for info in site.broker.peek("q")] == [b"a", b"b"]


def test_the_relay_of_these_tests_loses_answers_after_the_work(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    """Or they would prove nothing."""
    client = site.connect(kind, relay.address, retry_for="0s")
    relay.lose(b"FL.ENQUEUE")
    with pytest.raises(AnswerLost):
        client.enqueue("q", b"done all the same")
    assert [info.payload for info in site.broker.peek("q")] == [b"done all the same"]


@pytest.mark.parametrize("wait", [None, "10s"])
def test_a_claim_sent_again_gives_the_same_deliveries(
    site: Site, relay: LossyRelay, kind: str, wait: str | None
) -> None:
    client = site.connect(kind, relay.address)
    first, _ = site.broker.enqueue("q", b"1"), site.broker.enqueue("q", b"2")
    relay.lose(b"FL.CLAIM")
    (delivery,) = client.claim("q", wait=wait)
    assert delivery.id == first
    assert site.counts() == (1, 0, 1, 0)


def test_a_settle_whose_answer_is_lost_says_what_it_did(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    client.enqueue_many("q", [NewMessage(b"1"), NewMessage(b"2")])
    first, second = client.claim("q", limit=2)
    relay.lose(b"FL.SETTLE", 2)
    results = client.settle([Complete(first), Release(second)])
    assert [result.outcome for result in results] == ["completed", "released"]
    assert site.counts() == (1, 0, 0, 0)


def test_an_extension_is_sent_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    site.broker.enqueue("q", b"1")
    (delivery,) = client.claim("q")
    relay.lose(b"FL.SETTLE")
    assert client.settle([Extend(delivery, "1h"), Start(delivery)])[1].ok


def test_an_exchange_whose_answer_is_lost_takes_effect_once(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.EXCHANGE", 2)
    message_id, (delivery,) = client.do(Exchange([Enqueue("q", b"x"), Claim("q")]))
    assert delivery.id == message_id
    assert site.counts() == (0, 0, 1, 0)
    assert client.settle([Complete(delivery)])[0].ok


OWN: dict[str, Callable[[Any], Any]] = {
    "enqueue": lambda client: Enqueue("q", b"new"),
    "settle": lambda client: Settle([Release(client.claim("q")[0])]),
    "exchange": lambda client: Exchange([Enqueue("q", b"new"), Claim("q")]),
    "claim": lambda client: Claim("q"),
    "create_queue": lambda client: CreateQueue("new"),
    "stats": lambda client: Stats("q"),
}


@pytest.mark.parametrize("verb", OWN)
def test_each_verb_can_be_repeated_in_a_session_of_the_callers_own(
    site: Site, relay: LossyRelay, kind: str, verb: str
) -> None:
    client = site.connect(kind, relay.address)
    client.enqueue("q", b"x")
    place, request = new_place(client), OWN[verb](client)
    relay.lose(f"FL.{verb.upper()}".encode(), 2)
    first = client.once(request, **place)
    before = site.counts()
    assert repr(client.once(request, **place)) == repr(first)
    assert site.counts() == before


def test_a_loop_goes_on_with_the_same_deliveries(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    ids = [site.broker.enqueue("q", b"%d" % n) for n in range(6)]
    relay.lose(b"FL.CONSUME", 2)
    loop = client.consume("q", prefetch=4)
    found = []
    for _ in ids:
        delivery = next(loop) if kind == "blocking" else client.wait(anext(loop))
        found.append(delivery.id)
        client.settle([Complete(delivery)])
    assert found == ids
    assert site.counts() == (0, 0, 0, 0)


def test_the_end_of_a_connection_that_nobody_used_costs_nothing(site: Site, kind: str) -> None:
    with LossyRelay(site.door.address) as relay:
        client = site.connect(kind, relay.address)
        client.enqueue("q", b"1")
        client.claim("q", wait="1ms")
        relay.end_all()
        client.enqueue("q", b"2")
        client.create_queue("other")
        assert client.claim("q", wait="1ms")
