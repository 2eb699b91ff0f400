"""The network goes away without a word: no end of stream, no reset, and nothing arrives any more."""

from __future__ import annotations

import pytest

from fairlead import Complete
from tests.client.two_clients import Site
from tests.faults.proxy import Proxy


@pytest.mark.parametrize(
    ("requests", "answers"),
    [(True, True), (True, False), (False, True)],
    ids=["both ways", "requests", "answers"],
)
def test_a_client_whose_connections_are_dead_goes_on_over_others(
    site: Site, kind: str, requests: bool, answers: bool
) -> None:
    site.broker.enqueue("q", b"1")
    with Proxy(site.door.address) as network:
        address = f"fairlead://{network.address}"
        with site.connect(kind, address, timeout="200ms", retry_for="60s") as client:
            assert client.stats("q").ready == 1
            network.freeze(requests=requests, answers=answers)
            assert client.stats("q").ready == 1
            network.freeze(requests=requests, answers=answers)
            (delivery,) = client.claim("q")
            network.freeze(requests=requests, answers=answers)
            client.enqueue("q", b"2")
            network.freeze(requests=requests, answers=answers)
            assert client.settle([Complete(delivery)])[0].ok
            assert site.counts() == (1, 0, 0, 0)
            assert network.connections >= 4
            network.thaw()


def test_a_loop_whose_connection_is_dead_goes_on_over_another(
    site: Site, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("prefetch", "consume", "async_consume"):
        monkeypatch.setattr(f"fairlead.client.{module}.LOOP_WAIT_MS", 100)
    with Proxy(site.door.address) as network:
        client = site.connect(kind, f"fairlead://{network.address}", timeout="200ms", retry_for="60s")
        loop = client.consume("q", prefetch=2)
        take = (lambda: next(loop)) if kind == "blocking" else (lambda: client.wait(anext(loop)))
        site.broker.enqueue("q", b"1")
        client.settle([Complete(take())])
        network.freeze()
        site.broker.enqueue("q", b"2")
        assert take().payload == b"2"
        network.thaw()
