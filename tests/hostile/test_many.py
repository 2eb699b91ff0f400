"""Thousands of clients and channels, one after the other or dropped half open: what is over must leave
nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow.flight as flight
import pytest

import fairlead
from fairlead.testing.server import ServerProcess
from tests.doors.flight.raw import RawChannel, claim
from tests.hostile.by_hand import Stranger, opening
from tests.hostile.conftest import usage

SOME, MANY = 30, 500


def new_clients(server: ServerProcess, count: int) -> None:
    for _ in range(count):
        with fairlead.connect(server.address) as client:
            client.stats("q")


def new_channels(server: ServerProcess, count: int) -> None:
    with flight.connect(f"grpc://{server.addresses['flight']}") as client:
        for _ in range(count):
            channel = RawChannel(client, "claim")
            assert channel.call(claim())[0].error is None
            channel.writer.close()


def dropped_channels(server: ServerProcess, count: int) -> None:
    """At any moment of their opening."""
    with flight.connect(f"grpc://{server.addresses['flight']}") as client:
        for _ in range(count):
            RawChannel(client, "claim").reader.cancel()


def dropped_connections(server: ServerProcess, count: int) -> None:
    for _ in range(count // 5):
        with Stranger(server.addresses["flight"]) as stranger:
            stranger.send(opening("write"))


@pytest.mark.parametrize(
    "come_and_go",
    [new_clients, new_channels, dropped_channels, dropped_connections],
    ids=lambda made: made.__name__,
)
def test_those_who_come_and_go_leave_nothing_behind(
    server: ServerProcess, come_and_go: Callable[[ServerProcess, int], None]
) -> None:
    come_and_go(server, SOME)
    before = usage(server.pid)
    come_and_go(server, MANY)
    pause = threading.Event()
    for _ in range(600):
        after = usage(server.pid)
        if after["threads"] <= before["threads"] + 20 and after["files"] <= before["files"] + 20:
            break
        pause.wait(0.1)
    assert after["threads"] <= before["threads"] + 20
    assert after["files"] <= before["files"] + 20
    assert after["rss"] <= before["rss"] + 60


def test_a_client_that_comes_and_goes_leaves_nothing_behind_in_its_own_process(server: ServerProcess) -> None:
    new_clients(server, SOME)
    before = threading.active_count()
    new_clients(server, SOME)
    assert threading.active_count() <= before + 2
