"""`fairlead top`: a live view of all queues and one of them in detail. What a frame looks like is in `top_frame.py`."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Literal

import typer
from rich.live import Live

from fairlead.cli.chosen import chosen, wants_json, wrong_usage
from fairlead.cli.looks import KeyShare, Look, Rates, key_shares, rates_between, stats_document
from fairlead.cli.output import console, now_ms, plain, show_json
from fairlead.cli.stats import Interval, look_at, read_interval
from fairlead.cli.target import Target, open_target
from fairlead.cli.top_frame import Scene, frame
from fairlead.errors import FairleadError, QueueNotFound
from fairlead.model.durations import show_ms
from fairlead.model.views import FailureMetrics, QueueStats

#: Looks that shares and little columns reach back.
_KEPT = 60
_MOST_KEYS = 40
#: Details make the broker count: they may take a twentieth of its time, no more.
_SPARING = 20
_REDRAW_S = 0.25

Press = Literal["up", "down", "leave"]
_PRESSES: dict[bytes, Press] = {
    b"q": "leave", b"Q": "leave", b"\x03": "leave", b"\x04": "leave",
    b"k": "up", b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[Z": "up",
    b"j": "down", b"\x1b[B": "down", b"\x1bOB": "down", b"\t": "down",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    queue: Annotated[str | None, typer.Argument(metavar="[QUEUE]", help="The queue to show in detail at first.")] = None,
    interval: Interval = "1s",
    once: Annotated[bool, typer.Option("--once", help="Look twice, an interval apart, print one frame and end.")] = False,
) -> None:
    """Watch queues live: rates, shares of fairness keys, failures, hooks and throttles, blocked streams.

    Arrow keys, j, k or tab choose a queue; q or Ctrl-C leaves.
    """
    pause_s = read_interval(interval)
    if not once and wants_json():
        wrong_usage("expected --once with -o json; for a stream of documents: fairlead stats --watch -o json")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        wrong_usage("expected a terminal to draw on; elsewhere use: fairlead stats --watch, or fairlead top --once")
    with open_target() as target:
        if queue is not None:
            target.stats(queue)
        watcher = Watcher(target, where=str(chosen().target()), pause_s=pause_s, selected=queue or "")
        try:
            if once:
                _print_once(watcher)
            else:
                _live(watcher)
        except KeyboardInterrupt:
            return


class Watcher:
    """Looks at a broker, and remembers enough of the looks before to say what has passed."""

    def __init__(self, target: Target, *, where: str, pause_s: float, selected: str = "") -> None:
        self.pause_s = pause_s
        self.selected = selected
        self._target = target
        self._where = where
        self._look = Look(0.0, ())
        self._rates: dict[str, Rates] = {}
        self._trail: dict[str, deque[float | None]] = {}
        self._details: deque[tuple[float, QueueStats]] = deque(maxlen=_KEPT)
        self._failures: FailureMetrics | None = None
        self._details_at_s = 0.0
        self._trouble = ""

    @property
    def names(self) -> list[str]:
        return [stats.queue for stats in self._look.queues]

    def look(self) -> None:
        """A broker that does not answer leaves the last picture in place, with a word about it."""
        try:
            look = look_at(self._target)
            self._note(look)
            self.look_closer()
            self._trouble = ""
        except FairleadError as error:
            self._trouble = f"{error.message} (this is what was seen last)"

    def look_closer(self) -> None:
        """At the keys and failures of the selected queue, when it is time for that."""
        began = time.monotonic()
        if not self.selected or began < self._details_at_s:
            return
        try:
            stats = self._target.stats(self.selected, keys=True, key_limit=_MOST_KEYS)
            self._failures = self._target.failure_metrics(self.selected)
        except QueueNotFound:
            return
        ended = time.monotonic()
        self._details.append((ended, stats))
        self._details_at_s = ended + _SPARING * (ended - began)

    def select(self, step: int) -> None:
        """Move on in the list, around its ends."""
        names = self.names
        if names:
            at = names.index(self.selected) + step if self.selected in names else 0
            self._choose(names[at % len(names)])

    def scene(self) -> Scene:
        return Scene(
            where=self._where,
            now_ms=now_ms(),
            clock=datetime.now().astimezone().strftime("%H:%M:%S"),
            look=self._look,
            rates=self._rates,
            trail={name: tuple(passed) for name, passed in self._trail.items()},
            selected=self.selected,
            shares=self._shares(),
            failures=self._failures,
            interval=show_ms(round(self.pause_s * 1000)),
            trouble=self._trouble,
        )

    def _note(self, look: Look) -> None:
        self._rates = rates_between(self._look, look)
        self._look = look
        for name, rates in self._rates.items():
            self._trail.setdefault(name, deque(maxlen=_KEPT)).append(rates.flow.get("delivered"))
        if self.selected not in self.names:
            self._choose(self.names[0] if self.names else "")

    def _choose(self, name: str) -> None:
        if name != self.selected:
            self.selected = name
            self._details.clear()
            self._failures = None
            self._details_at_s = 0.0

    def _shares(self) -> list[KeyShare]:
        if not self._details:
            return []
        (first_s, first), (last_s, last) = self._details[0], self._details[-1]
        return key_shares(first if last_s > first_s else None, last, last_s - first_s)


def _print_once(watcher: Watcher) -> None:
    for pause_s in (watcher.pause_s, 0.0):
        watcher.look()
        time.sleep(pause_s)
    scene = watcher.scene()
    if wants_json():
        document = stats_document(scene.look, scene.rates)
        show_json({**document, "selected": scene.selected, "shares": plain(scene.shares), "failures": plain(scene.failures)})
        return
    size = shutil.get_terminal_size((80, 24))
    console().print(frame(scene, size.columns, size.lines), width=size.columns, height=size.lines)


def _live(watcher: Watcher) -> None:
    out = console()
    with _key_by_key(sys.stdin.fileno()), Live(console=out, screen=True, auto_refresh=False) as live:
        next_s = 0.0
        while True:
            if time.monotonic() >= next_s:
                watcher.look()
                next_s = time.monotonic() + watcher.pause_s
            live.update(frame(watcher.scene(), *out.size), refresh=True)
            for press in _pressed(sys.stdin.fileno(), max(0.0, min(_REDRAW_S, next_s - time.monotonic()))):
                if press == "leave":
                    return
                watcher.select(1 if press == "down" else -1)
                next_s = 0.0


@contextmanager
def _key_by_key(terminal: int) -> Iterator[None]:
    # Here, so that the other commands work where there is no such thing.
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed(terminal: int, timeout_s: float) -> list[Press]:
    readable, _, _ = select.select([terminal], [], [], timeout_s)
    if not readable:
        return []
    raw = os.read(terminal, 1024)
    # The terminal is gone.
    return read_keys(raw) if raw else ["leave"]


def read_keys(raw: bytes) -> list[Press]:
    """What was pressed, in order; what means nothing here is passed over, a whole escape sequence at a time."""
    found: list[Press] = []
    at = 0
    while at < len(raw):
        length = next((size for size in (3, 1) if raw[at : at + size] in _PRESSES), 0)
        if length:
            found.append(_PRESSES[raw[at : at + length]])
            at += length
        elif raw[at : at + 1] == b"\x1b":
            at += 1
            if raw[at : at + 1] in (b"[", b"O"):
                at += 1
                while at < len(raw) and not 0x40 <= raw[at] <= 0x7E:
                    at += 1
                at += 1
        else:
            at += 1
    return found
