"""fairlead through its Flight door, which is for bulk: `fairlead serve` in a process of its own, and a client that
gathers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import fairlead
from bench.doors.engine import KEYS, Verbs
from bench.doors.servers import cpu_s
from bench.flight_client import FlightClient
from fairlead.testing.server import ServerProcess, free_ports


class Flight(Verbs):
    name = "Flight"
    least_batch = 100
    ways = ()
    styles = ()

    def __init__(self, home: Path, durability: str, command: Sequence[str] = ()) -> None:
        self._stack = ExitStack()
        address = f"127.0.0.1:{free_ports(1)[0]}"
        self.server = ServerProcess(
            home, {"flight": address}, {"durability": durability}, *([command] if command else [])
        )
        self.server.start()
        self._stack.callback(self.server.stop)
        super().__init__(self._stack.enter_context(FlightClient(address)))
        self.settings = f"fairlead {fairlead.__version__}, durability {durability}, pyarrow {version('pyarrow')}, {KEYS} fairness keys; sync client"

    def server_cpu_s(self) -> float:
        return cpu_s(self.server.pid)

    def close(self) -> None:
        self._stack.close()
