"""The one place that prints: Rich tables for people, JSON for programs, and nothing a message could use to
fool a terminal.

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
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fairlead.cli.charts import show_age
from fairlead.cli.global_options import wants_json
from fairlead.clock import SystemClock
from fairlead.model.failure import FailureReason, FailureRecord
from fairlead.model.ids import short_id

#: More than any message has characters, so that nothing is wrapped.
_WIDE = 1_000_000_000
_PIECE = 16 * 1024
_NOT_PLAIN = re.compile(r"[^\n\x20-\x7e]")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process here; the root command does that, in one place for all that is printed."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Text is taken as it is: no markup, no emoji codes. Without a terminal nothing is coloured, wrapped or
    cut.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def show(value: object, table: RenderableType | Callable[[], RenderableType] | None = None) -> None:
    """Print a result: `value` as JSON with `-o json`, else `table`, or the fields of `value` when there is
    none.
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
    # Columns are padded to their width, also the last; in a file that is only noise.
    _write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def show_json(value: object) -> None:
    """One document and a line break; indented for a terminal, one line for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    _write(as_json(plain(value), indent=indent) + "\n")


def as_json(shown: object, *, indent: int | None = None) -> str:
    """With everything that a terminal would obey or hide as an escape, which means the same; the rest stays
    readable.
    """
    return _NOT_PLAIN.sub(_escape_in_json, json.dumps(shown, indent=indent, ensure_ascii=False))


def _escape_in_json(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]


def _write(text: str) -> None:
    """In pieces that a pipe takes whole: where Python does not buffer, it would not tell that only part of a
    long one was read.
    """
    for start in range(0, len(text), _PIECE):
        sys.stdout.write(text[start : start + _PIECE])
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Something beside the result, for people only: on stderr, and not with `-o json`."""
    if not wants_json():
        console(stderr=True).print(text, soft_wrap=True)


def plain(value: object) -> Any:
    """What JSON can hold. Anything else that a command wants to print is a mistake, and raises."""
    if isinstance(value, FailureReason):
        return value.word
    if isinstance(value, Flag):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes(bytes(value))
    if isinstance(value, FailureRecord):
        return {**msgspec.structs.asdict(value), "reason": FailureReason(value.reason).word}
    if isinstance(value, msgspec.Struct):
        return {name: plain(part) for name, part in msgspec.structs.asdict(value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(name)): plain(part) for name, part in value.items()}
    if isinstance(value, Sequence):
        return [plain(part) for part in value]
    raise TypeError(f"expected a value that has a JSON form, got {type(value).__name__}")


def _bytes(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


# For people


def table(
    *headers: str, right: Sequence[str] = (), flexible: Sequence[str] = (), title: str | None = None
) -> Table:
    """Aligned columns without a frame; those named in `right` hold numbers. Cells are text, taken as it is.

    On a narrow terminal the `flexible` columns give way, so that ids stay whole; their cells are made with
    `cut`.
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
    """A cell of a flexible column: what does not fit on its line is cut off."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def pairs(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    """Names and values, one a line."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def fields_of(value: object) -> RenderableType:
    shown = plain(value)
    if not isinstance(shown, dict):
        return clean(shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False))
    return pairs(
        [
            (name, clean(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)))
            for name, part in shown.items()
        ]
    )


def clean(text: str, *, most: int = 0) -> str:
    """Text from messages made harmless on one line: control and formatting characters are shown, not obeyed.

    `most` cuts it to so many characters.
    """
    if most and len(text) > most:
        text = text[: most - 1] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def unless_piped(most: int) -> int:
    """For `most` of a page about one thing: its lines are cut for a terminal only."""
    return most if sys.stdout.isatty() else 0


def first_line(text: str) -> str:
    """Of an error, which may have a traceback below it."""
    head, _, more = text.strip().partition("\n")
    return f"{head.rstrip()} …" if more else head


def _escape(char: str) -> str:
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if unicodedata.category(char) == "Zs":
        return " "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def payload_text(raw: bytes, *, most: int = 60) -> str:
    """A glimpse of a payload: text where it is text, else its size and first bytes. `most=0` is all of it."""
    head = raw[: 4 * most + 4] if most else raw
    try:
        return clean(
            codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) == len(raw)), most=most
        )
    except UnicodeDecodeError:
        return f"{len(raw)} bytes: {raw[:12].hex(' ')}{' …' if len(raw) > 12 else ''}"


def short(message_id: str) -> str:
    """As lists show it; every command takes it back, within its queue."""
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
    """How long ago, or how far ahead, coarse enough to read: `3m ago`, `in 2h`."""
    if ms is None:
        return "-"
    gone = now_ms() - ms
    return f"{show_age(gone)} ago" if gone >= 0 else f"in {show_age(-gone)}"


def count_of(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
