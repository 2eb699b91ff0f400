"""The network goes away without a word: no end of stream, no reset, and nothing arrives any more."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import fairlead
from fairlead import Client, Complete, NewMessage
from fairlead.testing import ServerProcess

from .processes import PATIENCE_S, ClientProcess, until
from .proxy import Proxy


def test_messages_of_a_consumer_that_vanished_go_to_others(server: ServerProcess, client: Client) -> None:
    client.create_queue("q", visibility_timeout="1s")
    ids = client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(30)])
    with (
        Proxy(server.address) as network,
        ClientProcess("prefetch", address=network.address, queue="q", prefetch=10) as vanished,
    ):
        started = vanished.hear()["id"]
        until(lambda: client.stats("q").leased >= 10, "its buffer being full")
        network.freeze()
        # More, which the server may still send to it: it has asked for them.
        ids += client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(30, 60)])
        attempts: dict[str, int] = {}
        while len(attempts) < len(ids):
            deliveries = client.claim("q", limit=100, wait="60s")
            attempts |= {delivery.id: delivery.attempts for delivery in deliveries}
            client.settle([Complete(delivery) for delivery in deliveries])
        assert attempts == {message_id: int(message_id == started) for message_id in ids}
        assert vanished.ended is False


@pytest.mark.parametrize(
    ("requests", "answers"),
    [(True, True), (True, False), (False, True)],
    ids=["both ways", "requests", "answers"],
)
def test_a_client_whose_connection_is_dead_goes_on_over_another_and_doubles_nothing(
    server: ServerProcess, client: Client, requests: bool, answers: bool
) -> None:
    """What was held up arrives in the end, when it has long been sent again: the server knows it by its id."""
    client.create_queue("q")
    with (
        Proxy(server.address) as network,
        fairlead.connect(network.address, timeout="300ms", retry_for="90s") as cut_off,
    ):
        cut_off.enqueue("q", b"before")
        network.freeze(requests=requests, answers=answers)
        for n in range(20):
            cut_off.enqueue("q", b"%d" % n)
        (held,) = cut_off.claim("q")
        assert network.connections > 1
        network.thaw()
        cut_off.enqueue("q", b"after")
        assert cut_off.settle([Complete(held)])[0].outcome == "completed"
        # The connection that was dead is as good as any again, and whatever was on it has been read.
        until(lambda: client.stats("q").leased == 0, "late claims being given back")
        assert Counter(info.payload for info in client.peek("q", limit=100)) == Counter(
            [*(b"%d" % n for n in range(20)), b"after"]
        )


def test_a_loop_whose_connection_is_dead_goes_on_over_another(
    server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("prefetch", "consume"):
        monkeypatch.setattr(f"fairlead.client.{module}.LOOP_WAIT_MS", 500)
    client.create_queue("q", visibility_timeout="2s")
    client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(5)])
    worked: list[bytes] = []

    def work() -> None:
        for delivery in cut_off.consume("q", prefetch=2):
            worked.append(delivery.payload)
            cut_off.settle([Complete(delivery)])
            if len({*worked}) == 10:
                return

    with (
        Proxy(server.address) as network,
        fairlead.connect(network.address, timeout="300ms", retry_for="90s") as cut_off,
    ):
        loop = threading.Thread(target=work, daemon=True)
        loop.start()
        until(lambda: len(worked) == 5 and not client.stats("q").leased, "the first five being worked")
        network.freeze()
        client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(5, 10)])
        loop.join(PATIENCE_S)
        assert not loop.is_alive()


def test_a_server_far_away_can_be_reached(server: ServerProcess) -> None:
    """A connection that takes long to be made is not one that fails."""
    with (
        Proxy(server.address, answers_take_s=0.6) as network,
        fairlead.connect(network.address, retry_for="10s") as far,
    ):
        assert network.connections == 1
        assert far.queues() == []
