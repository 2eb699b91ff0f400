"""Every call ends within `timeout` + `retry_for`, whatever the server does; a claim's `wait` comes on top."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import fairlead
import fairlead.aio
from fairlead import Complete, NewMessage
from fairlead.errors import AnswerLost, ServerUnreachable, Unavailable
from fairlead.model.settle import LeaseRef
from fairlead.testing import ServerProcess, run_server
from tests.turns import turn

TIMEOUT_MS = RETRY_FOR_MS = 500
#: The promised end of a call, and by which factor a busy machine may miss it.
DEADLINE_S = (TIMEOUT_MS + RETRY_FOR_MS) / 1000
SLACK = 3
SHORT = {"timeout": f"{TIMEOUT_MS}ms", "retry_for": f"{RETRY_FOR_MS}ms"}
SOME_LEASE = LeaseRef(bytes(16), 1)
BATCH = pa.RecordBatch.from_pylist([{"payload": b"x"}], schema=pa.schema([("payload", pa.binary())]))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server(tmp_path_factory.mktemp("stopped") / "data", settings={"durability": "os"}) as server:
        with fairlead.connect(server.address) as client:
            client.create_queue("q")
            client.create_queue("empty")
        yield server
        server.resume_process()


def elapsed_s(call: Callable[[], Any]) -> tuple[float, BaseException | None]:
    began = time.monotonic()
    error = None
    try:
        call()
    except (Unavailable, StopIteration) as raised:
        error = raised
    return time.monotonic() - began, error


def run_together(calls: dict[str, Callable[[], Any]]) -> dict[str, tuple[float, BaseException | None]]:
    """Each in a thread of its own, all at the same time."""
    found: dict[str, tuple[float, BaseException | None]] = {}

    def run(name: str, call: Callable[[], Any]) -> None:
        found[name] = elapsed_s(call)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in calls.items()]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + SLACK * DEADLINE_S + 20
    for thread in threads:
        thread.join(max(0, ends - time.monotonic()))
    return found


CALLS: dict[str, Callable[[fairlead.Client], Any]] = {
    "enqueue": lambda client: client.enqueue("q", b"x"),
    "enqueue_many": lambda client: client.enqueue_many("q", [NewMessage(b"x")] * 1000),
    "settle": lambda client: client.settle([Complete(SOME_LEASE)]),
    "claim": lambda client: client.claim("q"),
    "exchange": lambda client: turn(client, "somebody", enqueue={"q": [NewMessage(b"x")]}),
    "stats": lambda client: client.stats("q"),
    "purge": lambda client: client.purge("q"),
    "consumers.claim": lambda client: client.consumers.claim("c", "q", 1, 1),
    "consumers.read": lambda client: next(client.consumers.read("c", "q", 1, 1)),
    "staging.stage_batch": lambda client: client.staging.stage_batch("t", "c", "q", BATCH),
    "browse_batches": lambda client: next(client.browse_batches("q")),
    "config.get": lambda client: client.config.get("k"),
}


@pytest.fixture
def stopped(server: ServerProcess) -> Iterator[ServerProcess]:
    server.pause()
    yield server
    server.resume_process()


def assert_in_time(found: dict[str, tuple[float, BaseException | None]], names: object) -> None:
    assert set(found) == set(names)  # type: ignore[call-overload]
    late = {name: took for name, (took, _) in found.items() if took > SLACK * DEADLINE_S}
    assert late == {}
    assert {
        name: error
        for name, (_, error) in found.items()
        if not isinstance(error, (ServerUnreachable, AnswerLost))
    } == {}


@pytest.mark.parametrize("state", ["channels open", "no channel open"])
def test_every_call_to_a_stopped_server_ends_within_its_deadline(server: ServerProcess, state: str) -> None:
    with fairlead.connect(server.address, **SHORT) as client:
        if state == "channels open":
            client.enqueue("q", b"x")
            client.claim("q")
        loop = client.consume("empty")
        server.pause()
        try:
            found = run_together({name: lambda call=call: call(client) for name, call in CALLS.items()})
            closing, _ = elapsed_s(lambda: client.close(goodbye=True))
            loop.close()
        finally:
            server.resume_process()
    assert_in_time(found, CALLS)
    assert closing < SLACK * DEADLINE_S


@pytest.mark.parametrize("tls", [None, True])
def test_connect_to_a_stopped_server_ends_within_its_deadline(
    stopped: ServerProcess, tls: bool | None
) -> None:
    found = {
        "connect": elapsed_s(lambda: fairlead.connect(stopped.address, tls=tls, **SHORT)),
        "aio.connect": elapsed_s(
            lambda: asyncio.run(fairlead.aio.connect(stopped.address, tls=tls, **SHORT))
        ),
    }
    assert_in_time(found, found)


def test_every_call_of_the_asyncio_client_to_a_stopped_server_ends_within_its_deadline(
    server: ServerProcess,
) -> None:
    found: dict[str, tuple[float, BaseException | None]] = {}

    async def one(name: str, call: Callable[[], Awaitable[Any]]) -> None:
        began = time.monotonic()
        try:
            await call()
        except Unavailable as error:
            found[name] = time.monotonic() - began, error

    async def run() -> None:
        client = await fairlead.aio.connect(server.address, **SHORT)
        await client.enqueue("q", b"x")
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "enqueue": lambda: client.enqueue("q", b"x"),
            "settle": lambda: client.settle([Complete(SOME_LEASE)]),
            "claim": lambda: client.claim("q"),
            "stats": lambda: client.stats("q"),
        }
        server.pause()
        try:
            await asyncio.gather(*(one(name, call) for name, call in calls.items()))
            await one("close", lambda: client.close(goodbye=True))
        finally:
            server.resume_process()

    asyncio.run(run())
    assert_in_time(found, ["enqueue", "settle", "claim", "stats", "close"])


def test_a_claim_may_wait_for_messages_as_long_as_it_says_on_top(server: ServerProcess) -> None:
    with fairlead.connect(server.address, **SHORT) as client:
        took, error = elapsed_s(lambda: client.claim("empty", wait=f"{2 * DEADLINE_S}s"))
    assert error is None
    assert took > DEADLINE_S


def test_calls_that_wait_behind_others_end_within_their_own_deadlines(server: ServerProcess) -> None:
    """Enqueues share requests: a call that waits for a request of others has no more time than one that does
    not.
    """
    with fairlead.connect(server.address, **SHORT) as client:
        client.enqueue("q", b"x")
        server.pause()
        try:
            found = run_together({str(n): lambda: client.enqueue("q", bytes(4 << 20)) for n in range(12)})
        finally:
            server.resume_process()
    assert_in_time(found, [str(n) for n in range(12)])
