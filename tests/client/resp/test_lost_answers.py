"""What follows an answer that did not come."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead import Complete, Extend, Start
from fairlead.errors import AnswerLost
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.exchange import Exchange
from tests.client.resp.conftest import Site
from tests.client.resp.lossy import LossyRelay


@pytest.fixture
def relay(site: Site) -> Iterator[LossyRelay]:
    with LossyRelay(site.door.address) as relay:
        yield relay


def test_a_question_is_asked_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.STATS", 2)
    assert client.stats("q").ready == 0
    assert relay.connections > 2


def test_an_enqueue_is_not_sent_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.ENQUEUE")
    with pytest.raises(AnswerLost, match="enqueue"):
        client.enqueue("q", b"once")
    assert site.counts() == (1, 0, 0, 0)
    client.enqueue("q", b"and on another connection")
    assert site.counts() == (2, 0, 0, 0)


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


def test_a_settle_whose_answer_is_lost_keeps_the_lease_alive_until_the_caller_knows(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address)
    site.broker.enqueue("q", b"1")
    (delivery,) = client.claim("q")
    relay.lose(b"FL.SETTLE")
    with pytest.raises(AnswerLost, match="settle"):
        client.settle([Complete(delivery)])
    assert site.counts() == (0, 0, 0, 0)
    assert not client.settle([Complete(delivery)])[0].ok


def test_an_extension_is_sent_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    site.broker.enqueue("q", b"1")
    (delivery,) = client.claim("q")
    relay.lose(b"FL.SETTLE")
    assert client.settle([Extend(delivery, "1h"), Start(delivery)])[1].ok


def test_an_exchange_is_not_sent_again(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    relay.lose(b"FL.EXCHANGE")
    with pytest.raises(AnswerLost, match="exchange"):
        client.do(Exchange([Enqueue("q", b"x"), Claim("q")]))


def test_a_loop_goes_on_with_the_same_deliveries(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    ids = [site.broker.enqueue("q", b"%d" % n) for n in range(6)]
    relay.lose(b"FL.CLAIM", 2)
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
