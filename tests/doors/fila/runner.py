"""A server of its own process, for tests: `python -m tests.doors.fila.runner DATA [PORT]`.

Prints its address, then serves until it is told to stop with SIGTERM (in order) or is killed.
"""

from __future__ import annotations

import signal
import sys
import threading

import fairlead
from fairlead.server.fila.door import FilaDoor


def main(data: str, port: str = "0") -> None:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with fairlead.open(data, durability="os") as broker:
        door = FilaDoor(broker, f"127.0.0.1:{port}", trace_headers=True)
        door.start()
        print(door.address, flush=True)
        told.wait()
        door.drain()
        broker.interrupt_waits()
        door.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
