"""Loops of both clients on subscriptions: what they ask, and what becomes of deliveries when something breaks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import Complete, Delivery, NewMessage, Release, errors
from fairlead.middleware.stack import Layers
from fairlead.server.resp.door import RespDoor
from fairlead.testing import ServerProcess, open_in_memory, run_server
from fairlead.testing.engine import is_started, waiting_claims
from tests.client.clients import PATIENCE_S, connect
from tests.client.lossy import LossyRelay
from tests.client.scene import until
from tests.client.two_clients import Site
from tests.doors.resp.conftest import opened
from tests.doors.resp.test_keys_and_tls import Pki


class Taker:
    """A loop of either client."""

    def __init__(self, client: Any, queue: Any = "q", **options: Any) -> None:
        self._client = client
        self._loop = client.consume(queue, **options)

    def take(self) -> Delivery:
        if hasattr(self._loop, "__next__"):
            found: Delivery = next(self._loop)
        else:
            found = self._client.wait(anext(self._loop))
        return found

    def done(self) -> bytes:
        """Takes one message and completes it; gives its payload."""
        delivery = self.take()
        assert self._client.settle([Complete(delivery)])[0].ok
        return delivery.payload

    def close(self) -> None:
        if hasattr(self._loop, "close"):
            self._loop.close()
        else:
            self._client.wait(self._loop.aclose())

    def take_soon(self) -> tuple[threading.Thread, list[Delivery]]:
        """In a thread, which waits."""
        found: list[Delivery] = []
        waiting = threading.Thread(target=lambda: found.append(self.take()), daemon=True)
        waiting.start()
        return waiting, found


def fill(site: Site, count: int, first: int = 0) -> list[str]:
    return site.broker.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(first, first + count)])


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def waits(site: Site) -> bool:
    return waiting_claims(site.broker, "q") == 1


@pytest.fixture
def relay(site: Site) -> Iterator[LossyRelay]:
    with LossyRelay(site.door.address) as relay:
        yield relay


def count(relay: LossyRelay, word: bytes) -> int:
    return sum(piece.count(word) for piece in relay.sent)


def test_a_consumer_that_waits_asks_once_for_each_message(site: Site, relay: LossyRelay, kind: str) -> None:
    client = site.connect(kind, relay.address)
    loop = Taker(client)
    for n in range(20):
        waiting, found = loop.take_soon()
        until(lambda: waits(site))
        [message_id] = fill(site, 1, n)
        waiting.join(PATIENCE_S)
        assert [one.payload for one in found] == [b"%d" % n]
        assert is_started(site.broker, message_id)
        client.settle([Complete(found[0])])
    assert count(relay, b"FL.SETTLE") == 20
    assert count(relay, b"FL.CONSUME") == 1
    assert count(relay, b"FL.CLAIM") == 0


def test_credit_follows_demand(site: Site, relay: LossyRelay, kind: str) -> None:
    fill(site, 100)
    loop = Taker(site.connect(kind, relay.address), prefetch=10)
    assert loop.take().payload == b"0"
    assert site.counts() == (90, 0, 10, 0)
    assert [loop.take().payload for _ in range(3)] == [b"1", b"2", b"3"]
    assert count(relay, b"FL.CREDIT") == 0
    assert [loop.take().payload for _ in range(2)] == [b"4", b"5"]
    until(lambda: site.counts() == (85, 0, 15, 0))
    assert count(relay, b"FL.CREDIT") == 1


@pytest.mark.parametrize("prefetch", [1, 2, 100])
def test_a_loop_may_collect_more_than_it_fetches_ahead(site: Site, kind: str, prefetch: int) -> None:
    fill(site, 30)
    client = site.connect(kind)
    loop = Taker(client, prefetch=prefetch)
    held = [loop.take() for _ in range(30)]
    assert [one.payload for one in held] == numbered(30)
    assert all(result.ok for result in client.settle([Complete(one) for one in held]))


def test_what_is_released_comes_again(site: Site, kind: str) -> None:
    fill(site, 2)
    client = site.connect(kind)
    loop = Taker(client, prefetch=1)
    client.settle([Release(loop.take(), keep_order=True)])
    assert sorted([loop.done(), loop.done()]) == numbered(2)


def test_two_loops_share_what_comes(site: Site, kind: str) -> None:
    client = site.connect(kind)
    loops = [Taker(client), Taker(client)]
    takes = []
    for n, loop in enumerate(loops, 1):
        takes.append(loop.take_soon())
        until(lambda n=n: waiting_claims(site.broker, "q") == n)  # type: ignore[misc]
    for n in range(6):
        fill(site, 1, n)
        until(lambda: site.counts()[0] == 0)
    for waiting, _ in takes:
        waiting.join(PATIENCE_S)
    found = [
        [taken[0].payload] + [loop.take().payload for _ in range(2)]
        for (_, taken), loop in zip(takes, loops, strict=True)
    ]
    assert found == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


def test_after_a_lost_connection_the_loop_goes_on_in_order(site: Site, relay: LossyRelay, kind: str) -> None:
    fill(site, 10)
    client = site.connect(kind, relay.address)
    loop = Taker(client, prefetch=4)
    held = loop.take()
    relay.end_all()
    assert not client.is_lost(held)
    found = [loop.done() for _ in range(4)]
    assert client.settle([Complete(held)])[0].ok, "what it worked on stayed with it"
    found += [loop.done() for _ in range(5)]
    assert found == numbered(10)[1:]
    assert site.counts() == (0, 0, 0, 0)


def test_a_buffer_that_is_lost_with_its_connection_is_not_charged(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    fill(site, 5)
    client = site.connect(kind, relay.address)
    loop = Taker(client, prefetch=10)
    for _ in range(5):
        relay.end_all()
        delivery = loop.take()
        assert delivery.attempts == 0
        client.settle([Complete(delivery)])
    assert site.counts() == (0, 0, 0, 0)


def test_a_loop_lets_go_of_what_a_server_does_not_know_to_be_lost(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    fill(site, 6)
    loop = Taker(site.connect(kind, relay.address), prefetch=10)
    assert loop.done() == b"0"
    relay.ends_in_silence = True
    relay.end_all()
    assert sorted(loop.done() for _ in range(5)) == numbered(6)[1:]


def test_a_delivery_that_was_lost_on_its_way_comes_again(site: Site, relay: LossyRelay, kind: str) -> None:
    """It was sent as started, so only its consumer can know that it did not arrive."""
    client = site.connect(kind, relay.address)
    loop = Taker(client)
    waiting, found = loop.take_soon()
    until(lambda: waits(site))
    relay.swallow()
    fill(site, 1)
    waiting.join(PATIENCE_S)
    assert [(one.payload, one.attempts) for one in found] == [(b"0", 0)]
    assert client.settle([Complete(found[0])])[0].ok


def test_a_door_that_comes_back_finds_the_loop(site: Site, kind: str) -> None:
    fill(site, 3)
    client = site.connect(kind)
    loop = Taker(client)
    assert loop.done() == b"0"
    address = site.door.address
    site.door.stop()
    assert site.counts() == (1, 0, 1, 0)
    site.door = RespDoor(site.broker, address)
    site.door.start()
    assert [loop.done(), loop.done()] == [b"1", b"2"]
    waiting, found = loop.take_soon()
    until(lambda: waits(site))
    fill(site, 1, 3)
    waiting.join(PATIENCE_S)
    assert found[0].payload == b"3"


def test_leaving_a_loop_leaves_nothing_with_anybody(site: Site, kind: str) -> None:
    fill(site, 10)
    client = site.connect(kind)
    loop = Taker(client, prefetch=5)
    loop.done()
    loop.close()
    assert site.counts() == (9, 0, 0, 0)
    assert waiting_claims(site.broker, "q") == 0
    assert [info.payload for info in site.broker.peek("q", limit=10)] == numbered(10)[1:]


def test_a_loop_that_was_left_leaves_a_connection_for_others(
    site: Site, relay: LossyRelay, kind: str
) -> None:
    client = site.connect(kind, relay.address)
    for n in range(3):
        fill(site, 1, n)
        loop = Taker(client)
        loop.done()
        loop.close()
    assert relay.connections == 2


@pytest.mark.parametrize("when", ["waiting", "busy"])
def test_a_key_that_is_revoked_ends_the_loop(kind: str, when: str) -> None:
    broker = open_in_memory()
    broker.create_queue("q", visibility_timeout="1h")
    key = broker.keys.create("a", ["consume:q"])
    with (
        opened(broker, layers=Layers(broker, keys=True), asks_for_keys=True) as door,
        connect(kind, f"fairlead://{door.address}", api_key=key.secret) as client,
    ):
        loop = Taker(client, prefetch=2)
        broker.enqueue_many("q", [NewMessage(payload) for payload in numbered(4)])
        for _ in range(4 if when == "waiting" else 1):
            loop.done()
        broker.keys.revoke(key.info.id)
        with pytest.raises(errors.Unauthenticated):
            # One may have been started by the last settle.
            loop.take(), loop.take()
        until(lambda: broker.stats("q").leased <= 2, "what was not started coming back")


def test_a_loop_over_tls(tmp_path: Path, kind: str) -> None:
    pki = Pki(tmp_path, mutual=False)
    site = Site(certificates=pki.certificates)
    port = site.door.address.rpartition(":")[2]
    with connect(kind, f"fairleads://localhost:{port}", tls=tmp_path / "ca.pem") as client:
        loop = Taker(client)
        fill(site, 50)
        assert [loop.done() for _ in range(50)] == numbered(50)
    site.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data", flight=False, settings={"durability": "os"}) as server:
        yield server


@pytest.mark.parametrize("kill", [True, False])
def test_a_loop_goes_on_through_a_restart_of_the_server(server: ServerProcess, kind: str, kill: bool) -> None:
    with connect(kind, f"fairlead://{server.addresses['resp']}", retry_for="60s") as client:
        client.create_queue("q", visibility_timeout="1h")
        client.enqueue_many("q", [NewMessage(payload) for payload in numbered(6)])
        loop = Taker(client, prefetch=3)
        assert loop.done() == b"0"
        held = loop.take()
        server.restart(kill=kill)
        found = [loop.done() for _ in range(2)]
        assert client.settle([Complete(held)])[0].ok
        found += [loop.done() for _ in range(2)]
        waiting, late = loop.take_soon()
        server.restart(kill=kill)
        client.enqueue("q", b"late")
        waiting.join(PATIENCE_S)
        assert (held.payload, found, late[0].payload) == (b"1", numbered(6)[2:], b"late")
        assert client.settle([Complete(late[0])])[0].ok
        stats = client.stats("q")
        assert (stats.ready, stats.leased) == (0, 0)
