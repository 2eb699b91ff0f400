"""What follows an answer that did not come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead import Complete, Extend, NewMessage, Release, Start
from fairlead.client.resp.attempts import Attempts
from fairlead.errors import AnswerLost, StoreFull
from fairlead.testing.engine import forget_sessions, rows_in
from fairlead.testing.verbs import replaced_work
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Settle
from tests.client.resp.conftest import Site
from tests.client.resp.lossy import LossyRelay
from tests.turns import new_place


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


def test_a_purge_is_not_sent_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.PURGE")
    with pytest.raises(AnswerLost, match="purge"):
        client.purge("q")


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
