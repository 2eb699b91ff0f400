"""A client and a server that is killed, stopped, restarted and paused."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import fairlead
from fairlead import Complete, NewMessage, errors
from fairlead.client.flight.core import FlightCore
from fairlead.client.flight.transport import FlightTransport
from fairlead.client.options import Options
from fairlead.errors import ServerUnreachable
from fairlead.testing import ServerProcess, run_server
from tests.client.clients import connect
from tests.client.scene import PATIENCE_S, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data", settings={"durability": "os"}) as server:
        with fairlead.connect(server.address) as client:
            client.create_queue("q", visibility_timeout="60s")
        yield server


def test_a_client_comes_back_after_the_server_was_killed(server: ServerProcess, kind: str) -> None:
    with connect(kind, server.address) as client:
        client.enqueue("q", b"before")
        (delivery,) = client.claim("q", wait="1s")
        server.restart(kill=True)
        after = client.enqueue("q", b"after")
        assert client.settle([Complete(delivery)])[0].outcome == "completed"
        assert [info.id for info in client.peek("q")] == [after]


def test_a_claim_that_waits_goes_on_waiting_through_a_restart(server: ServerProcess, kind: str) -> None:
    with connect(kind, server.address, retry_for="60s") as client:
        found: list[bytes] = []
        waiting = threading.Thread(
            target=lambda: found.extend(item.payload for item in client.claim("q", wait="1h")), daemon=True
        )
        waiting.start()
        server.restart(kill=True)
        client.enqueue("q", b"at last")
        waiting.join(PATIENCE_S)
        assert found == [b"at last"]


def test_a_server_that_does_not_come_back_is_unreachable(server: ServerProcess, kind: str) -> None:
    with connect(kind, server.address, retry_for="300ms") as client:
        server.kill()
        for call in (
            lambda: client.stats("q"),
            lambda: client.enqueue("q", b""),
            lambda: client.claim("q", wait="1h"),
        ):
            with pytest.raises(ServerUnreachable):
                call()


def test_a_verb_that_must_not_be_repeated_survives_a_restart_that_nobody_noticed(
    server: ServerProcess,
) -> None:
    """Its channel is dead by then, but nothing of it was sent."""
    with fairlead.connect(server.address) as client:
        server.restart(kill=True)
        assert client.create_queue("new").name == "new"


def test_a_call_made_while_the_server_is_away_waits_for_it(server: ServerProcess) -> None:
    with fairlead.connect(server.address, retry_for="60s") as client:
        client.enqueue("q", b"first")
        server.kill()
        sent = threading.Thread(target=lambda: client.enqueue("q", b"second"), daemon=True)
        sent.start()
        server.restart()
        sent.join(PATIENCE_S)
        assert [info.payload for info in client.peek("q")] == [b"first", b"second"]


def test_a_server_that_stands_still_is_noticed_and_nothing_is_doubled(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connections stay open and nothing answers; when it goes on, it carries out what it was sent
    meanwhile.
    """
    with fairlead.connect(server.address, timeout="500ms", retry_for="60s") as client:
        client.enqueue("q", b"first")
        server.pause()
        sent = threading.Thread(target=lambda: client.enqueue("q", b"second"), daemon=True)
        sent.start()
        try:
            until(lambda: "no answer in time" in caplog.text, "the connection being given up")
        finally:
            server.resume_process()
        sent.join(PATIENCE_S)
        assert not sent.is_alive()
        assert [info.payload for info in client.peek("q")] == [b"first", b"second"]


@pytest.mark.parametrize("kill", [False, True], ids=["restarted", "killed"])
def test_work_goes_on_through_restarts_and_nothing_is_lost_or_doubled(
    server: ServerProcess, kill: bool
) -> None:
    total, stop = 200, threading.Event()
    worked: Counter[bytes] = Counter()
    with fairlead.connect(server.address, retry_for="60s") as client:
        # What was on its way to a buffer when the server was killed runs out first.
        client.update_queue("q", visibility_timeout="5s")

        def produce() -> None:
            for at in range(total):
                client.enqueue("q", b"%d" % at)

        def work() -> None:
            # A settle whose lease ran out meanwhile may still be waiting for its next attempt at the end.
            with suppress(errors.ClientClosed):
                for delivery in client.consume("q", prefetch=10):
                    if client.settle([Complete(delivery)])[0].ok:
                        worked[delivery.payload] += 1
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=target, daemon=True) for target in (produce, work, work)]
        for thread in threads:
            thread.start()
        for rounds in (1, 2):
            until(lambda rounds=rounds: len(worked) > rounds * 50, "work being done")  # type: ignore[misc]
            server.restart(kill=kill)
        until(lambda: len(worked) == total, "all being worked")
        stop.set()
        stats = client.stats("q")
        assert (stats.ready, stats.leased, stats.dead) == (0, 0, 0)
        assert worked == Counter({b"%d" % at: 1 for at in range(total)})


def test_a_batch_is_whole_or_absent_after_a_kill(server: ServerProcess) -> None:
    with fairlead.connect(server.address, retry_for="60s") as client:
        for round_ in range(3):
            sending = threading.Thread(
                target=lambda round_=round_: [
                    client.enqueue_many("q", [NewMessage(b"%d" % round_)] * 50) for _ in range(20)
                ],
                daemon=True,  # type: ignore[misc]
            )
            sending.start()
            until(lambda round_=round_: client.stats("q").ready > round_ * 1000, "some being there")  # type: ignore[misc]
            server.restart(kill=True)
            sending.join(PATIENCE_S)
            assert client.stats("q").ready == (round_ + 1) * 1000


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_arrow_prints_nothing_about_an_open_stream_whose_server_is_gone(
    server: ServerProcess, capfd: pytest.CaptureFixture[str], *, kill: bool
) -> None:
    """Whoever opened it was interrupted, and never closed it."""
    stream = FlightTransport(server.addresses["flight"]).open("read")
    _end(server, kill=kill)
    del stream
    gc.collect()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_arrow_prints_nothing_when_a_client_closes_after_an_interrupted_call(
    server: ServerProcess, capfd: pytest.CaptureFixture[str], *, kill: bool
) -> None:
    """An interrupt between an answer and the return of its channel leaves the channel to nobody."""
    address = server.addresses["flight"]
    core = FlightCore(Options(address, "interrupted"), FlightTransport(address))
    core.take_channel("read", 60_000)
    _end(server, kill=kill)
    core.close()
    del core
    gc.collect()
    assert capfd.readouterr() == ("", "")


def _end(server: ServerProcess, *, kill: bool) -> None:
    if kill:
        server.kill()
    else:
        server.stop()
