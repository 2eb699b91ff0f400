"""`fairlead runbook`: check a runbook, show its normal form, and print the schema for editors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.output import clean, console, count_of, print_note, show, show_json
from fairlead.cli.target import open_target
from fairlead.runbook.apply import find_in_force
from fairlead.runbook.check import CheckedRunbook, read_runbook
from fairlead.runbook.keys import runbook_schema
from fairlead.runbook.model import Runbook
from fairlead.runbook.normal_form import as_toml, normal_form
from fairlead.runbook.source import Problem

RunbookFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE", help="Files of one runbook: TOML, HCL or JSON, by the endings of their names."
    ),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        no_args_is_help=True, help="Runbooks: files that declare queues, pipelines and workers."
    )
    for name, command in (("check", check), ("show", show_normal_form), ("schema", schema)):
        group.command(name)(command)
    app.add_typer(group, name="runbook")


def check(files: RunbookFiles) -> None:
    """Check a runbook without a server, and print every mistake with its line.

    Doubtful settings are warnings. Hooks are compiled when the runbook is applied.
    """
    checked = read_files(files)
    tell_warnings(checked)
    found = checked.runbook
    record = {
        "project": found.project,
        "queues": sorted(found.queues),
        "pipelines": sorted(found.pipelines),
        "workers": sorted(found.workers),
        "warnings": [warning._asdict() for warning in checked.warnings],
    }
    show(record, f"no mistakes in {_summary(found)}")


def show_normal_form(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Files of the runbook. Default: the runbook in force in the broker."
        ),
    ] = None,
) -> None:
    """Show a runbook in its normal form, which can be applied again: as TOML, or with -o json as JSON.

    Values at their defaults are left out; the text of hooks is included.
    """
    if files:
        checked = read_files(files)
        tell_warnings(checked)
        found = checked.runbook
    else:
        project = current_options().project
        with open_target() as target:
            in_force = find_in_force(target, project)
        if in_force is None:
            where = "outside of projects; give --project NAME"
            if project:
                where = f"in project {project!r}"
            wrong_usage(f"there is no runbook in force {where}")
        found = in_force
    if wants_json():
        show_json(normal_form(found))
    else:
        console().print(as_toml(normal_form(found)), soft_wrap=True, end="")


def schema() -> None:
    """Print the JSON Schema of runbooks, for editors. It has the rules that `check` uses."""
    show_json(runbook_schema())


def read_files(files: Sequence[Path]) -> CheckedRunbook:
    """Read files as one runbook. The chosen project takes precedence over the project in the files."""
    return read_runbook(files, project=current_options().project or None)


def tell_warnings(checked: CheckedRunbook) -> None:
    for warning in checked.warnings:
        print_note(f"warning: {clean(problem_text(warning))}")


def problem_text(problem: Problem) -> str:
    where = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
    return ": ".join(part for part in (where, problem.path, problem.what) if part)


def _summary(found: Runbook) -> str:
    parts = [
        count_of(len(specs), noun)
        for specs, noun in ((found.queues, "queue"), (found.pipelines, "pipeline"), (found.workers, "worker"))
    ]
    return ", ".join(parts) + (f" of project {found.project}" if found.project else "")
