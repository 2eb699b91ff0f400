"""Loops of both clients, calls that are cancelled, and verbs that travel by Flight."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fairlead.aio
from fairlead import Complete, NewMessage
from fairlead.errors import InvalidRequest
from fairlead.server.flight import FlightDoor
from fairlead.testing.engine import is_started, waiting_claims
from fairlead.verbs.claim import Claim
from fairlead.verbs.exchange import Exchange
from tests.client.clients import PATIENCE_S
from tests.client.lossy import LossyRelay
from tests.client.two_clients import Site


def take(client: Any, loop: Any) -> Any:
    return next(loop) if hasattr(loop, "__next__") else client.wait(anext(loop))


def test_the_start_of_the_next_delivery_goes_with_the_settle_of_the_last(site: Site, kind: str) -> None:
    ids = site.broker.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(5)])
    with LossyRelay(site.door.address) as relay:
        client = site.connect(kind, relay.address)
        loop = client.consume("q", prefetch=10)
        delivery = take(client, loop)
        assert [is_started(site.broker, one) for one in ids] == [True, False, False, False, False]
        for following in ids[1:]:
            client.settle([Complete(delivery)])
            assert is_started(site.broker, following)
            delivery = take(client, loop)
            assert delivery.id == following
        settles = sum(piece.count(b"FL.SETTLE") for piece in relay.sent)
        assert settles == 4, "the first was sent as started"
        client.settle([Complete(delivery)])
        client.close()


def test_a_delivery_that_was_started_ahead_goes_back_when_the_loop_is_left(site: Site, kind: str) -> None:
    site.broker.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(3)])
    client = site.connect(kind)
    loop = client.consume("q", prefetch=10)
    client.settle([Complete(take(client, loop))])
    loop.close() if kind == "blocking" else client.wait(loop.aclose())
    assert site.counts() == (2, 0, 0, 0)
    assert [info.payload for info in site.broker.peek("q")] == [b"1", b"2"]


def test_a_loop_that_is_left_while_it_connects_claims_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = site.connect("blocking")
    connections = client._core.connections
    take, connects, may_go_on = connections.take, threading.Event(), threading.Event()

    def slow(within_s: float) -> Any:
        connects.set()
        assert may_go_on.wait(PATIENCE_S)
        return take(within_s)

    monkeypatch.setattr(connections, "take", slow)
    loop = client.consume("q")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(loop), daemon=True)
    waiting.start()
    assert connects.wait(PATIENCE_S)
    loop.close()
    may_go_on.set()
    waiting.join(5)
    assert not waiting.is_alive()
    assert waiting_claims(site.broker, "q") == 0


def run(site: Site, work: Callable[[Any], Any], address: str = "") -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            async with await fairlead.aio.connect(address or site.address) as client:
                await work(client)

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_what_a_loop_turn_asks_leaves_as_one_write(site: Site) -> None:
    async def work(client: Any) -> None:
        # The first hundred open sessions.
        ids = await asyncio.gather(*(client.enqueue("q", b"%d" % n) for n in range(100)))
        relay.sent.clear()
        ids += await asyncio.gather(*(client.enqueue("q", b"%d" % n) for n in range(100)))
        assert [info.id for info in site.broker.peek("q", limit=200)] == ids

    with LossyRelay(site.door.address) as relay:
        run(site, work, relay.address)
        assert max(piece.count(b"FL.ENQUEUE") for piece in relay.sent) >= 99


def test_what_was_cancelled_before_it_was_sent_is_not_sent(site: Site) -> None:
    async def work(client: Any) -> None:
        call = asyncio.ensure_future(client.enqueue("q", b"not"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await client.enqueue("q", b"sent")
        assert [info.payload for info in site.broker.peek("q")] == [b"sent"]

    run(site, work)


@pytest.mark.parametrize("request_", [Claim("q"), Exchange([Claim("q")])], ids=["claim", "exchange"])
def test_a_cancelled_call_releases_what_arrives_later(site: Site, request_: Any) -> None:
    async def work(client: Any) -> None:
        await client.enqueue("q", b"x")
        call = asyncio.ensure_future(client.do(request_))
        # Sent, and not answered: the loop has not looked for answers yet.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: site.broker.peek("q") and site.broker.peek("q")[0].deliveries == 1)
        assert site.counts() == (1, 0, 0, 0)

    run(site, work)


def test_a_connection_whose_caller_left_is_used_again_once_its_answer_has_come(site: Site) -> None:
    async def work(client: Any) -> None:
        claim = asyncio.ensure_future(client.claim("q", wait="50s"))
        await until(lambda: waiting_claims(site.broker, "q") == 1)
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)
        site.broker.enqueue("q", b"x")
        await until(lambda: site.broker.peek("q") and site.broker.peek("q")[0].deliveries == 1)
        await until(lambda: client._core.connections._idle)
        (delivery,) = await client.claim("q", wait="10s")
        assert delivery.payload == b"x"

    with LossyRelay(site.door.address) as relay:
        run(site, work, relay.address)
        assert relay.connections == 2


@pytest.fixture
def bulk_site() -> Iterator[Site]:
    addresses: list[str] = []
    site = Site(flight_address=lambda: addresses[0])
    flight = FlightDoor(site.broker, "127.0.0.1:0")
    flight.start()
    addresses.append(flight.address)
    yield site
    site.close()
    flight.stop()


def test_bulk_verbs_travel_by_flight_where_the_server_has_it(bulk_site: Site, kind: str) -> None:
    client = bulk_site.connect(kind)
    client.enqueue("q", b"x")
    assert client._core.flight._bulk is None
    groups = client.client if kind == "asyncio" else client
    wait = client.wait if kind == "asyncio" else (lambda answer: answer)
    wait(groups.staging.stage("token", "1", "q", [NewMessage(b"staged")]))
    wait(groups.staging.publish("token", "q", ["1"]))
    assert bulk_site.counts() == (2, 0, 0, 0)


def test_bulk_verbs_say_what_they_need(site: Site, kind: str) -> None:
    client = site.connect(kind)
    groups = client.client if kind == "asyncio" else client
    wait = client.wait if kind == "asyncio" else (lambda answer: answer)
    with pytest.raises(InvalidRequest, match="Arrow Flight, which"):
        wait(groups.staging.stage("token", "1", "q", [NewMessage(b"staged")]))
