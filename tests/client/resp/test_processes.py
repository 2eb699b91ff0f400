"""A client and a server that is killed and restarted, and a process that has nothing but the client."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Complete
from fairlead.errors import ServerUnreachable
from fairlead.testing import ServerProcess, run_server
from tests.client.resp.clients import PATIENCE_S, connect
from tests.client.resp.conftest import Site


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data", flight=False, settings={"durability": "os"}) as server:
        yield server


def address_of(server: ServerProcess) -> str:
    return f"fairlead://{server.addresses['resp']}"


def test_a_client_comes_back_after_the_server_was_killed(server: ServerProcess, kind: str) -> None:
    with connect(kind, address_of(server)) as client:
        client.create_queue("q", visibility_timeout="60s")
        client.enqueue("q", b"before")
        (delivery,) = client.claim("q", wait="1s")
        server.restart(kill=True)
        after = client.enqueue("q", b"after")
        assert client.settle([Complete(delivery)])[0].outcome == "completed"
        assert [info.id for info in client.peek("q")] == [after]


def test_a_claim_that_waits_goes_on_waiting_through_a_restart(server: ServerProcess, kind: str) -> None:
    with connect(kind, address_of(server), retry_for="60s") as client:
        client.create_queue("q")
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
    with connect(kind, address_of(server), retry_for="300ms") as client:
        client.create_queue("q")
        server.kill()
        for call in (
            lambda: client.stats("q"),
            lambda: client.enqueue("q", b""),
            lambda: client.claim("q", wait="1h"),
        ):
            with pytest.raises(ServerUnreachable):
                call()


BLOCKING = """
with fairlead.connect({address!r}) as client:
    client.enqueue("q", b"x")
    assert client.claim("q", wait="1ms", token="t") or True
    show()
"""
ASYNCIO = """
import asyncio, fairlead.aio
async def main():
    async with await fairlead.aio.connect({address!r}) as client:
        await client.enqueue("q", b"x")
        (delivery,) = await client.claim("q", wait="1s")
        show()
        await client.settle([fairlead.Complete(delivery)])
asyncio.run(main())
"""
SHOW = """
import sys, threading, fairlead
def show():
    heavy = ("pyarrow", "rocksdict", "lupa", "re2", "grpc", "numpy", "fairlead.engine", "fairlead.store")
    loaded = [name for name in sys.modules if name.startswith(heavy)]
    print(loaded, [one.name for one in threading.enumerate()])
"""


def run_python(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.stderr == ""
    return ran.stdout.strip()


def test_the_asyncio_client_loads_no_engine_and_no_pyarrow_and_has_no_thread(site: Site) -> None:
    assert run_python(SHOW + ASYNCIO.format(address=site.address)) == "[] ['MainThread']"


def test_the_blocking_client_loads_no_engine_and_no_pyarrow_and_has_no_thread_before_it_holds_a_lease(
    site: Site,
) -> None:
    code = BLOCKING.replace('    assert client.claim("q", wait="1ms", token="t") or True\n', "")
    assert run_python(SHOW + code.format(address=site.address)) == "[] ['MainThread']"


def test_a_loop_has_no_thread_but_the_heartbeat(site: Site) -> None:
    site.broker.enqueue("q", b"x")
    code = f"""
with fairlead.connect({site.address!r}) as client:
    for delivery in client.consume("q"):
        client.settle([fairlead.Complete(delivery)])
        break
    show()
"""
    assert run_python(SHOW + code) == "[] ['MainThread', 'fairlead-heartbeat']"


def test_a_program_that_forgets_to_close_ends(site: Site) -> None:
    code = f"client = fairlead.connect({site.address!r}); client.enqueue('q', b''); client.claim('q'); print('over')"
    assert run_python("import fairlead\n" + code) == "over"


def test_a_forked_child_is_told_to_connect_anew(site: Site) -> None:
    code = f"""
import os, fairlead
client = fairlead.connect({site.address!r})
if os.fork() == 0:
    try:
        client.enqueue("q", b"")
    except fairlead.errors.ClientForked:
        print("forked", flush=True)
    os._exit(0)
os.wait()
client.enqueue("q", b"")
print("parent")
"""
    assert run_python(code) == "forked\nparent"
