"""Kill the driver at the n-th call of a verb, from inside the broker: before the effect, or after it and
before the answer.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

#: The calls whose windows are walked through, in the order in which a batch makes them.
EVENTS = ("claim", "read", "stage", "publish", "close")
#: Those of `operation = "settle"`.
SETTLE_EVENTS = ("record", "choose")
PATIENCE_S = 60.0
ROOT = Path(__file__).resolve().parents[3]
#: The environment variable with the directory of the pipeline: it tells who belongs to it, whatever session
#: or parent they have.
MARK = "FAIRLEAD_CRASH_HOME"

When = Literal["before", "after"]
BEFORE_AND_AFTER: tuple[When, When] = ("before", "after")


class Window(msgspec.Struct, frozen=True):
    """`nth` counts the calls of one life of the driver, from 1."""

    event: str
    when: When
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} the effect of {self.event} {self.nth}"


class Orders(msgspec.Struct, frozen=True):
    """What the parent wants of this life: which window kills it, if any. Each life has its own number."""

    life: int
    window: Window | None = None


class Switch:
    """Reads its orders from a file at each call, so that a parent can give them to a server that runs."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._life = -1
        self._counts: Counter[str] = Counter()
        self._fired = False

    def pass_by(self, event: str, when: When, nth: int) -> Window | None:
        """Kills the driver if this is the window, and returns when all of it is gone. Gives the window if so."""
        with self._lock:
            window = self._orders().window
            if window is None or self._fired or (window.event, window.when, window.nth) != (event, when, nth):
                return None
            self._fired = True
        kill_session(read_driver(self._home))
        return window

    def count(self, event: str) -> int:
        """The number of this call among those of its life."""
        with self._lock:
            self._orders()
            self._counts[event] += 1
            return self._counts[event]

    def _orders(self) -> Orders:
        orders = read_orders(self._home)
        if orders.life != self._life:
            self._life, self._fired = orders.life, False
            self._counts.clear()
        return orders


def give_orders(home: Path, orders: Orders) -> None:
    _replace(home / "orders.json", msgspec.json.encode(orders))


def read_orders(home: Path) -> Orders:
    return msgspec.json.decode((home / "orders.json").read_bytes(), type=Orders)


def tell_driver(home: Path) -> None:
    """Said by the driver before its first call: everything it starts, the JVM and its Python processes, is in
    its session.
    """
    _replace(home / "driver.pid", str(os.getsid(0)).encode())


def read_driver(home: Path) -> int:
    return int((home / "driver.pid").read_bytes())


def kill_session(session: int) -> None:
    """SIGKILL to every process of a session, again until none is left: one may have been starting another."""
    if session == os.getsid(0):
        raise ValueError("expected a session of its own, got ours")
    _kill_all(lambda: processes_of(session))


def kill_marked(home: Path) -> None:
    """Whatever is left of a pipeline, executors too."""
    _kill_all(lambda: marked(home))


def marked(home: Path) -> list[int]:
    mark = f"{MARK}={home}".encode()
    found = []
    for pid, state, _ in _all_processes():
        with suppress(OSError):
            if state not in "ZX" and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _kill_all(find: Callable[[], list[int]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while alive := find():
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {alive} do not die")
        time.sleep(0.002)


def processes_of(session: int) -> list[int]:
    """Those that live; one that waits for its parent to notice its end is dead."""
    return [
        pid for pid, state, its_session in _all_processes() if its_session == session and state not in "ZX"
    ]


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _all_processes() -> list[tuple[int, str, int]]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError, IndexError):
                state, _, _, session = _stat(int(entry))[:4]
                found.append((int(entry), state, int(session)))
    return found


def _stat(pid: int) -> list[str]:
    """From the state on: state, parent, group, session. The name before it may hold anything, also brackets
    and spaces.
    """
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _replace(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(content)
    unfinished.replace(path)
