"""Consumers that only wait, that are slow, or that do not even read what they asked for: nobody else feels
them.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.flight as flight
import pytest

from fairlead import Client, Complete, NewMessage
from fairlead.model.checks import check_messages
from fairlead.testing import ServerProcess, run_server
from fairlead.wire.messages import encode_messages
from tests.doors.flight.raw import RawChannel, claim, put

from .processes import ClientProcess, until

IDLE = 500
IDLE_PROCESSES = 4
RESP_CONNECTIONS = 'connections_open{door="resp"}'
#: Of the client of the test itself: one that its calls share, and one for a claim that waits.
OWN = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(
        tmp_path / "data", http=True, settings={"durability": "os", "limits.drain_grace_ms": 500}
    ) as server:
        yield server


def test_work_goes_on_beside_500_idle_consumers_and_they_leave_nothing_behind(
    server: ServerProcess, client: Client
) -> None:
    client.create_queue("work")
    client.create_queue("quiet")
    work_some(client, 50)
    threads, memory = status_of(server, "Threads"), status_of(server, "VmRSS")
    with ExitStack() as stack:
        options = {"address": server.address, "queue": "quiet", "count": IDLE // IDLE_PROCESSES, "wait": "5s"}
        idlers = [stack.enter_context(ClientProcess("idle", **options)) for _ in range(IDLE_PROCESSES)]
        for idler in idlers:
            idler.hear()
        until(lambda: metric(server, "calls_in_flight") == IDLE, "500 claims waiting")
        work_some(client, 200)
        assert metric(server, RESP_CONNECTIONS) <= OWN + IDLE + 2 * IDLE_PROCESSES
        assert status_of(server, "Threads") <= threads + 32
        assert status_of(server, "VmRSS") <= memory + IDLE * 1024
        for idler in idlers[::2]:
            idler.kill()
        for idler in idlers[1::2]:
            idler.finish()
        until(lambda: metric(server, "calls_in_flight") == 0, "their claims being over")
        until(lambda: metric(server, RESP_CONNECTIONS) <= OWN, "their connections being closed")
        until(lambda: status_of(server, "Threads") <= threads + 32, "their threads having ended")
    work_some(client, 50)


def test_a_message_passes_by_the_claims_of_clients_that_were_killed(
    server: ServerProcess, client: Client
) -> None:
    """Their claims end with their connection. Nothing was sent to anybody, so nothing counts as a try."""
    client.create_queue("q", visibility_timeout="10m")
    # The HTTP door opens its spare file when it is asked first.
    metric(server, "calls_in_flight")
    files = open_files(server)
    with ClientProcess("idle", address=server.address, queue="q", count=20, wait="60s") as victim:
        victim.hear()
        until(lambda: metric(server, "calls_in_flight") == 20, "its claims waiting")
        victim.kill()
    until(lambda: metric(server, "calls_in_flight") == 0, "its claims being over")
    until(lambda: open_files(server) <= files, "its connections being gone")
    message_id = client.enqueue("q", b"")
    (delivery,) = client.claim("q", wait="60s")
    assert (delivery.id, delivery.attempts, delivery.deliveries) == (message_id, 0, 1)


def test_a_slow_consumer_holds_what_it_prefetched_and_the_fast_do_the_rest(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    client.create_queue("q", visibility_timeout="10m")
    journal = tmp_path / "work.txt"
    with (
        ClientProcess("prefetch", address=server.address, queue="q", prefetch=10) as slow,
        ExitStack() as stack,
    ):
        options = {"address": server.address, "queue": "q", "journal": str(journal), "work_ms": 0}
        fast = [stack.enter_context(ClientProcess("work", name=f"w{n}", **options)) for n in range(2)]
        for worker in fast:
            worker.hear()
        client.enqueue_many("q", [NewMessage(b"%d" % n) for n in range(300)])
        slow.hear()
        until(
            lambda: client.stats("q").ready == 0 and client.stats("q").leased <= 10,
            "the fast having done the rest",
        )
        for worker in fast:
            worker.finish()
        done = {line.split()[1] for line in journal.read_text().splitlines()}
        stats = client.stats("q")
        assert (len(done), stats.ready, stats.leased) == (300 - stats.leased, 0, stats.leased)
        assert 1 <= stats.leased <= 10


def test_a_consumer_that_reads_nothing_blocks_neither_others_nor_its_own_producer(
    server: ServerProcess, client: Client
) -> None:
    """50 MB for somebody who does not read: far more than the network between the two can hold."""
    client.create_queue("q", visibility_timeout="2s")
    ids = [
        message_id
        for _ in range(10)
        for message_id in client.enqueue_many("q", [NewMessage(bytes(500_000))] * 15)
    ]
    rude = flight.FlightClient(f"grpc://{server.addresses['flight']}")
    claims, writes = RawChannel(rude, "claim"), RawChannel(rude, "write")
    claims.send(claim("q", limit=100, consumer="rude", started=False))
    until(lambda: client.stats("q").leased == 100, "its claim being carried out")
    for n in range(20):
        answer, _ = writes.call(put("q"), encode_messages(check_messages([NewMessage(b"%d" % n)])))
        assert answer.error is None
    assert metric(server, "calls_in_flight") == 1
    attempts: dict[str, int] = {}
    while len(attempts) < len(ids) + 20:
        deliveries = client.claim("q", limit=20, wait="60s")
        attempts |= {delivery.id: delivery.attempts for delivery in deliveries}
        assert all(result.ok for result in client.settle([Complete(delivery) for delivery in deliveries]))
    assert {*ids} <= {*attempts}
    assert {*attempts.values()} == {0}
    assert metric(server, "calls_in_flight") == 1
    assert server.stop() == 0
    rude.close()


def work_some(client: Client, count: int) -> None:
    """One producer and one consumer."""
    for n in range(count):
        client.enqueue("work", b"%d" % n)
        (delivery,) = client.claim("work", wait="60s")
        assert delivery.payload == b"%d" % n
        assert client.settle([Complete(delivery)])[0].outcome == "completed"


def metric(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.addresses['http']}/metrics") as answer:
        (value,) = [
            line.split()[1]
            for line in answer.read().decode().splitlines()
            if line.startswith(f"fairlead_{name} ")
        ]
    return float(value)


def status_of(server: ServerProcess, field: str) -> int:
    """Of the process; memory is in KiB."""
    (line,) = [
        line
        for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
        if line.startswith(field + ":")
    ]
    return int(line.split()[1])


def open_files(server: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))
