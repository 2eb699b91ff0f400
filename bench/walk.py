"""How far one message walks through the code: `make walk`, or `python -m bench.walk --show enqueue` for every
call.

Counts the calls of Python functions in `src/fairlead`, the files they are in, and how often the next call is
in another file, for one enqueue, claim, fail and complete: in process, and through a server that runs in a
thread of this process, so that both sides of the connection are counted. Background threads disturb a count
now and then, so each step is walked several times and the shortest walk counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

import fairlead
from bench.resp_client import RespClient
from fairlead import Complete, Delivery, Fail
from fairlead.config import ServerSettings
from fairlead.config.server import Address
from fairlead.server.serve import Server

SOURCES = str(Path(fairlead.__file__).parent) + "/"
STEPS = ("enqueue", "claim", "fail", "complete")
WALKS = 7
#: Parts of another function, and calls of their own only in some versions of Python.
_PARTS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


@dataclass
class Walk:
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len({file for file, _ in self.calls})

    @property
    def changes(self) -> int:
        """Per thread the order is exact; between threads it is the order in which the calls happened."""
        return sum(before[0] != after[0] for before, after in zip(self.calls, self.calls[1:], strict=False))


class Tracer:
    """Notes every call in `src/fairlead` while a walk is on, in each thread that called `follow`."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self._files: dict[CodeType, str] = {}

    @contextmanager
    def walking(self) -> Iterator[Walk]:
        self._walk = walk = Walk()
        try:
            yield walk
        finally:
            self._walk = None

    def follow(self) -> None:
        """Trace this thread, until it ends or somebody else sets a profiler."""
        sys.setprofile(self._note)

    @contextmanager
    def following(self) -> Iterator[None]:
        self.follow()
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        walk = self._walk
        if event != "call" or walk is None:
            return
        code = frame.f_code
        file = self._files.get(code)
        if file is None:
            inside = code.co_filename.startswith(SOURCES) and code.co_name not in _PARTS
            file = self._files[code] = code.co_filename.removeprefix(SOURCES) if inside else ""
        if file:
            walk.calls.append((file, code.co_qualname))


def walk_steps(broker: Any, tracer: Tracer) -> dict[str, Walk]:
    """The shortest of several walks of each step, over any object that has the verbs."""
    broker.create_queue("walk", visibility_timeout="10m", retry={"policy": "fixed", "cooldown": "1h"})
    found: dict[str, Walk] = {}
    for _ in range(WALKS):
        first, second = (_claimed(broker, tracer, found) for _ in range(2))
        _keep_shortest(
            found, "fail", tracer, lambda failed=first: broker.settle([Fail(failed, error="walked")])
        )
        _keep_shortest(found, "complete", tracer, lambda done=second: broker.settle([Complete(done)]))
    return {step: found[step] for step in STEPS}


def _claimed(broker: Any, tracer: Tracer, found: dict[str, Walk]) -> Delivery:
    _keep_shortest(found, "enqueue", tracer, lambda: broker.enqueue("walk", b"x"))
    delivery: Delivery = _keep_shortest(found, "claim", tracer, lambda: broker.claim("walk"))[0]
    return delivery


def _keep_shortest(found: dict[str, Walk], step: str, tracer: Tracer, work: Callable[[], Any]) -> Any:
    with tracer.walking() as walk:
        answer = work()
    if step not in found or len(walk.calls) < len(found[step].calls):
        found[step] = walk
    return answer


def walk_everywhere(home: Path) -> dict[str, dict[str, Walk]]:
    tracer = Tracer()
    with tracer.following():
        with fairlead.open(home / "in-process", durability="os") as broker:
            in_process = walk_steps(broker, tracer)
        with _server_in_thread(home / "served", tracer) as addresses, RespClient(addresses["resp"]) as light:
            redis = walk_steps(light, tracer)
    return {"in process": in_process, "through Redis": redis}


@contextmanager
def _server_in_thread(data: Path, tracer: Tracer) -> Iterator[dict[str, str]]:
    any_port = Address("127.0.0.1:0")
    doors = {"resp": any_port, "flight": Address("off"), "grpc": Address("off"), "http": Address("off")}
    server = Server(ServerSettings(data=data, durability="os", **doors))
    threading.setprofile(tracer._note)
    server.start()
    try:
        yield server.addresses
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.walk", description="Count the calls that one message takes."
    )
    parser.add_argument("--show", choices=STEPS, help="print every call of this step")
    parser.add_argument("--in-process", action="store_true", help="not through the door that speaks Redis")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="fairlead-walk-") as home:
        walks = walk_everywhere(Path(home))
    if options.show:
        where = "in process" if options.in_process else "through Redis"
        for file, name in walks[where][options.show].calls:
            console.print(f"{file:40} {name}", highlight=False)
        return
    table = Table("where", "step", "calls", "files", "changes of file", title="The walk of one message")
    for where, steps in walks.items():
        for step, walk in steps.items():
            table.add_row(where, step, str(len(walk.calls)), str(walk.files), str(walk.changes))
    console.print(table)


if __name__ == "__main__":
    main()
