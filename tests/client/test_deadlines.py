"""Every call ends within `timeout` + `retry_for`, whatever the server does; a claim's `wait` comes on top."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import fairlead
from fairlead import Complete, NewMessage
from fairlead.errors import AnswerLost, ProtocolMismatch, ServerUnreachable, Unavailable
from fairlead.model.settle import LeaseRef
from fairlead.testing import ServerProcess, run_server
from fairlead.testing.server import free_ports
from fairlead.verbs.enqueue import EnqueueMany
from tests.client.clients import KINDS, PATIENCE_S, Listener, connect

TIMEOUT_MS = RETRY_FOR_MS = 400
#: The promised end of a call, and by which factor a busy machine may miss it.
DEADLINE_S = (TIMEOUT_MS + RETRY_FOR_MS) / 1000
SLACK = 3
SHORT = {"timeout": f"{TIMEOUT_MS}ms", "retry_for": f"{RETRY_FOR_MS}ms"}

CALLS: dict[str, Callable[[Any], Any]] = {
    "enqueue": lambda client: client.enqueue("q", b"x"),
    "enqueue_many": lambda client: client.enqueue_many("q", [NewMessage(bytes(1000))] * 5000),
    "settle": lambda client: client.settle([Complete(LeaseRef(bytes(16), 1))]),
    "claim": lambda client: client.claim("q"),
    "claim that waits": lambda client: client.claim("empty", wait="100ms"),
    "exchange": lambda client: client.exchange([EnqueueMany("q", [NewMessage(b"x")])]),
    "stats": lambda client: client.stats("q"),
    "purge": lambda client: client.purge("q"),
}
BATCH = pa.RecordBatch.from_pylist([{"payload": b"x"}], schema=pa.schema([("payload", pa.binary())]))
#: Calls of groups. Those with rows travel by Arrow Flight.
GROUP_CALLS: dict[str, Callable[[Any], Any]] = {
    "config.get": lambda client: client.config.get("k"),
    "consumers.claim": lambda client: client.consumers.claim("c", "q", 1, 1),
    "consumers.read": lambda client: next(client.consumers.read("c", "q", 1, 1)),
    "staging.stage_batch": lambda client: client.staging.stage_batch("t", "c", "q", BATCH),
    "browse_batches": lambda client: next(client.browse_batches("q")),
}


@contextmanager
def refusing() -> Iterator[str]:
    (port,) = free_ports(1)
    yield f"127.0.0.1:{port}"


@contextmanager
def silent() -> Iterator[str]:
    """It accepts and reads, and never answers."""

    def read(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            pass

    with Listener(read) as listener:
        yield listener.address


@contextmanager
def not_accepting() -> Iterator[str]:
    """Once its backlog is full, attempts to connect get no answer at all, as from a host that is gone."""
    with Listener(backlog=0) as listener:
        host, port = "127.0.0.1", int(listener.address.rpartition(":")[2])
        full = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((host, port))
            full.append(filler)
        yield listener.address
        for filler in full:
            filler.close()


@contextmanager
def ending() -> Iterator[str]:
    """It closes each connection at once."""
    with Listener(lambda connection: connection.close()) as listener:
        yield listener.address


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("stopped") / "data"
    with run_server(data, settings={"durability": "os"}) as server:
        with connect("blocking", server.address) as client:
            client.create_queue("q")
            client.create_queue("empty")
        yield server
        server.resume_process()


def elapsed_s(call: Callable[[], Any]) -> tuple[float, BaseException | None]:
    began = time.monotonic()
    error = None
    try:
        call()
    except Unavailable as raised:
        error = raised
    return time.monotonic() - began, error


def run_together(calls: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, BaseException | None]]:
    found: dict[str, tuple[float, BaseException | None]] = {}

    def run(name: str, call: Callable[[], Any]) -> None:
        found[name] = elapsed_s(call)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in calls.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return found


def assert_in_time(found: dict[str, tuple[float, BaseException | None]], names: object) -> None:
    assert set(found) == set(names)  # type: ignore[call-overload]
    assert {name: took for name, (took, _) in found.items() if took > SLACK * DEADLINE_S} == {}
    wrong = {
        name: error
        for name, (_, error) in found.items()
        if not isinstance(error, (ServerUnreachable, AnswerLost))
    }
    assert wrong == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [refusing, silent, not_accepting, ending], ids=lambda place: place.__name__)
def test_connect_ends_within_its_deadline(kind: str, place: Any) -> None:
    with place() as address:
        found = {"connect": elapsed_s(lambda: connect(kind, address, **SHORT))}
    assert_in_time(found, ["connect"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\x12\x04\0\0\0\0\0\0"], ids=["HTTP/1", "HTTP/2"]
)
def test_a_server_of_another_protocol_is_refused_at_once(kind: str, said: bytes) -> None:
    with (
        Listener(lambda connection: connection.sendall(said)) as listener,
        pytest.raises(ProtocolMismatch, match="5554"),
    ):
        connect(kind, listener.address, retry_for="1h")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tls", [None, True])
def test_connect_to_a_stopped_server_ends_within_its_deadline(
    server: ServerProcess, kind: str, tls: bool | None
) -> None:
    server.pause()
    try:
        found = {"connect": elapsed_s(lambda: connect(kind, server.address, tls=tls, **SHORT))}
    finally:
        server.resume_process()
    assert_in_time(found, ["connect"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_to_a_stopped_server_ends_within_its_deadline(server: ServerProcess, kind: str) -> None:
    with connect(kind, server.address, **SHORT) as client:
        client.claim("empty", wait="1ms")
        server.pause()
        try:
            found = run_together({name: lambda call=call: call(client) for name, call in CALLS.items()})
            closing, _ = elapsed_s(
                lambda: client.close(goodbye=True) if kind == "blocking" else client.close()
            )
        finally:
            server.resume_process()
    assert_in_time(found, CALLS)
    assert closing < SLACK * DEADLINE_S


@pytest.mark.parametrize("state", ["channels open", "no channel open"])
def test_every_call_of_a_group_to_a_stopped_server_ends_within_its_deadline(
    server: ServerProcess, state: str
) -> None:
    with fairlead.connect(server.address, **SHORT) as client:
        if state == "channels open":
            list(client.browse_batches("empty"))
            client.staging.stage_batch("t", "c", "q", BATCH)
        loop = client.consume("empty")
        server.pause()
        try:
            found = run_together({name: lambda call=call: call(client) for name, call in GROUP_CALLS.items()})
            closing, _ = elapsed_s(lambda: client.close(goodbye=True))
            loop.close()
        finally:
            server.resume_process()
    assert_in_time(found, GROUP_CALLS)
    assert closing < SLACK * DEADLINE_S


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_wait_behind_others_end_within_their_own_deadlines(
    server: ServerProcess, kind: str
) -> None:
    with connect(kind, server.address, **SHORT) as client:
        server.pause()
        try:
            found = run_together({str(n): lambda: client.enqueue("q", bytes(900_000)) for n in range(12)})
        finally:
            server.resume_process()
    assert_in_time(found, [str(n) for n in range(12)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_claim_may_wait_for_messages_as_long_as_it_says_on_top(server: ServerProcess, kind: str) -> None:
    with connect(kind, server.address, **SHORT) as client:
        took, error = elapsed_s(lambda: client.claim("empty", wait=f"{2 * DEADLINE_S}s"))
    assert error is None
    assert took > DEADLINE_S


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_ends_with_an_error_when_the_server_stays_away(server: ServerProcess, kind: str) -> None:
    with connect(kind, server.address, **SHORT) as client:
        loop = client.consume("empty")
        server.pause()
        try:
            take = (lambda: next(loop)) if kind == "blocking" else (lambda: client.wait(anext(loop)))
            error = elapsed_s(take)[1]
        finally:
            server.resume_process()
    assert isinstance(error, ServerUnreachable)
