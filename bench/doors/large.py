"""`python -m bench.doors.large`: single enqueues at the door that speaks Redis, alone and beside a connection that
enqueues messages of 16 MiB, claims and completes them.

Both cases take turns on one server, in rounds. Shown are how long a single enqueue takes, and how long the event loop of
the server was held, by its own CPU time (`held.py`), because other work on the machine delays enqueues too.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import quantiles
from time import monotonic, perf_counter, sleep

import hiredis

from bench.doors import held
from fairlead.testing.server import ServerProcess, free_ports

_SMALL, _LARGE = "small", "large"
_NOT_YET = object()
_PAUSE_S = 0.001


class Plain:
    """A connection that sends commands in plain words, one after the other."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(notEnoughData=_NOT_YET)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, *words: bytes) -> object:
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
        self._socket.sendall(b"".join(parts))
        while (reply := self._reader.gets()) is _NOT_YET:
            self._reader.feed(self._socket.recv(1 << 20))
        if isinstance(reply, hiredis.ReplyError):
            raise RuntimeError(str(reply))
        return reply


def be_neighbour(address: str, size: int) -> None:
    """Until this process is ended."""
    payload = bytes(size)
    with Plain(address) as connection:
        print("ready", flush=True)
        while True:
            connection.ask(b"FL.ENQUEUE", _LARGE.encode(), payload)
            [delivery] = connection.ask(b"FL.CLAIM", _LARGE.encode())
            fields = dict(zip(delivery[::2], delivery[1::2], strict=True))
            connection.ask(b"FL.SETTLE", b"COMPLETE", fields[b"id"], fields[b"lease"])
            print("one", flush=True)


class Neighbour:
    """In a process of its own, because it would hold up the singles of this one."""

    def __init__(self, address: str, size: int) -> None:
        command = [sys.executable, "-m", "bench.doors.large", "--neighbour", address, "--bytes", str(size)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> int:
        """How many messages it got done."""
        self._process.terminate()
        done = self._process.communicate()[0]
        return done.count("one")


def enqueue_singles(address: str, seconds: float) -> list[float]:
    """How long each takes, in milliseconds."""
    taken: list[float] = []
    until = monotonic() + seconds
    with Plain(address) as connection:
        while monotonic() < until:
            began = perf_counter()
            connection.ask(b"FL.ENQUEUE", _SMALL.encode(), b"x" * 100)
            taken.append(1000 * (perf_counter() - began))
            sleep(_PAUSE_S)
    return taken


def shown(title: str, values: list[float]) -> str:
    cuts = quantiles(values, n=1000, method="inclusive")
    return f"{title:28} p50 {cuts[499]:7.2f}  p99 {cuts[989]:7.2f}  p99.9 {cuts[998]:7.2f}  max {max(values):7.2f} ms"


def measure(durability: str, rounds: int, seconds: float, size: int) -> None:
    with tempfile.TemporaryDirectory(prefix="fairlead-large-") as folder:
        home = Path(folder)
        server = ServerProcess(
            home / "data",
            {"resp": f"127.0.0.1:{free_ports(1)[0]}"},
            {"durability": durability},
            held.COMMAND,
            {held.DIRECTORY: str(home)},
        )
        server.start()
        try:
            address = server.addresses["resp"]
            with Plain(address) as connection:
                for queue in (_SMALL, _LARGE):
                    connection.ask(b"FL.CREATE_QUEUE", queue.encode())
            taken: dict[str, list[float]] = {"alone": [], "beside": []}
            held_ms: dict[str, list[float]] = {"alone": [], "beside": []}
            done = 0
            for turn in range(2 * rounds):
                case = ("alone", "beside")[turn % 2]
                neighbour = Neighbour(address, size) if case == "beside" else None
                held.ask(home)
                taken[case] += enqueue_singles(address, seconds)
                held_ms[case] += held.ask(home)
                done += 0 if neighbour is None else neighbour.end()
        finally:
            server.stop()
    print(
        f"durability {durability}, {rounds} rounds of {seconds} s, {done} messages of {size:,} bytes beside"
    )
    for case in taken:
        print(shown(f"single enqueue, {case}", taken[case]))
        print(shown(f"event loop held, {case}", held_ms[case]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--durability", action="append", choices=("os", "fsync"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--bytes", type=int, default=16 * 1024 * 1024)
    parser.add_argument("--neighbour", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.neighbour:
        be_neighbour(given.neighbour, given.bytes)
        return
    for durability in given.durability or ("os", "fsync"):
        measure(durability, given.rounds, given.seconds, given.bytes)


if __name__ == "__main__":
    main()
