"""The plan of `fairlead apply`, for people and for programs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from fairlead.cli.output import clean, count_of
from fairlead.runbook.plan import FieldChange, PlanEntry, RunbookPlan

_SIGNS = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "remove": ("-", "red"),
    "orphan": ("?", "magenta"),
}


def plan_page(plan: RunbookPlan) -> Text:
    """Show the plan as a diff: additions, changes field by field, removals, and what stays as it is."""
    lines: list[Text] = []
    for action in _SIGNS:
        for entry in plan.of(action):  # type: ignore[arg-type]
            lines += _entry_lines(entry)
    if kept := plan.of("keep"):
        lines.append(
            Text(f"  left alone: {', '.join(f'{entry.kind} {entry.name}' for entry in kept)}", style="dim")
        )
    lines.append(Text(_summary(plan), style="bold"))
    return Text("\n").join(lines)


def _entry_lines(entry: PlanEntry) -> Iterator[Text]:
    sign, style = _SIGNS[entry.action]
    head = f"{sign} {entry.kind} {entry.name}"
    if entry.action == "orphan":
        yield Text(
            f"{head}: no longer defined; the queue stays with its messages; delete it with: {entry.note}",
            style=style,
        )
        return
    yield Text(head + (": no longer defined" if entry.action == "remove" else ""), style=style)
    for change in entry.changes:
        yield from _change_lines(change, is_new=entry.action == "create")


def _change_lines(change: FieldChange, *, is_new: bool) -> Iterator[Text]:
    old, new = change.old, change.new
    if any(isinstance(value, str) and "\n" in value for value in (old, new)):
        yield Text(f"    {change.field}:")
        for line in _text_diff(old or "", new or ""):
            yield Text(f"      {clean(line)}", style={"+": "green", "-": "red"}.get(line[:1], "dim"))
    elif is_new:
        yield Text.assemble(f"    {change.field}: ", (_shown(new), "green"))
    else:
        yield Text.assemble(f"    {change.field}: ", (_shown(old), "red"), " -> ", (_shown(new), "green"))


def _text_diff(old: str, new: str) -> Iterator[str]:
    for line in difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    if isinstance(value, str):
        return clean(value)
    return clean(json.dumps(value, ensure_ascii=False))


def _summary(plan: RunbookPlan) -> str:
    project = f"project {plan.runbook.project}: " if plan.runbook.project else ""
    if plan.nothing_to_do:
        orphans = len(plan.of("orphan"))
        more = f", {count_of(orphans, 'queue')} no longer defined" if orphans else ""
        return f"{project}nothing to do{more}"
    counts = {
        "to create": "create",
        "to change": "change",
        "to remove": "remove",
        "left alone": "keep",
        "no longer defined": "orphan",
    }
    found = [(len(plan.of(action)), words) for words, action in counts.items()]  # type: ignore[arg-type]
    text = ", ".join(f"{number} {words}" for number, words in found if number)
    return project + (text or "only the stored runbook changes")


def what_happens(plan: RunbookPlan) -> str:
    """What the question says: `create 2, change 1 in project 'shop'`."""
    counts = [(len(plan.of(action)), action) for action in ("create", "change", "remove")]
    text = ", ".join(f"{action} {number}" for number, action in counts if number) or "store the runbook"
    return f"{text} in project {plan.runbook.project!r}" if plan.runbook.project else text


def plan_record(plan: RunbookPlan) -> dict[str, Any]:
    entries = [
        {
            "kind": entry.kind,
            "name": entry.name,
            "action": entry.action,
            "changes": [
                {"field": change.field, "old": change.old, "new": change.new} for change in entry.changes
            ],
            **({"to_remove": entry.note} if entry.note else {}),
        }
        for entry in plan.entries
    ]
    return {"project": plan.runbook.project, "nothing_to_do": plan.nothing_to_do, "entries": entries}
