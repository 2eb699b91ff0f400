"""The server is stopped and started again while workers work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as flight
import pytest

from fairlead import Client, Complete, NewMessage
from fairlead.testing import ServerProcess, run_server
from tests.doors.flight.raw import RawChannel, claim

from .processes import ClientProcess, until

TOTAL = 400
WORKERS = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data", settings={"durability": "os", "limits.drain_grace_ms": 300}) as server:
        yield server


def test_workers_go_on_through_restarts_and_nothing_runs_twice(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    journal = tmp_path / "work.txt"
    client.create_queue("q", visibility_timeout="60s")
    client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(TOTAL)])
    (held,) = client.claim("q")
    expected = Counter(str(n) for n in range(TOTAL)) - Counter([held.payload.decode()])

    def worked() -> Counter[str]:
        return (
            Counter(line.split()[1] for line in journal.read_text().splitlines())
            if journal.exists()
            else Counter()
        )

    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                ClientProcess("work", address=server.address, queue="q", journal=str(journal), name=f"w{n}")
            )
            for n in range(WORKERS)
        ]
        for worker in workers:
            assert worker.hear() == "ready"
        until(lambda: worked().total() >= TOTAL // 4, "a part of the work being done")
        assert server.stop() == 0
        server.restart()
        rude = stack.enter_context(flight.FlightClient(f"grpc://{server.addresses['flight']}"))
        unread = keep_from_stopping(rude, client)
        until(lambda: worked().total() >= TOTAL // 2, "more of the work being done")
        assert server.stop() == 0
        assert "calls are cut off" in server.log
        server.restart()
        del unread
        until(lambda: worked().total() >= expected.total(), "the work being done")
        for worker in workers:
            worker.finish()
    assert worked() == expected
    stats = client.stats("q")
    assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, 0, 1, 0)
    assert client.settle([Complete(held)])[0].outcome == "completed"


def keep_from_stopping(rude: flight.FlightClient, client: Client) -> RawChannel:
    """Somebody who does not read what he is sent. A stop waits for him for a while, and refuses what others
    ask meanwhile.
    """
    client.create_queue("big")
    client.enqueue_many("big", [NewMessage(bytes(500_000))] * 20)
    unread = RawChannel(rude, "claim")
    unread.send(claim("big", limit=20, consumer="rude", started=False))
    until(lambda: client.stats("big").leased == 20, "his claim being carried out")
    return unread
