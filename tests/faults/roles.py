"""What a client process of these tests does: `python -m tests.faults.roles ROLE JSON`. A role per function,
started by `ClientProcess`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fairlead
from fairlead import Complete
from fairlead.clock import SystemClock
from fairlead.errors import ClientClosed
from tests.crash.journal import Journal

from .load import ClientLoad


def hold(address: str, queue: str, heartbeat: bool) -> None:
    """Claim one, and complete it when told. With heartbeats it first waits until one of them has learnt of
    the loss.
    """
    with fairlead.connect(address, heartbeat_cap="10m" if heartbeat else None) as client:
        (delivery,) = client.claim(queue, wait="60s")
        say({"id": delivery.id, "attempts": delivery.attempts})
        listen()
        while heartbeat and not client.is_lost(delivery):
            time.sleep(0.01)
        known = client.is_lost(delivery)
        (result,) = client.settle([Complete(delivery)])
        say({"known": known, "outcome": result.outcome, "lost": client.is_lost(delivery)})


def prefetch(address: str, queue: str, prefetch: int) -> None:
    """Take one of a loop, and do nothing more."""
    client = fairlead.connect(address)
    for delivery in client.consume(queue, prefetch=prefetch):
        say({"id": delivery.id})
        listen()


def work(address: str, queue: str, journal: str, name: str, prefetch: int = 10, work_ms: int = 2) -> None:
    """Work in a loop until stdin ends; each piece of work is a line in the journal, written when it begins."""
    done = threading.Event()
    written = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with fairlead.connect(address, retry_for="90s") as client:
        loop = client.consume(queue, prefetch=prefetch)

        def run() -> None:
            for delivery in loop:
                os.write(written, f"{name} {delivery.payload.decode()}\n".encode())
                time.sleep(work_ms / 1000)
                client.settle([Complete(delivery)])
            done.set()

        threading.Thread(target=run, daemon=True).start()
        say("ready")
        until_told()
        loop.close()
        assert done.wait(60)


def idle(address: str, queue: str, count: int, wait: str) -> None:
    """So many long-polls at a time, each on a thread of its own, until the process ends or stdin does."""
    with fairlead.connect(address, retry_for="90s") as client:

        def poll() -> None:
            with contextlib.suppress(ClientClosed):
                while True:
                    client.claim(queue, wait=wait)

        polls = [threading.Thread(target=poll, daemon=True) for _ in range(count)]
        for each in polls:
            each.start()
        say("ready")
        until_told()
    for each in polls:
        # A daemon thread that is still inside the library when Python ends takes the process with it.
        each.join(60)


def load(
    address: str,
    journal: str,
    life: int,
    seed: int,
    heartbeat: str | None,
    jobs: list[str],
    tls: str | None,
    api_key: str | None,
) -> None:
    """A part of the crash tests' workload, until stdin ends."""
    way = {"tls": tls, "api_key": api_key}
    with fairlead.connect(address, retry_for="90s", heartbeat_cap=heartbeat, **way) as client:
        told = Journal(Path(journal), life, SystemClock().now_ms)
        ClientLoad(client, told, seed=seed, life=life).run_until(until_told, tuple(jobs))


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def listen() -> Any:
    """The next word of the test; without a test any longer, the process ends."""
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    return json.loads(line)


def until_told() -> None:
    sys.stdin.read()


ROLES: dict[str, Callable[..., None]] = {role.__name__: role for role in (hold, prefetch, work, idle, load)}

if __name__ == "__main__":
    ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
