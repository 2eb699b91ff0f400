"""fairlead through its Flight door: a server process of its own and the Python client."""

from __future__ import annotations

from pathlib import Path

from bench.doors.contender import NotThere
from bench.doors.engine import Verbs


class Flight(Verbs):
    name = "Flight"
    ways = ("claim", "stream")
    styles = ("threads", "tasks")
    settings = ""

    def __init__(self, home: Path, durability: str) -> None:
        raise NotThere("the Flight client is not written yet")

    def server_cpu_s(self) -> float:
        return 0.0
