"""Numbers, ages and small bars as people read them, the same in every view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉"
_HEIGHTS = "▁▂▃▄▅▆▇█"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_AGE_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))


def show_count(count: float) -> str:
    """Write a count exactly up to 99,999, above with three digits and a unit."""
    if abs(count) < 100_000:
        return f"{round(count):,}"
    for unit in ("k", "M", "G", "T"):
        count /= 1000
        if abs(count) < 999.5 or unit == "T":
            break
    return f"{count:.0f}{unit}" if abs(count) >= 99.95 else f"{count:.1f}{unit}"


def count_text(count: int, style: str, *, zero: str = "dim") -> Text:
    """A count as a cell; 0 has the style `zero`, so that other counts stand out."""
    return Text(show_count(count), style=style if count else zero)


def show_bytes(count: float) -> str:
    unit = 0
    while abs(count) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        count /= 1024
        unit += 1
    digits = 0 if unit == 0 or abs(count) >= 99.95 else 1
    return f"{count:.{digits}f} {_BYTE_UNITS[unit]}"


def show_rate(per_second: float | None) -> str:
    """Write a rate; nothing is a middle dot, so that other rates stand out, and an unknown rate is a dash."""
    if per_second is None:
        return "–"
    if abs(per_second) < 0.05:
        return "·"
    return f"{per_second:.1f}" if abs(per_second) < 99.95 else show_count(per_second)


def show_age(ms: int) -> str:
    """Write an age in its largest unit and, below 10 of it, the next smaller one: "1m30s", "1d2h"."""
    if ms < 1000:
        return f"{max(0, ms)}ms"
    for at, (unit_ms, unit) in enumerate(_AGE_UNITS):
        if ms >= unit_ms:
            count, rest = divmod(ms, unit_ms)
            finer = _AGE_UNITS[at + 1] if at + 1 < len(_AGE_UNITS) and count < 10 else None
            more = f"{rest // finer[0]}{finer[1]}" if finer and rest >= finer[0] else ""
            return f"{count}{unit}{more}"
    raise AssertionError("a second is in the table")


def show_until(due_ms: int | None, now_ms: int) -> str:
    if due_ms is None:
        return "held"
    return "due now" if due_ms <= now_ms else f"in {show_age(due_ms - now_ms)}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last values as a line of small columns; the largest value has the full height."""
    known = [value or 0.0 for value in values[-width:]]
    most = max(known, default=0.0)
    if most <= 0:
        return " " * (width - len(known)) + "▁" * len(known)
    return " " * (width - len(known)) + "".join(_HEIGHTS[_height(value, most)] for value in known)


def _height(value: float, most: float) -> int:
    """A small value is drawn higher than none."""
    return 0 if value <= 0 else max(1, round(value / most * (len(_HEIGHTS) - 1)))


def shares(values: Sequence[float]) -> list[float]:
    whole = sum(values)
    return [value / whole if whole else 0.0 for value in values]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with `part` of its width filled, to an eighth of a cell. `mark` draws a tick at another part."""

    part: float
    width: int
    style: str = "cyan"
    mark: float | None = None
    rest: str = "grey23"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(self.width, options.max_width)
        text = self.text(width, ascii_only=options.ascii_only)
        fill, rest, tick = (
            console.get_style(self.style),
            console.get_style(self.rest),
            console.get_style("bold bright_white"),
        )
        filled, at = self.part * width, self._mark_at(width)
        for cell, sign in enumerate(text):
            style = fill if cell < filled else rest
            if cell == at:
                style = tick + (Style(bgcolor=fill.color) if cell + 0.5 < filled else Style())
            yield Segment(sign, style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(self.width, options.max_width)
        return Measurement(width, width)

    def text(self, width: int, *, ascii_only: bool = False) -> str:
        eighths = round(max(0.0, min(1.0, self.part)) * width * 8)
        if self.part > 0:
            eighths = max(1, eighths)  # A small part is drawn larger than none.
        whole, rest = divmod(eighths, 8)
        if ascii_only:
            cells = list(("#" * (whole + (rest >= 4))).ljust(width, "."))
        else:
            cells = list(("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width, "─"))
        at = self._mark_at(width)
        if at is not None and cells:
            cells[at] = "|" if ascii_only else "┃"
        return "".join(cells)

    def _mark_at(self, width: int) -> int | None:
        return None if self.mark is None else max(0, min(width - 1, round(self.mark * width) - 1))
