"""Applies a plan, with the verbs that a broker and a client share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from fairlead.errors import FairleadError, RunbookNotFound
from fairlead.model.views import QueueInfo
from fairlead.runbook.model import Runbook, dump_runbook, load_runbook
from fairlead.runbook.plan import PlanEntry, RunbookPlan, make_plan


class RunbookTarget(Protocol):
    """The part of a `Broker` or `Client` that a runbook needs."""

    @property
    def runbooks(self) -> Any: ...
    def queues(self, prefix: str = "") -> list[QueueInfo]: ...
    def create_queue(self, name: str, **options: Any) -> QueueInfo: ...
    def update_queue(self, name: str, **options: Any) -> QueueInfo: ...


def find_in_force(target: RunbookTarget, project: str | None) -> Runbook | None:
    try:
        return load_runbook(target.runbooks.get(project or ""))
    except RunbookNotFound:
        return None


def plan_for(target: RunbookTarget, runbook: Runbook) -> RunbookPlan:
    """Compare a runbook with the queues and the runbook in force of a broker."""
    prefix = f"{runbook.project}/" if runbook.project else ""
    return make_plan(runbook, target.queues(prefix), find_in_force(target, runbook.project))


def apply_plan(plan: RunbookPlan, target: RunbookTarget) -> Iterator[PlanEntry]:
    """Apply a plan; yield each entry when it is done.

    Each queue is created or changed in one commit, and the runbook is stored last. After an interruption, a
    new plan has exactly what is missing. After an error, a note of the error lists what was done before.
    """
    done: list[str] = []
    try:
        for entry in plan.entries:
            if _apply_to_queue(entry, target):
                done.append(entry.name)
            if entry.action in ("create", "change", "remove"):
                yield entry
        if plan.stored_changes:
            target.runbooks.save(plan.runbook.project or "", dump_runbook(plan.runbook))
    except FairleadError as error:
        error.add_note(
            f"done before the error: {', '.join(done) or 'nothing'}; the previous runbook is still in force. Apply again to continue"
        )
        raise


def _apply_to_queue(entry: PlanEntry, target: RunbookTarget) -> bool:
    """Create or change the queue of an entry; False when there is nothing to tell the engine."""
    if entry.kind != "queue" or entry.options is None:
        return False
    if entry.action == "create":
        target.create_queue(entry.name, **entry.options)
        return True
    if entry.action == "change" and entry.options:
        target.update_queue(entry.name, **entry.options)
        return True
    return False
