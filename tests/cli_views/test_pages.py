from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from fairlead.cli.app import app

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
BLOCKS = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_in(page: str) -> list[str]:
    return [
        line
        for block in BLOCKS.findall((HOW_TO / page).read_text())
        for line in block.splitlines()
        if line.startswith("fairlead ")
    ]


@pytest.mark.parametrize("line", [*commands_in("watch-a-queue.md"), *commands_in("back-up.md")])
def test_every_command_of_a_page_exists_with_its_options(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    context = command.make_context(name, arguments)
    assert context.args == []


def test_the_pages_show_every_command_of_these_groups() -> None:
    shown = {line.split()[1] for page in ("watch-a-queue.md", "back-up.md") for line in commands_in(page)}
    assert shown >= {"stats", "top", "failures", "backup", "restore", "verify", "doctor"}
