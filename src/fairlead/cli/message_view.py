"""Messages as people see them: a status, a line in a list, a page of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from fairlead.model.names import is_dead_letter_name
from fairlead.model.views import MessageInfo

#: In the order of a message's life. `failed` waits for its next try; a message that will have none is `dead`.
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
    """For JSON: the fields of `MessageInfo`, and the status."""
    return {"status": status_of_message(info), **plain(info)}


def message_table(infos: Iterable[MessageInfo]) -> Table:
    """One line each; columns that no message has anything for are left out."""
    found = list(infos)
    streams, keys = any(info.stream for info in found), any(info.fairness_key != "default" for info in found)
    failed, told = any(info.failures for info in found), any(_circumstance(info) for info in found)
    headers = [
        "id",
        "status",
        *(["failures"] if failed else []),
        "age",
        *(["key"] if keys else []),
        *(["stream"] if streams else []),
    ]
    headers += [*(["detail"] if told else []), "payload", *(["last error"] if failed else [])]
    made = table(*headers, right=("failures",), flexible=("key", "stream", "payload", "last error"))
    for info in found:
        status = status_of_message(info)
        cells: list[RenderableType] = [short(info.id), Text(status, _STYLE.get(status, ""))]
        if failed:
            cells.append(_failures_text(info))
        cells.append(show_age(now_ms() - info.enqueued_at))
        if keys:
            cells.append(cut(clean(info.fairness_key, most=unless_piped(30))))
        if streams:
            cells.append(cut(clean(info.stream or "-", most=unless_piped(30))))
        if told:
            cells.append(_circumstance(info))
        cells.append(cut(payload_text(info.payload, most=unless_piped(40))))
        if failed:
            cells.append(cut(_last_error(info)))
        made.add_row(*cells)
    return made


def failures_of(info: MessageInfo) -> int:
    """Since it was enqueued; `attempts` counts those since the last retry or redrive."""
    return len(info.failures) + info.failures_cut


def _failures_text(info: MessageInfo) -> str:
    """The count that policies look at. After a retry or redrive, older failures are in brackets."""
    total, counted = failures_of(info), info.attempts
    if status_of_message(info) == "dead":
        # A quarantine or an operator's bury is recorded as a failure, and is no attempt.
        counted = max(counted, 1)
    return str(counted) if total == counted else f"{counted} ({total} in all)"


def _circumstance(info: MessageInfo) -> str:
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
    return clean(
        f"{FailureReason(last.reason).word}: {first_line(last.error)}"
        if last.error
        else FailureReason(last.reason).word,
        most=unless_piped(60),
    )


def message_page(info: MessageInfo) -> RenderableType:
    """Everything about one message."""
    rows: list[tuple[str, RenderableType]] = [
        ("id", info.id),
        ("queue", info.queue),
        ("status", Text(status_of_message(info), _STYLE.get(status_of_message(info), ""))),
        ("enqueued", f"{when(info.enqueued_at)}  ({age(info.enqueued_at)})"),
        ("key", f"{clean(info.fairness_key)}, weight {info.weight}"),
    ]
    optional: Sequence[tuple[str, str]] = (
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
    rows += [(name, value) for name, value in optional if value]
    rows.append(("attempts", _attempts_text(info)))
    rows += [(f"header {clean(name)}", clean(value)) for name, value in sorted(info.headers.items())]
    rows.append(("payload", payload_text(info.payload, most=unless_piped(2000))))
    if info.hidden:
        rows.append(("not shown", clean(", ".join(info.hidden), most=unless_piped(500))))
    if not info.failures:
        return pairs(rows)
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
    note = (
        [f"{info.failures_cut} more between the first and the last are counted only"]
        if info.failures_cut
        else []
    )
    return Group(pairs(rows), failures, *note, *_whole_error(info.failures[-1].error))


def _attempts_text(info: MessageInfo) -> str:
    """A dead letter counts its deliveries anew: those of its life in the source queue are not kept."""
    parts = [f"{info.attempts} in this life", count_of(failures_of(info), "failure") + " in all"]
    if status_of_message(info) != "dead":
        parts.insert(1, "1 delivery" if info.deliveries == 1 else f"{info.deliveries:,} deliveries")
    elif info.deliveries:
        parts.append(f"delivered {show_times(info.deliveries)} as a dead letter")
    return ", ".join(parts)


def _whole_error(error: str) -> list[RenderableType]:
    """Indented, so that no line of it can be taken for one of ours."""
    lines = error.strip().splitlines()
    return (
        [Text("\n".join(["\nlast error", *(f"  {clean(line)}" for line in lines)]))] if len(lines) > 1 else []
    )


def _moment(ms: int | None) -> str:
    return "" if ms is None else f"{when(ms)}  ({age(ms)})"
