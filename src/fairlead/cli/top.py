"""`fairlead top`: a live view of all queues, and of one queue in detail. `top_frame.py` draws a frame."""

from __future__ import annotations

import os
import re
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

from fairlead.cli.arguments import complete_queue, queue_in_project
from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.output import console, now_ms, plain, show_json
from fairlead.cli.stats import Interval, read_interval, take_sample
from fairlead.cli.stats_samples import KeyShare, StatsSample, key_shares, rates_between, stats_document
from fairlead.cli.target import Target, open_target
from fairlead.cli.top_frame import TopState, frame
from fairlead.errors import FairleadError, QueueNotFound
from fairlead.model.durations import show_ms
from fairlead.model.views import FailureMetrics, QueueStats

#: Samples kept for shares and sparklines.
_MAX_SAMPLES = 60
_MAX_KEYS = 40
#: Details make the broker count messages: the pause between two requests is this many times their duration.
_DETAILS_PAUSE = 20
_REDRAW_S = 0.25
_SILENCE_S = 2.0
_JOIN_S = 0.5

KeyPress = Literal["up", "down", "leave"]
_KEY_PRESSES: dict[bytes, KeyPress] = {
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


#: One key: a character, or an escape sequence up to its last byte.
_KEY = re.compile(rb"\x1b[\[O][^\x40-\x7e]*[\x40-\x7e]?|[\x00-\xff]")


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="QUEUE",
            help="Queue to show in detail at first. Default: the queue with the most messages.",
            autocompletion=complete_queue,
            callback=queue_in_project,
        ),
    ] = None,
    interval: Interval = "1s",
    once: Annotated[
        bool, typer.Option("--once", help="Take two samples, an interval apart, print one frame and end.")
    ] = False,
) -> None:
    """Watch queues live: rates, shares of fairness keys, failures, hooks and throttles, blocked streams.

    Arrow keys, j, k and tab select a queue; q or Ctrl-C ends the command.
    """
    pause_s = read_interval(interval)
    if not once and wants_json():
        wrong_usage("expected --once with -o json; for a stream of documents: fairlead stats --watch -o json")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        wrong_usage(
            "expected a terminal; without a terminal use: fairlead stats --watch, or fairlead top --once"
        )
    with open_target() as target:
        if queue is not None:
            target.stats(queue)
        monitor = QueueMonitor(
            target, where=str(current_options().target()), pause_s=pause_s, wanted=queue or ""
        )
        try:
            if once:
                _print_once(monitor)
            else:
                _live(monitor)
        except KeyboardInterrupt:
            return


class QueueMonitor:
    """Samples a broker, and keeps earlier samples for rates and shares.

    One thread calls `sample`; any other thread may read `state`, and set `wanted`, the queue to show in
    detail.
    """

    def __init__(self, target: Target, *, where: str, pause_s: float, wanted: str = "") -> None:
        self.pause_s = pause_s
        self.wanted = wanted
        self._target = target
        self._selected = ""
        self._delivery_rates: dict[str, deque[float | None]] = {}
        self._details: deque[tuple[float, QueueStats]] = deque(maxlen=_MAX_SAMPLES)
        self._failures: FailureMetrics | None = None
        self._next_details_s = 0.0
        self.state = TopState(
            where,
            now_ms(),
            _clock(),
            StatsSample(time.monotonic(), ()),
            interval=show_ms(round(pause_s * 1000)),
        )

    def sample(self) -> None:
        """Take a sample. When the broker does not answer, the last state stays, with the error."""
        try:
            sample = take_sample(self._target)
            rates = rates_between(self.state.sample, sample)
            for name, found in rates.items():
                history = self._delivery_rates.setdefault(name, deque(maxlen=_MAX_SAMPLES))
                history.append(found.flow.get("delivered"))
            if sample.find(self.wanted) is None:
                self.wanted = _fullest(sample)
            self._select(self.wanted)
            self._sample_details()
        except FairleadError as error:
            self.state = replace(self.state, trouble=f"{error.message} (this is the last sample)")
            return
        self.state = replace(
            self.state,
            now_ms=now_ms(),
            clock=_clock(),
            sample=sample,
            rates=rates,
            delivery_rates={name: tuple(history) for name, history in self._delivery_rates.items()},
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
            self._next_details_s = 0.0

    def _sample_details(self) -> None:
        """Read the keys and failures of the selected queue, after the pause since the last time."""
        began = time.monotonic()
        if not self._selected or began < self._next_details_s:
            return
        try:
            stats = self._target.stats(self._selected, keys=True, key_limit=_MAX_KEYS)
            self._failures = self._target.failure_metrics(self._selected)
        except QueueNotFound:
            return
        ended = time.monotonic()
        self._details.append((ended, stats))
        self._next_details_s = ended + _DETAILS_PAUSE * (ended - began)

    def _shares(self) -> list[KeyShare]:
        if not self._details:
            return []
        (first_s, first), (last_s, last) = self._details[0], self._details[-1]
        return key_shares(first if last_s > first_s else None, last, last_s - first_s)


def _fullest(sample: StatsSample) -> str:
    """The queue with the most messages, or ""."""
    if not sample.queues:
        return ""
    return max(sample.queues, key=lambda stats: stats.ready + stats.waiting + stats.leased + stats.dead).queue


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _print_once(monitor: QueueMonitor) -> None:
    for pause_s in (monitor.pause_s, 0.0):
        monitor.sample()
        time.sleep(pause_s)
    state = monitor.state
    if wants_json():
        details = {"shares": plain(state.shares), "failures": plain(state.failures)}
        show_json({**stats_document(state.sample, state.rates), "selected": state.selected, **details})
        return
    size = shutil.get_terminal_size((80, 24))
    console().print(frame(state, size.columns, size.lines), width=size.columns, height=size.lines)


def _live(monitor: QueueMonitor) -> None:
    out, terminal = console(), sys.stdin.fileno()
    monitor.sample()
    thread = MonitorThread(monitor)
    with _unbuffered_keys(terminal), Live(console=out, screen=True, auto_refresh=False) as live, thread:
        while True:
            live.update(frame(thread.current(), *out.size), refresh=True)
            for press in _pressed(terminal, min(_REDRAW_S, monitor.pause_s)):
                if press == "leave":
                    return
                thread.select(1 if press == "down" else -1)


class MonitorThread:
    """Samples in its own thread, so that the keyboard works while a server is slow or away."""

    def __init__(self, monitor: QueueMonitor) -> None:
        self._monitor = monitor
        self._ended = False
        self._wake = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)

    def current(self) -> TopState:
        """Return the last state with the wanted queue selected. Raises the exception that ended the thread."""
        if self._failure is not None:
            raise self._failure
        state, wanted = self._monitor.state, self._monitor.wanted
        if wanted != state.selected and state.sample.find(wanted) is not None:
            state = replace(state, selected=wanted, shares=(), failures=None)
        silent_s = time.monotonic() - state.sample.at_s - self._monitor.pause_s
        if silent_s > _SILENCE_S and not state.trouble:
            trouble = f"no answer from {state.where} for {silent_s:.0f} s (this is the last sample)"
            state = replace(state, trouble=trouble)
        return state

    def select(self, step: int) -> None:
        """Select the next or previous queue of the list, which wraps around."""
        state = self.current()
        names = [stats.queue for stats in state.sample.queues]
        if names:
            at = names.index(state.selected) + step if state.selected in names else 0
            self._monitor.wanted = names[at % len(names)]
            self._wake.set()

    def __enter__(self) -> MonitorThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ask the thread to end. A call in progress is not awaited; it ends when the broker or client is
        closed.
        """
        self._ended = True
        self._wake.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._wake.clear()
                self._monitor.sample()
                self._wake.wait(self._monitor.pause_s)
        except BaseException as failure:
            self._failure = failure


@contextmanager
def _unbuffered_keys(terminal: int) -> Iterator[None]:
    # Imported here, so that other commands work on systems without these modules.
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed(terminal: int, timeout_s: float) -> list[KeyPress]:
    readable, _, _ = select.select([terminal], [], [], timeout_s)
    if not readable:
        return []
    raw = os.read(terminal, 1024)
    # No bytes: the terminal is closed.
    return read_keys(raw) if raw else ["leave"]


def read_keys(raw: bytes) -> list[KeyPress]:
    """Return the known keys in order. Other keys are skipped, an escape sequence as a whole."""
    return [_KEY_PRESSES[key] for key in _KEY.findall(raw) if key in _KEY_PRESSES]
