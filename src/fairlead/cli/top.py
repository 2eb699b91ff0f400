"""`fairlead top`: a live view of all queues and one of them in detail. What a frame looks like is in
`top_frame.py`.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

import typer
from rich.live import Live

from fairlead.cli.arguments import complete_queue, meant
from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.output import console, now_ms, plain, show_json
from fairlead.cli.stats import Interval, read_interval, take_sample
from fairlead.cli.stats_samples import KeyShare, StatsSample, key_shares, rates_between, stats_document
from fairlead.cli.target import Target, open_target
from fairlead.cli.top_frame import TopState, frame
from fairlead.errors import FairleadError, QueueNotFound
from fairlead.model.durations import show_ms
from fairlead.model.views import FailureMetrics, QueueStats

#: Looks that shares and little columns reach back.
_KEPT = 60
_MAX_KEYS = 40
#: Details make the broker count: they may take a twentieth of its time, no more.
_SPARING = 20
_REDRAW_S = 0.25
_SILENCE_S = 2.0
_PATIENCE_S = 0.5

Press = Literal["up", "down", "leave"]
_PRESSES: dict[bytes, Press] = {
    b"q": "leave",
    b"Q": "leave",
    b"\x03": "leave",
    b"\x04": "leave",
    b"k": "up",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[Z": "up",
    b"j": "down",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\t": "down",
}


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            help="The queue to show in detail at first.",
            autocompletion=complete_queue,
            callback=meant,
        ),
    ] = None,
    interval: Interval = "1s",
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, an interval apart, print one frame and end.")
    ] = False,
) -> None:
    """Watch queues live: rates, shares of fairness keys, failures, hooks and throttles, blocked streams.

    Arrow keys, j, k or tab choose a queue; q or Ctrl-C leaves.
    """
    pause_s = read_interval(interval)
    if not once and wants_json():
        wrong_usage("expected --once with -o json; for a stream of documents: fairlead stats --watch -o json")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        wrong_usage(
            "expected a terminal to draw on; elsewhere use: fairlead stats --watch, or fairlead top --once"
        )
    with open_target() as target:
        if queue is not None:
            target.stats(queue)
        watcher = QueueMonitor(
            target, where=str(current_options().target()), pause_s=pause_s, wanted=queue or ""
        )
        try:
            if once:
                _print_once(watcher)
            else:
                _live(watcher)
        except KeyboardInterrupt:
            return


class QueueMonitor:
    """Looks at a broker, and remembers enough of the looks before to say what has passed.

    One thread looks; any other may read `scene` and set `wanted`, the queue to look at closely.
    """

    def __init__(self, target: Target, *, where: str, pause_s: float, wanted: str = "") -> None:
        self.pause_s = pause_s
        self.wanted = wanted
        self._target = target
        self._selected = ""
        self._trail: dict[str, deque[float | None]] = {}
        self._details: deque[tuple[float, QueueStats]] = deque(maxlen=_KEPT)
        self._failures: FailureMetrics | None = None
        self._details_at_s = 0.0
        self.scene = TopState(
            where,
            now_ms(),
            _clock(),
            StatsSample(time.monotonic(), ()),
            interval=show_ms(round(pause_s * 1000)),
        )

    def look(self) -> None:
        """A broker that does not answer leaves the last picture in place, with a word about it."""
        try:
            look = take_sample(self._target)
            rates = rates_between(self.scene.look, look)
            for name, passed in rates.items():
                self._trail.setdefault(name, deque(maxlen=_KEPT)).append(passed.flow.get("delivered"))
            if look.find(self.wanted) is None:
                self.wanted = _fullest(look)
            self._select(self.wanted)
            self._look_closer()
        except FairleadError as error:
            self.scene = replace(self.scene, trouble=f"{error.message} (this is what was seen last)")
            return
        self.scene = replace(
            self.scene,
            now_ms=now_ms(),
            clock=_clock(),
            look=look,
            rates=rates,
            trail={name: tuple(passed) for name, passed in self._trail.items()},
            selected=self._selected,
            shares=self._shares(),
            failures=self._failures,
            trouble="",
        )

    def _select(self, name: str) -> None:
        if name != self._selected:
            self._selected = name
            self._details.clear()
            self._failures = None
            self._details_at_s = 0.0

    def _look_closer(self) -> None:
        """At the keys and failures of the selected queue, when it is time for that."""
        began = time.monotonic()
        if not self._selected or began < self._details_at_s:
            return
        try:
            stats = self._target.stats(self._selected, keys=True, key_limit=_MAX_KEYS)
            self._failures = self._target.failure_metrics(self._selected)
        except QueueNotFound:
            return
        ended = time.monotonic()
        self._details.append((ended, stats))
        self._details_at_s = ended + _SPARING * (ended - began)

    def _shares(self) -> list[KeyShare]:
        if not self._details:
            return []
        (first_s, first), (last_s, last) = self._details[0], self._details[-1]
        return key_shares(first if last_s > first_s else None, last, last_s - first_s)


def _fullest(look: StatsSample) -> str:
    """Where most is going on, to begin with."""
    return (
        max(look.queues, key=lambda stats: stats.ready + stats.waiting + stats.leased + stats.dead).queue
        if look.queues
        else ""
    )


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _print_once(watcher: QueueMonitor) -> None:
    for pause_s in (watcher.pause_s, 0.0):
        watcher.look()
        time.sleep(pause_s)
    scene = watcher.scene
    if wants_json():
        document = stats_document(scene.look, scene.rates)
        show_json(
            {
                **document,
                "selected": scene.selected,
                "shares": plain(scene.shares),
                "failures": plain(scene.failures),
            }
        )
        return
    size = shutil.get_terminal_size((80, 24))
    console().print(frame(scene, size.columns, size.lines), width=size.columns, height=size.lines)


def _live(watcher: QueueMonitor) -> None:
    out, terminal = console(), sys.stdin.fileno()
    watcher.look()
    lookout = MonitorThread(watcher)
    with _key_by_key(terminal), Live(console=out, screen=True, auto_refresh=False) as live, lookout:
        while True:
            live.update(frame(lookout.picture(), *out.size), refresh=True)
            for press in _pressed(terminal, min(_REDRAW_S, watcher.pause_s)):
                if press == "leave":
                    return
                lookout.select(1 if press == "down" else -1)


class MonitorThread:
    """Looks in a thread of its own, so that keys are heard while a server is slow or away."""

    def __init__(self, watcher: QueueMonitor) -> None:
        self._watcher = watcher
        self._ended = False
        self._wake = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def picture(self) -> TopState:
        """What was seen last, turned to the queue that is wanted now. Raises what ended the looking."""
        if self._failure is not None:
            raise self._failure
        scene, wanted = self._watcher.scene, self._watcher.wanted
        if wanted != scene.selected and scene.look.find(wanted) is not None:
            scene = replace(scene, selected=wanted, shares=(), failures=None)
        silent_s = time.monotonic() - scene.look.at_s - self._watcher.pause_s
        if silent_s > _SILENCE_S and not scene.trouble:
            scene = replace(
                scene,
                trouble=f"no answer from {scene.where} for {silent_s:.0f} s (this is what was seen last)",
            )
        return scene

    def select(self, step: int) -> None:
        """Move on in the list, around its ends."""
        scene = self.picture()
        names = [stats.queue for stats in scene.look.queues]
        if names:
            self._watcher.wanted = names[
                (names.index(scene.selected) + step) % len(names) if scene.selected in names else 0
            ]
            self._wake.set()

    def __enter__(self) -> MonitorThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A call that is under way is left behind; it ends when the broker or client is closed."""
        self._ended = True
        self._wake.set()
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._wake.clear()
                self._watcher.look()
                self._wake.wait(self._watcher.pause_s)
        except BaseException as failure:
            self._failure = failure


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
