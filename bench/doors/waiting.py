"""What connections cost that do nothing: claims that wait, and connections that are only open.

Each has a socket of its own, spoken to without a client, so that the server's memory and threads are what is measured.
"""

from __future__ import annotations

import re
import resource
import selectors
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep

import msgspec

from bench.doors.servers import cpu_s
from fairlead.testing.server import ServerProcess, free_ports

_QUEUE = b"crowd"
_PATIENCE_S = 60.0
#: Connections that the server has room for beside those that are measured.
_SPARE = 100


class Crowd(msgspec.Struct, frozen=True):
    """`waited`: claims that waited, and got their message; else connections, each of which answered afterwards."""

    waited: bool
    connections: int
    kb_each: float
    threads_before: int
    threads: int
    seconds: float


def measure_crowds(home: Path, waiting_claims: int, idle_connections: int) -> list[Crowd]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # As many as the server keeps a door for.
    fit = most * 3 // 4 - _SPARE
    counts = {True: min(waiting_claims, fit), False: min(idle_connections, fit)}
    found: list[Crowd] = []
    for waited, count in counts.items():
        with _server(home / f"doors-crowd-{count}", count + _SPARE) as server:
            host, _, port = server.addresses["resp"].rpartition(":")
            found.append(_measure(server, (host, int(port)), count, waited=waited))
    return found


@contextmanager
def _server(data: Path, most_open: int) -> Iterator[ServerProcess]:
    settings = {
        "durability": "os",
        "limits.max_connections": most_open,
        "limits.max_connections_per_address": most_open,
    }
    server = ServerProcess(data, {"resp": f"127.0.0.1:{free_ports(1)[0]}"}, settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _measure(server: ServerProcess, address: tuple[str, int], count: int, *, waited: bool = False) -> Crowd:
    """What `count` connections add to the server, and how long all their answers take when they are due at once."""
    with _connections(address, 1) as (asking,):
        _ask(asking, b"FL.CREATE_QUEUE %b" % _QUEUE)
        kb, threads = _kb_and_threads(server.pid)
        with _connections(address, count) as crowd:
            if waited:
                for one in crowd:
                    one.sendall(b"FL.CLAIM %b WAIT 60s\r\n" % _QUEUE)
            _rest(server)
            kb_with, threads_with = _kb_and_threads(server.pid)
            began = monotonic()
            if waited:
                for _ in range(count):
                    _ask(asking, b"FL.ENQUEUE %b x" % _QUEUE)
            else:
                for one in crowd:
                    one.sendall(b"PING\r\n")
            _read_all(crowd)
            took = monotonic() - began
    return Crowd(waited, count, (kb_with - kb) / count, threads, threads_with, took)


@contextmanager
def _connections(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection(address, _PATIENCE_S)))
            # At once: who says nothing for long is taken for a stranger and closed.
            _ask(opened[-1], b"PING")
        yield opened


def _ask(one: socket.socket, command: bytes) -> bytes:
    one.sendall(command + b"\r\n")
    answer = one.recv(1 << 16)
    if not answer or answer.startswith(b"-"):
        raise AssertionError(f"{command!r} was answered {answer!r}")
    return answer


def _read_all(crowd: Sequence[socket.socket]) -> None:
    """One answer from each, in any order."""
    with selectors.DefaultSelector() as selector:
        for one in crowd:
            selector.register(one, selectors.EVENT_READ)
        left, deadline = len(crowd), monotonic() + _PATIENCE_S
        while left:
            ready = selector.select(max(0.0, deadline - monotonic()))
            if not ready:
                raise AssertionError(f"{left} of {len(crowd)} connections were not answered")
            for key, _ in ready:
                one = key.fileobj
                assert isinstance(one, socket.socket)
                answer = one.recv(1 << 16)
                if not answer or answer.startswith(b"-"):
                    raise AssertionError(f"a connection got {answer!r}")
                selector.unregister(one)
                left -= 1


def _rest(server: ServerProcess) -> None:
    """Returns when the server has taken up all that was sent."""
    used = -1.0
    while used != (used := cpu_s(server.pid)):
        sleep(0.3)


def _kb_and_threads(pid: int) -> tuple[int, int]:
    status = Path(f"/proc/{pid}/status").read_text()
    kb, threads = (re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE) for name in ("VmRSS", "Threads"))
    assert kb is not None
    assert threads is not None
    return int(kb[1]), int(threads[1])
