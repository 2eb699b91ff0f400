"""`fairlead apply`: show what a runbook would change, then change it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.global_options import current_options, wants_json
from fairlead.cli.output import console, print_note, show_json
from fairlead.cli.plan_view import plan_page, plan_record, what_happens
from fairlead.cli.runbook import RunbookFiles, read_files, tell_warnings
from fairlead.cli.target import open_target
from fairlead.runbook.apply import apply_plan, plan_for
from fairlead.runbook.plan import RunbookPlan, make_plan


def register(app: typer.Typer) -> None:
    app.command("apply")(apply)


def apply(
    files: RunbookFiles,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Apply a runbook to a broker. Queues, pipelines and workers are created and changed until they match it.

    Shows the differences, asks, and applies them: each queue in one step, then the runbook in force. The next
    apply completes one that was interrupted. A queue that the runbook no longer defines stays, with its
    messages.
    """
    checked = read_files(files)
    tell_warnings(checked)
    where = current_options().target()
    if dry_run and isinstance(where, Path) and not where.exists():
        _show_plan(make_plan(checked.runbook, [], None))  # A dry run does not make the directory.
        return
    with open_target(create=not dry_run) as target:
        plan = plan_for(target, checked.runbook)
        if dry_run:
            _show_plan(plan)
            return
        if not wants_json():
            _show_plan(plan)
        if not plan.nothing_to_do:
            confirm(what_happens(plan), yes=yes)
            list(apply_plan(plan, target))
            print_note("applied")
    if wants_json():
        show_json({**plan_record(plan), "applied": True})


def _show_plan(plan: RunbookPlan) -> None:
    if wants_json():
        show_json({**plan_record(plan), "applied": False})
    else:
        console().print(plan_page(plan), soft_wrap=True)
