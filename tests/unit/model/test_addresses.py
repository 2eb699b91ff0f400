from __future__ import annotations

import pytest

from fairlead.errors import InvalidRequest
from fairlead.model.addresses import join_address, split_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("localhost:5556", "localhost", 5556),
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("[::1]:80", "::1", 80),
        ("[fe80::1%eth0]:9", "fe80::1%eth0", 9),
    ],
)
def test_an_address_is_split_into_host_and_port_and_joined_again(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        ":5556",
        "host:",
        "host:port",
        "host:70000",
        "::1:80",
        "[::1]",
        "host:५",
        "a b:1",
        "http://host:1",
        "",
        None,
        5556,
    ],
)
def test_an_address_that_is_none_is_refused(address: object) -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        split_address(address, may_pick_port=True)


def test_port_0_is_for_those_who_listen() -> None:
    assert split_address("broker.local:0", may_pick_port=True) == ("broker.local", 0)
    with pytest.raises(InvalidRequest):
        split_address("broker.local:0")
