"""Where a client looks for the door of Arrow Flight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import NewMessage
from fairlead.client.addresses import read_endpoint
from fairlead.client.bulk import make_bulk
from fairlead.client.identity import Identity
from fairlead.client.options import Options
from fairlead.client.tls import Tls
from fairlead.client.traces import Traces
from fairlead.errors import InvalidRequest
from fairlead.server.flight import FlightDoor
from fairlead.testing.authority import Authority
from tests.client.two_clients import Site


@pytest.fixture
def told() -> list[str]:
    """What the server says of its Flight door; a test may change it before anybody asks."""
    return []


@pytest.fixture
def bulk_site(told: list[str]) -> Iterator[tuple[Site, str]]:
    site = Site(flight_address=lambda: told[0])
    door = FlightDoor(site.broker, "127.0.0.1:0")
    door.start()
    told.append(door.address)
    yield site, door.address
    site.close()
    door.stop()


def count_staged(client: Any, kind: str) -> int:
    staged = (client.client if kind == "asyncio" else client).staging.stage("t", "1", "q", [NewMessage(b"x")])
    return int((client.wait(staged) if kind == "asyncio" else staged).count)


def test_a_server_that_listens_everywhere_is_reached_at_the_host_that_was_given(
    bulk_site: tuple[Site, str], told: list[str], kind: str
) -> None:
    site, address = bulk_site
    told[0] = address.replace("127.0.0.1", "0.0.0.0")
    assert count_staged(site.connect(kind), kind) == 1


def test_the_address_that_was_given_counts_more_than_what_the_server_tells(
    bulk_site: tuple[Site, str], told: list[str], kind: str
) -> None:
    site, address = bulk_site
    told[0] = "nowhere.invalid:1"
    assert count_staged(site.connect(kind, flight=address), kind) == 1


@pytest.mark.parametrize("address", ["127.0.0.1", ":5556", "grpc://h:1", 5556])
def test_what_is_no_address_of_a_door_is_refused_on_connecting(site: Site, kind: str, address: Any) -> None:
    with pytest.raises(InvalidRequest, match="address"):
        site.connect(kind, flight=address)


@pytest.mark.parametrize(
    ("endpoint", "told_address", "expected"),
    [
        ("broker.example:5554", "10.0.0.5:5556", "10.0.0.5:5556"),
        ("broker.example:5554", "0.0.0.0:5556", "broker.example:5556"),
        ("broker.example:5554", "[::]:5556", "broker.example:5556"),
        ("broker.example:5554", "127.0.0.1:5556", "broker.example:5556"),
        ("unix:///run/fairlead.sock", "0.0.0.0:5556", "127.0.0.1:5556"),
        ("unix:///run/fairlead.sock", "127.0.0.1:5556", "127.0.0.1:5556"),
    ],
)
def test_a_host_that_means_another_machine_here_is_replaced(
    endpoint: str, told_address: str, expected: str
) -> None:
    identity = Identity(read_endpoint(endpoint), None, None)
    bulk = make_bulk("browse", told_address, Options(endpoint, "me"), identity, Traces())
    assert bulk.core.options.address == expected
    bulk.close()


def test_the_certificate_is_that_of_the_host_that_was_given(tmp_path: Any) -> None:
    """The server's own word for its address need not be in it."""
    (tmp_path / "ca.pem").write_bytes(Authority().issued.cert)
    identity = Identity(read_endpoint("broker.example:5554"), Tls(tmp_path / "ca.pem"), None)
    bulk = make_bulk("browse", "10.0.0.5:5556", Options("broker.example:5554", "me"), identity, Traces())
    assert bulk.core._transport._tls.server_name == "broker.example"  # type: ignore[attr-defined]
    bulk.close()
