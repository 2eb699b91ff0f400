"""A fork, the end of the process, and an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest

from fairlead import Client, errors
from tests.client.scene import PATIENCE_S, Scene, until
from tests.turns import turn

VERBS: dict[str, Callable[[Client], object]] = {
    "enqueue": lambda client: client.enqueue("q", b"from the child"),
    "claim": lambda client: client.claim("q", wait="1h"),
    "settle": lambda client: client.settle([]),
    "exchange": lambda client: turn(client, "ann", claim={"queue": "q"}),
    "stats": lambda client: client.stats("q"),
    "config": lambda client: client.config.list(),
    "consume": lambda client: next(client.consume("q")),
}


def in_a_child(work: Callable[[], str]) -> str:
    """What the work says in a forked process that then ends at once."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


def error_of(verb: Callable[[Client], object], client: Client) -> str:
    try:
        return repr(verb(client))
    except errors.FairleadError as error:
        return error.code


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_forked_child_is_told_that_the_client_is_not_its_own(
    scene: Scene, client: Client, verb: Callable[[Client], object]
) -> None:
    client.enqueue("q", b"")
    assert in_a_child(lambda: error_of(verb, client)) == "client_forked"
    assert client.claim("q")[0].payload == b""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_while_another_thread_has_a_lock_does_not_hang_the_child(client: Client) -> None:
    client.enqueue("q", b"")
    with client._core.connections.shared._lock, client._core.connections._lock:
        assert in_a_child(lambda: error_of(VERBS["enqueue"], client)) == "client_forked"


def script(scene: Scene, body: str) -> subprocess.Popen[str]:
    """A program with a client `client`, in a process of its own."""
    head = (
        f"import sys, threading, fairlead\nclient = fairlead.connect({scene.address!r}, consumer='child')\n"
    )
    return subprocess.Popen(
        [sys.executable, "-u", "-c", head + textwrap.dedent(body)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize(
    "body",
    [
        "client.enqueue('q', b'')",
        "client.enqueue('q', b''); print(client.claim('q')[0].queue)",
        "def wait():\n"
        "    try: client.claim('q', wait='1h')\n"
        "    except fairlead.errors.ClientClosed: pass\n"
        "threading.Thread(target=wait, daemon=True).start()\nclient.stats('q')",
        "deliveries = client.consume('q')\nclient.enqueue('q', b'')\nnext(deliveries)",
        "import asyncio, fairlead.aio\nclient.enqueue('q', b'')\n"
        "async def main():\n"
        "    face = await fairlead.aio.connect(sys.argv[0] and client._core.options.address)\n"
        "    task = asyncio.create_task(face.claim('q', limit=2, wait='1h'))\n"
        "    print(len(await task))\n"
        "    asyncio.create_task(face.claim('q', wait='1h'))\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(main())",
    ],
    ids=["idle", "holding a lease", "a thread that waits in a claim", "a loop that is not closed", "asyncio"],
)
def test_a_program_that_does_not_close_its_client_ends_quietly(scene: Scene, body: str) -> None:
    code, _, err = outcome(script(scene, body))
    assert (code, err) == (0, "")


def test_a_program_that_leaves_a_loop_open_gives_its_buffer_back_at_exit(scene: Scene) -> None:
    for at in range(5):
        scene.broker.enqueue("q", b"%d" % at)
    code, _, _ = outcome(
        script(scene, "import time\ndeliveries = client.consume('q')\nnext(deliveries)\nprint('ready')")
    )
    assert code == 0
    until(lambda: scene.counts() == (4, 0, 1, 0), "the buffer being given back")


@pytest.mark.parametrize(
    "body", ["client.claim('q', wait='1h')", "next(client.consume('q'))"], ids=["claim", "consume"]
)
def test_an_interrupt_ends_a_program_that_waits(scene: Scene, body: str) -> None:
    process = script(scene, body)
    until(lambda: scene.broker.stats("q").consumers == 1, "the program waiting")
    process.send_signal(signal.SIGINT)
    code, _, err = outcome(process)
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in err


def test_a_client_leaves_no_thread_behind(scene: Scene) -> None:
    before = set(threading.enumerate())
    client = scene.client()
    client.enqueue("q", b"")
    client.claim("q")
    with client.consume("q"):
        pass
    list(client.browse_batches("q"))
    client.close()
    ours = ("fairlead-heartbeat", "fairlead-watchdog", "fairlead-client")
    until(
        lambda: not [one for one in set(threading.enumerate()) - before if one.name in ours],
        "the threads ending",
    )
