"""Connections that are too many, too quiet or bring too much, at servers whose limits are small enough to
meet.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import grpc
import pyarrow as pa
import pytest

import fairlead
from fairlead.server.fila.v1 import service_pb2, service_pb2_grpc
from fairlead.testing.server import ServerProcess, run_server
from fairlead.wire.schemas import MESSAGES
from tests.doors.flight.raw import put
from tests.hostile.by_hand import PATIENCE_S, Stranger, batch_parts, frame, opening, request
from tests.hostile.conftest import UNFORESEEN, usage


@contextmanager
def serving(path: Path, **limits: object) -> Iterator[ServerProcess]:
    """With these limits; it must end well, and serve to the end."""
    settings = {"durability": "os", **{f"limits.{name}": value for name, value in limits.items()}}
    with run_server(path / "data", grpc=True, http=True, settings=settings) as server:
        with fairlead.connect(server.address) as client:
            client.create_queue("q")
        yield server
        with fairlead.connect(server.address) as client:
            assert client.stats("q").ready == 0
        assert server.stop() == 0
        assert [line for line in server.log.splitlines() if any(words in line for words in UNFORESEEN)] == []


def counted(server: ServerProcess, limit: str) -> float:
    with urlopen(f"http://{server.addresses['http']}/metrics", timeout=PATIENCE_S) as shown:
        lines = shown.read().decode().splitlines()
    return next(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(f'fairlead_refused_total{{limit="{limit}"}}')
    )


def until(happened: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(600):
        if happened():
            return
        pause.wait(0.1)
    raise AssertionError("it did not happen in a minute")


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def is_closed(connection: socket.socket) -> bool:
    """Whatever it was greeted with is read and thrown away."""
    connection.setblocking(False)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def use(client: fairlead.Client) -> None:
    """Both of its doors."""
    client.stats("q")
    assert list(client.browse_batches("q")) == []


@pytest.mark.parametrize("door", ["resp", "flight", "grpc"])
def test_connections_beyond_the_limit_are_closed_and_a_client_at_work_is_not(
    tmp_path: Path, door: str
) -> None:
    with (
        serving(tmp_path, max_connections=20) as server,
        fairlead.connect(server.address) as client,
        ExitStack() as all_of_them,
    ):
        use(client)
        crowd = [all_of_them.enter_context(connect(server.addresses[door])) for _ in range(100)]
        until(lambda: sum(map(is_closed, crowd)) >= 80)
        assert counted(server, "connections") >= 80
        use(client)


def test_one_address_cannot_have_all_connections(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections_per_address=10) as server, ExitStack() as all_of_them:
        crowd = [all_of_them.enter_context(connect(server.addresses["grpc"])) for _ in range(30)]
        until(lambda: sum(map(is_closed, crowd)) >= 20)
        assert counted(server, "connections_per_address") >= 20


def test_a_connection_that_never_opens_a_channel_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path, greeting_ms=300) as server, fairlead.connect(server.address) as client:
        use(client)
        with connect(server.addresses["flight"]) as mute, Stranger(server.addresses["flight"]) as undecided:
            until(lambda: is_closed(mute))
            with pytest.raises(grpc.RpcError) as hung_up:
                next(undecided.call)
            assert hung_up.value.code() is grpc.StatusCode.UNAVAILABLE
        assert counted(server, "greeting") >= 2
        use(client)


@pytest.mark.parametrize("door", ["resp", "flight", "grpc"])
def test_a_connection_that_says_nothing_for_long_is_closed_and_a_client_of_ours_makes_another(
    tmp_path: Path, door: str
) -> None:
    with serving(tmp_path, idle_ms=1000) as server, fairlead.connect(server.address) as client:
        use(client)
        with connect(server.addresses[door]) as mute:
            until(lambda: is_closed(mute))
        until(lambda: counted(server, "idle") >= 1)
        use(client)


def test_requests_that_never_become_whole_are_bounded_together(tmp_path: Path) -> None:
    """pyarrow would wait for 2 GiB of each."""
    large = frame(metadata=bytes(100_000_000))
    with serving(tmp_path, max_arriving_bytes="16MiB") as server:
        before = usage(server.pid)["rss"]
        with ThreadPoolExecutor(8) as pool, ExitStack() as all_of_them:
            for _ in range(8):
                stranger = all_of_them.enter_context(Stranger(server.addresses["flight"]))
                stranger.send(opening("write"), large)
                # gRPC sends a request in time only while somebody waits for its answer.
                pool.submit(stranger.outcome)
            until(lambda: counted(server, "arriving_bytes") >= 1)
            with fairlead.connect(server.address) as client:
                assert client.stats("q").ready == 0
        until(lambda: usage(server.pid)["rss"] < before + 300)


def test_requests_in_a_row_are_not_taken_for_one_that_never_ends(tmp_path: Path) -> None:
    with serving(tmp_path, max_arriving_bytes="1MiB") as server, fairlead.connect(server.address) as client:
        messages = [fairlead.NewMessage(bytes(50_000))] * 10
        for _ in range(100):
            client.enqueue_many("q", messages)
        assert client.purge("q") == 1000
        assert counted(server, "arriving_bytes") == 0


def test_channels_are_counted_before_they_say_anything(tmp_path: Path) -> None:
    with serving(tmp_path, max_channels=10, greeting_ms=600_000) as server, ExitStack() as all_of_them:
        for _ in range(10):
            all_of_them.enter_context(Stranger(server.addresses["flight"]))
        refusal: str | None = None
        for _ in range(50):
            # Whoever asks before all ten are there has the place of one of them, who is then refused and does
            # not come again.
            all_of_them.enter_context(Stranger(server.addresses["flight"]))
            refusal = _refused_channel(server)
            if refusal is not None:
                break
        assert refusal is not None
        assert refusal.startswith("the server is at its limit of 10 open channels")
        assert counted(server, "channels") >= 1


def _refused_channel(server: ServerProcess) -> str | None:
    with Stranger(server.addresses["flight"]) as one_more:
        one_more.send(opening("browse"))
        one_more.end()
        outcome = one_more.outcome()
    return None if outcome == "ended" else outcome


def test_one_connection_cannot_have_all_channels(tmp_path: Path) -> None:
    with (
        serving(tmp_path, max_channels_per_connection=3) as server,
        grpc.insecure_channel(server.addresses["flight"]) as connection,
    ):
        exchange = connection.stream_stream("/arrow.flight.protocol.FlightService/DoExchange")
        stays = threading.Event()

        def begin() -> Iterator[bytes]:
            yield opening("write")
            stays.wait(PATIENCE_S)

        calls = [exchange(begin(), timeout=PATIENCE_S) for _ in range(4)]
        ended = [call for call in calls if _ends(call)]
        assert [
            call.details().startswith("the server is at its limit of 3 open channels of one connection")
            for call in ended
        ] == [True]
        stays.set()
        for call in calls:
            call.cancel()
        assert counted(server, "channels_per_connection") == 1


def _ends(call: grpc.Call) -> bool:
    """A channel that was taken tells its schema first."""
    try:
        next(call)  # type: ignore[call-overload]
    except grpc.RpcError:
        return True
    return False


def test_one_connection_cannot_have_all_streams_of_the_grpc_door(tmp_path: Path) -> None:
    with serving(tmp_path, max_streams_per_connection=3) as server:
        with grpc.insecure_channel(server.addresses["grpc"]) as connection:
            service = service_pb2_grpc.FilaServiceStub(connection)
            streams = [
                service.Consume(service_pb2.ConsumeRequest(queue="q"), timeout=PATIENCE_S) for _ in range(3)
            ]
            for stream in streams:
                assert stream.initial_metadata() is not None
            with pytest.raises(grpc.RpcError) as refused:
                next(service.Consume(service_pb2.ConsumeRequest(queue="q"), timeout=PATIENCE_S))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "3 open streams of one connection" in refused.value.details()
            for stream in streams:
                stream.cancel()
        assert counted(server, "streams_per_connection") == 1


def test_what_quiet_channels_still_hold_of_their_last_requests_is_bounded(tmp_path: Path) -> None:
    """pyarrow lets go of a request when the next one has come."""
    batch = pa.RecordBatch.from_pylist([{"payload": bytes(5 << 20)}] * 4, schema=MESSAGES)
    header, body = batch_parts(batch)
    with serving(tmp_path, max_arriving_bytes="64MiB") as server, ExitStack() as all_of_them:
        for _ in range(10):
            stranger = all_of_them.enter_context(Stranger(server.addresses["flight"]))
            stranger.send(opening("write"), request(MESSAGES, header, body, put("nowhere")))
            assert stranger.outcome() == "queue_not_found"
        until(lambda: counted(server, "arriving_bytes") >= 6)
