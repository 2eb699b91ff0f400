"""A contender of `bench.door_turns`, in a process of its own: `python -P bench/without_sockets.py CASE`.

The RESP door of a server works without sockets: bytes of a client are given to a connection, and its reply is read from
a transport that keeps it in memory. Engine, layers, metrics and RocksDB are those of a server with durability `os`. For
each line on its standard input, a number of lifecycles, the contender prints a JSON object: by step, the CPU
microseconds of the thread that serves one command. It imports nothing but what an older checkout has too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, thread_time_ns
from typing import Any

import fairlead
from fairlead import Complete
from fairlead.client.commands import answer_of, command_of, greeting_command, make_reader
from fairlead.config import ServerSettings
from fairlead.decide.redact import Redaction
from fairlead.middleware.stack import Layers
from fairlead.server.collector import spare_what_is_there
from fairlead.server.limits import Limits
from fairlead.server.metrics import Metrics
from fairlead.server.resp.connection import Connection
from fairlead.server.resp.door import RespDoor
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Settle
from fairlead.wire.numbered import Numbered

PAYLOAD_BYTES = 1024
#: One connection with sessions and without; with an API key; many connections whose enqueues come in one turn.
CASES = ("numbered", "bare", "keys", "turn of 10", "turn of 100")
_QUEUE = "q"

Lifecycles = Callable[[int], dict[str, float]]


class _Loop:
    """As much of an event loop as the door uses."""

    thread_id = None

    def __init__(self) -> None:
        self.loop = self
        self._soon: deque[tuple[Any, Any]] = deque()

    def call_soon(self, work: Callable[..., object], *values: object) -> None:
        self._soon.append((work, values))

    def time(self) -> float:
        return monotonic()

    def run(self) -> None:
        soon = self._soon
        while soon:
            work, values = soon.popleft()
            work(*values)


class _Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write = self.written.append
        self.writelines = self.written.extend

    def set_write_buffer_limits(self, **limits: object) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None


class _Client:
    """A connection and its session."""

    def __init__(self, door: RespDoor, loop: _Loop, *, key: str | None, is_numbered: bool) -> None:
        self._loop = loop
        self._transport = _Transport()
        self._connection = Connection(door, id(self))
        self._connection.connection_made(self._transport)  # type: ignore[arg-type]
        self._number = 0
        self._session = f"s{id(self)}" if is_numbered else ""
        self.give(greeting_command(key))
        loop.run()
        self._reply()
        if is_numbered:
            self.ask(OpenSession(self._session))

    def command(self, request: Any) -> bytes:
        """As our client sends it: claims have a token and no number."""
        if not self._session or isinstance(request, (Claim, OpenSession)):
            return command_of(request)
        self._number += 1
        return command_of(
            request, Numbered(session=self._session, number=self._number, arrived=self._number - 1)
        )

    def give(self, command: bytes) -> None:
        self._connection.data_received(command)

    def ask(self, request: Any) -> tuple[Any, float]:
        """The answer, and the nanoseconds that it took."""
        command = self.command(request)
        began = thread_time_ns()
        self.give(command)
        self._loop.run()
        took = thread_time_ns() - began
        return self.answer(request), took

    def answer(self, request: Any) -> Any:
        return answer_of(request, self._reply())[0]

    def _reply(self) -> Any:
        reader = make_reader()
        for written in self._transport.written:
            reader.feed(written)
        self._transport.written.clear()
        return reader.gets()


@contextmanager
def served(case: str, home: Path) -> Iterator[Lifecycles]:
    settings = ServerSettings(data=home, durability="os")
    limits, loop = Limits(settings.limits), _Loop()
    with fairlead.open(home, durability="os", settings=settings.engine()) as broker:
        broker.create_queue(_QUEUE, visibility_timeout="10m")
        has_keys = case == "keys"
        key = broker.keys.create("bench", ["admin:*", "produce:*", "consume:*"]).secret if has_keys else None
        layers = Layers(
            broker,
            Redaction(settings.redact.headers, settings.redact.json_paths),
            keys=has_keys,
            limits=limits,
        )
        metrics = Metrics(
            broker,
            data=home,
            limits=limits,
            settings=settings.metrics,
            certificate_ends=None,
            requests=layers.requests,
        )
        door: Any = RespDoor(
            broker, "127.0.0.1:0", limits, layers=layers, event_loop=loop, asks_for_keys=has_keys
        )  # type: ignore[arg-type]
        door._loop, door._all_gone = loop, _Event()
        count = int(case.rpartition(" ")[2]) if case.startswith("turn") else 1
        clients = [_Client(door, loop, key=key, is_numbered=case != "bare") for _ in range(count)]
        payload = os.urandom(PAYLOAD_BYTES)
        step = _Alone(clients[0], payload) if count == 1 else _Together(clients, loop, payload)
        spare_what_is_there()
        yield step.lifecycles
        del metrics


class _Event:
    def set(self) -> None: ...
    def clear(self) -> None: ...


class _Alone:
    def __init__(self, client: _Client, payload: bytes) -> None:
        self._client = client
        self._payload = payload
        self._claims = 0

    def lifecycles(self, count: int) -> dict[str, float]:
        took = {"enqueue": 0.0, "claim": 0.0, "complete": 0.0}
        ask = self._client.ask
        for n in range(count):
            _, ns = ask(Enqueue(_QUEUE, self._payload, fairness_key=f"k{n % 10}"))
            took["enqueue"] += ns
            self._claims += 1
            found, ns = ask(Claim(_QUEUE, consumer="c", token=f"t{self._claims}"))
            took["claim"] += ns
            _, ns = ask(Settle([Complete(found[0])]))
            took["complete"] += ns
        return {step: ns / count / 1000 for step, ns in took.items()}


class _Together:
    """Enqueues of all clients in one turn; the rest is not measured."""

    def __init__(self, clients: list[_Client], loop: _Loop, payload: bytes) -> None:
        self._clients = clients
        self._loop = loop
        self._payload = payload

    def lifecycles(self, count: int) -> dict[str, float]:
        clients, took, done = self._clients, 0, 0
        while done < count:
            requests = [
                Enqueue(_QUEUE, self._payload, fairness_key=f"k{n % 10}") for n in range(len(clients))
            ]
            commands = [client.command(request) for client, request in zip(clients, requests, strict=True)]
            began = thread_time_ns()
            for client, command in zip(clients, commands, strict=True):
                client.give(command)
            self._loop.run()
            took += thread_time_ns() - began
            for client, request in zip(clients, requests, strict=True):
                client.answer(request)
            found, _ = clients[0].ask(Claim(_QUEUE, len(clients), consumer="c"))
            clients[0].ask(Settle([Complete(delivery) for delivery in found]))
            done += len(clients)
        return {"enqueue": took / done / 1000}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="fairlead-door-", ignore_cleanup_errors=True) as home,
        served(sys.argv[1], Path(home) / "data") as lifecycles,
    ):
        for line in sys.stdin:
            print(json.dumps(lifecycles(int(line))), flush=True)


if __name__ == "__main__":
    main()
