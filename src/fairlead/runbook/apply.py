"""Making a plan so, with the verbs that a broker and a client share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from fairlead.errors import FairleadError, RunbookNotFound
from fairlead.model.views import QueueInfo
from fairlead.runbook.model import Runbook
from fairlead.runbook.plan import PlanEntry, RunbookPlan, make_plan
from fairlead.runbook.stored import dump_runbook, load_runbook


class Verbs(Protocol):
    """What is needed of a `Broker` or `Client`."""

    @property
    def runbooks(self) -> Any: ...
    def queues(self, prefix: str = "") -> list[QueueInfo]: ...
    def create_queue(self, name: str, **options: Any) -> QueueInfo: ...
    def update_queue(self, name: str, **options: Any) -> QueueInfo: ...


def find_in_force(target: Verbs, project: str | None) -> Runbook | None:
    try:
        return load_runbook(target.runbooks.get(project or ""))
    except RunbookNotFound:
        return None


def plan_for(target: Verbs, runbook: Runbook) -> RunbookPlan:
    """Against what is running now."""
    prefix = f"{runbook.project}/" if runbook.project else ""
    return make_plan(runbook, target.queues(prefix), find_in_force(target, runbook.project))


def apply_plan(plan: RunbookPlan, target: Verbs) -> Iterator[PlanEntry]:
    """Each entry once it is done. A queue is made or changed in one commit; the runbook is stored last.

    Interrupted anywhere, a new plan has what is missing and nothing else. An error leaves what was done
    before it, and says in a note what that is.
    """
    done: list[str] = []
    try:
        for entry in plan.entries:
            if entry.kind == "queue" and entry.action == "create" and entry.options is not None:
                target.create_queue(entry.name, **entry.options)
                done.append(entry.name)
            elif entry.kind == "queue" and entry.action == "change" and entry.options:
                target.update_queue(entry.name, **entry.options)
                done.append(entry.name)
            if entry.action in ("create", "change", "remove"):
                yield entry
        if plan.stored_changes:
            target.runbooks.save(plan.runbook.project or "", dump_runbook(plan.runbook))
    except FairleadError as error:
        error.add_note(
            f"done before that: {', '.join(done) or 'nothing'}; the runbook in force is still the old one. Apply again to go on from here"
        )
        raise
