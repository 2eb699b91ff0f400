"""A process that has nothing but the client: what it loads, its threads, how it ends, and its children."""

from __future__ import annotations

import subprocess
import sys

from tests.client.clients import PATIENCE_S
from tests.client.two_clients import Site

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
