"""Messages as people read them: a status, a line in a list, a page about one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairlead.cli.charts import show_age
from fairlead.cli.output import (
    age,
    clean,
    count_of,
    cut,
    first_line,
    now_ms,
    pairs,
    payload_text,
    plain,
    short,
    table,
    unless_piped,
    when,
)
from fairlead.model.failure import FailureReason, show_times
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.names import is_dead_letter_name
from fairlead.model.views import MessageInfo

#: In the order of a message's life. A `failed` message waits for its next attempt; a `dead` one has none.
STATUSES = ("pending", "delayed", "held", "active", "failed", "dead", "completed")
_STYLE = {"failed": "yellow", "dead": "red", "active": "green", "held": "magenta", "completed": "dim"}


def status_of_message(info: MessageInfo) -> str:
    if is_dead_letter_name(info.queue):
        return "dead"
    if info.where == "leased":
        return "active"
    if info.where == "done":
        return "completed"
    if info.where == "ready":
        return "pending"
    if info.due_at is None:
        return "held"
    return "failed" if info.attempts else "delayed"


def as_record(info: MessageInfo) -> dict[str, Any]:
    """The JSON form: the fields of `MessageInfo`, and the status."""
    return {"status": status_of_message(info), **plain(info)}


#: The columns of a list, and what each shows of a message.
_COLUMNS: dict[str, Callable[[MessageInfo], RenderableType]] = {
    "id": lambda info: short(info.id),
    "status": lambda info: _status_text(info),
    "failures": lambda info: _failures_text(info),
    "age": lambda info: show_age(now_ms() - info.enqueued_at),
    "key": lambda info: cut(clean(info.fairness_key, most=unless_piped(30))),
    "stream": lambda info: cut(clean(info.stream or "-", most=unless_piped(30))),
    "detail": lambda info: _detail(info),
    "payload": lambda info: cut(payload_text(info.payload, most=unless_piped(40))),
    "last error": lambda info: cut(_last_error(info)),
}
#: Columns that are left out unless a message has something for them.
_OPTIONAL: dict[str, Callable[[MessageInfo], bool]] = {
    "failures": lambda info: bool(info.failures),
    "key": lambda info: info.fairness_key != DEFAULT_KEY,
    "stream": lambda info: bool(info.stream),
    "detail": lambda info: bool(_detail(info)),
    "last error": lambda info: bool(info.failures),
}


def message_table(infos: Sequence[MessageInfo]) -> Table:
    """List messages, one a line."""
    shown = [name for name in _COLUMNS if name not in _OPTIONAL or any(map(_OPTIONAL[name], infos))]
    lines = table(*shown, right=("failures",), flexible=("key", "stream", "payload", "last error"))
    for info in infos:
        lines.add_row(*(_COLUMNS[name](info) for name in shown))
    return lines


def _status_text(info: MessageInfo) -> Text:
    status = status_of_message(info)
    return Text(status, _STYLE.get(status, ""))


def failures_of(info: MessageInfo) -> int:
    """Failures since the enqueue; `attempts` counts those since the last retry or redrive."""
    return len(info.failures) + info.failures_cut


def _failures_text(info: MessageInfo) -> str:
    """The count that policies use. After a retry or redrive, the count of all failures is in brackets."""
    total, counted = failures_of(info), info.attempts
    if status_of_message(info) == "dead":
        # A quarantine or an operator's bury is recorded as a failure, but is not an attempt.
        counted = max(counted, 1)
    return str(counted) if total == counted else f"{counted} ({total} in all)"


def _detail(info: MessageInfo) -> str:
    if info.lease_until is not None:
        consumer = clean(info.consumer or "someone", most=unless_piped(30))
        return f"{consumer}, {show_age(info.lease_until - now_ms())} left"
    if info.dead_since is not None:
        return f"for {show_age(now_ms() - info.dead_since)}"
    if info.done_at is not None:
        return f"done {age(info.done_at)}"
    return f"due {age(info.due_at)}" if info.due_at is not None else ""


def _last_error(info: MessageInfo) -> str:
    if not info.failures:
        return ""
    last = info.failures[-1]
    text = FailureReason(last.reason).word
    if last.error:
        text += f": {first_line(last.error)}"
    return clean(text, most=unless_piped(60))


def message_page(info: MessageInfo) -> RenderableType:
    """Show everything about one message."""
    rows: list[tuple[str, RenderableType]] = [
        ("id", info.id),
        ("queue", info.queue),
        ("status", _status_text(info)),
        ("enqueued", f"{when(info.enqueued_at)}  ({age(info.enqueued_at)})"),
        ("key", f"{clean(info.fairness_key)}, weight {info.weight}"),
        *_optional_rows(info),
        ("attempts", _attempts_text(info)),
        *((f"header {clean(name)}", clean(value)) for name, value in sorted(info.headers.items())),
        ("payload", payload_text(info.payload, most=unless_piped(2000))),
    ]
    if info.hidden:
        rows.append(("not shown", clean(", ".join(info.hidden), most=unless_piped(500))))
    if not info.failures:
        return pairs(rows)
    return Group(pairs(rows), *_failures_part(info))


def _optional_rows(info: MessageInfo) -> list[tuple[str, RenderableType]]:
    """The rows of a page that not every message has."""
    rows: Sequence[tuple[str, str]] = (
        ("throttle keys", ", ".join(clean(key) for key in info.throttle_keys)),
        ("stream", f"{clean(info.stream)}, seq {info.seq}" if info.stream else ""),
        ("due", _moment(info.due_at)),
        ("leased until", _moment(info.lease_until)),
        ("consumer", clean(info.consumer or "")),
        ("expires", _moment(info.expires_at)),
        ("dead since", _moment(info.dead_since)),
        ("completed", _moment(info.done_at)),
        ("source", info.source or ""),
        ("decided by", clean(info.rule)),
        ("progress", str(info.progress.value) if info.progress else ""),
        ("carry", payload_text(info.carry, most=unless_piped(60)) if info.carry else ""),
    )
    return [(name, value) for name, value in rows if value]


def _failures_part(info: MessageInfo) -> list[RenderableType]:
    """The table of failures, and the whole last error."""
    failures = table(
        "when", "attempt", "reason", "rule", "consumer", "error", right=("attempt",), title="\nfailures"
    )
    for record in info.failures:
        cells = (
            clean(record.rule),
            clean(record.consumer or "-"),
            clean(first_line(record.error) or "-", most=unless_piped(300)),
        )
        failures.add_row(when(record.at_ms), str(record.attempt), FailureReason(record.reason).word, *cells)
    parts: list[RenderableType] = [failures]
    if info.failures_cut:
        parts.append(f"{info.failures_cut} more failures between the first and the last are only counted")
    return [*parts, *_whole_error(info.failures[-1].error)]


def _attempts_text(info: MessageInfo) -> str:
    """A dead letter counts deliveries from 0: those of its life in the source queue are not kept."""
    parts = [f"{info.attempts} in this life", count_of(failures_of(info), "failure") + " in all"]
    if status_of_message(info) != "dead":
        parts.insert(1, "1 delivery" if info.deliveries == 1 else f"{info.deliveries:,} deliveries")
    elif info.deliveries:
        parts.append(f"delivered {show_times(info.deliveries)} as a dead letter")
    return ", ".join(parts)


def _whole_error(error: str) -> list[RenderableType]:
    """An error text of several lines, indented so that its lines cannot imitate other lines of the page."""
    lines = error.strip().splitlines()
    if len(lines) < 2:
        return []
    return [Text("\n".join(["\nlast error", *(f"  {clean(line)}" for line in lines)]))]


def _moment(ms: int | None) -> str:
    return "" if ms is None else f"{when(ms)}  ({age(ms)})"
