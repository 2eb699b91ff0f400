"""All printing: Rich tables for people, JSON for programs. Text from messages cannot control the terminal.

JSON has the field names of the Python values, times as epoch milliseconds, failure reasons as words, and
bytes as text where they are UTF-8, else as `{"base64": "..."}`.
"""

from __future__ import annotations

import base64
import codecs
import dataclasses
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Flag
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fairlead.cli.charts import show_age
from fairlead.cli.global_options import wants_json
from fairlead.clock import SystemClock
from fairlead.model.failure import FailureReason, FailureRecord
from fairlead.model.ids import short_id

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

#: The width without a terminal: more than any message has characters, so that no line is wrapped.
_WIDE = 1_000_000_000
_PIECE = 16 * 1024
_NOT_PLAIN = re.compile(r"[^\n\x20-\x7e]")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process here. The root command ends it, for all output alike."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console that prints text unchanged: no markup, no emoji codes. Without a terminal it does not colour,
    wrap or cut.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def show(value: object, table: RenderableType | Callable[[], RenderableType] | None = None) -> None:
    """Print a result: with `-o json` the value as JSON, else the table, or the fields of the value without
    one.
    """
    if wants_json():
        show_json(value)
        return
    if table is None:
        table = fields_of(value)
    elif callable(table):
        table = table()
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    # Rich pads every column to its width, also the last; a file needs no trailing spaces.
    _write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def show_json(value: object) -> None:
    """Print one document and a line break: indented at a terminal, on one line for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    _write(as_json(plain(value), indent=indent) + "\n")


def as_json(shown: object, *, indent: int | None = None) -> str:
    """Write JSON with escapes for all characters that a terminal would interpret or hide; the rest stays
    readable.
    """
    return _NOT_PLAIN.sub(_escape_in_json, json.dumps(shown, indent=indent, ensure_ascii=False))


def _escape_in_json(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]


def _write(text: str) -> None:
    """Write in pieces that a pipe accepts whole: unbuffered, Python does not report a partial write."""
    for start in range(0, len(text), _PIECE):
        sys.stdout.write(text[start : start + _PIECE])
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Print text beside the result, for people only: on stderr, and not with `-o json`."""
    if not wants_json():
        console(stderr=True).print(text, soft_wrap=True)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Make a progress bar on stderr, which disappears at the end. Shown at a terminal only, and not with `-o
    json`.
    """
    # Imported here: few commands show progress, and the import is slow.
    from rich.progress import Progress

    out = console(stderr=True)
    return Progress(*columns, console=out, disable=wants_json() or not out.is_terminal, transient=True)


def plain(value: object) -> Any:
    """Convert a value to what JSON can hold. Raises `TypeError` for any other value.

    Its complexity is that of one table of cases.
    """
    match value:
        case FailureReason():
            return value.word
        case Flag():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(value))
        case FailureRecord():
            return {**msgspec.structs.asdict(value), "reason": FailureReason(value.reason).word}
        case msgspec.Struct():
            return {name: plain(part) for name, part in msgspec.structs.asdict(value).items()}
        case Mapping():
            return {str(plain(name)): plain(part) for name, part in value.items()}
        case Sequence():
            return [plain(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"expected a value that has a JSON form, got {type(value).__name__}")


def _bytes(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


def table(
    *headers: str, right: Sequence[str] = (), flexible: Sequence[str] = (), title: str | None = None
) -> Table:
    """Make a table of aligned columns without a frame. Columns in `right` hold numbers.

    On a narrow terminal the `flexible` columns shrink, so that ids stay whole; make their cells with `cut`.
    """
    made = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        title=title,
        title_justify="left",
        title_style="bold",
    )
    for header in headers:
        made.add_column(
            header,
            justify="right" if header in right else "left",
            overflow="ellipsis",
            no_wrap=header not in flexible,
        )
    return made


def cut(text: str) -> Text:
    """Make a cell of a flexible column, which is cut to the width of the column."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def pairs(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    """Lay out names and values, one pair a line."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def fields_of(value: object) -> RenderableType:
    shown = plain(value)
    if not isinstance(shown, dict):
        return _field_text(shown)
    return pairs([(name, _field_text(part)) for name, part in shown.items()])


def _field_text(value: Any) -> str:
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def clean(text: str, *, most: int = 0) -> str:
    """Make text from messages harmless, on one line: control and formatting characters become escapes.

    `most` cuts the text to that many characters; 0 keeps all.
    """
    if most and len(text) > most:
        text = text[: most - 1] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def unless_piped(most: int) -> int:
    """The bound `most` at a terminal, and none (0) in a pipe."""
    return most if sys.stdout.isatty() else 0


def first_line(text: str) -> str:
    """The first line of an error text, which may have a traceback below it."""
    head, _, more = text.strip().partition("\n")
    return f"{head.rstrip()} …" if more else head


def _escape(char: str) -> str:
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def payload_text(raw: bytes, *, most: int = 60) -> str:
    """Show the beginning of a payload: text if it is text, else its size and first bytes. `most=0` shows all
    text.
    """
    head = raw[: 4 * most + 4] if most else raw
    try:
        return clean(
            codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(raw)), most=most
        )
    except UnicodeDecodeError:
        return f"{len(raw)} bytes: {raw[:12].hex(' ')}{' …' if len(raw) > 12 else ''}"


def short(message_id: str) -> str:
    """The short id that lists show; every command accepts it within the queue."""
    return short_id(message_id)


def when(ms: int | None) -> str:
    if ms is None:
        return "-"
    try:
        return (
            datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms after 1970"


def now_ms() -> int:
    return SystemClock().now_ms()


def age(ms: int | None) -> str:
    """Show how long ago or how far ahead a time is: `3m ago`, `in 2h`."""
    if ms is None:
        return "-"
    gone = now_ms() - ms
    return f"{show_age(gone)} ago" if gone >= 0 else f"in {show_age(-gone)}"


def count_of(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
