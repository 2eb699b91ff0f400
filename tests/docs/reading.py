"""Reads a page as somebody would who tries everything: runs its Python, saves its files, types its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import Example, SavedFile, steps_in
from tests.docs.terminals import Terminals


def read_page(page: Path, folder: Path, capsys: pytest.CaptureFixture[str], *, types: bool) -> None:
    """In order; what is printed must be what the page says. `types`: console blocks as well."""
    names: dict[str, object] = {}
    terminals = Terminals(folder)
    try:
        for step in steps_in(page):
            if isinstance(step, Example):
                _run(page, step, terminals, names)
                printed = capsys.readouterr().out
                if step.prints is not None:
                    assert printed == step.prints, f"{page}:{step.line} printed\n{printed}"
            elif isinstance(step, SavedFile):
                (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / step.name).write_text(terminals.real(step.code))
            elif types:
                terminals.follow(step)
    finally:
        terminals.close()


def _run(page: Path, example: Example, terminals: Terminals, names: dict[str, object]) -> None:
    source = "\n" * (example.line - 1) + terminals.real(
        example.code
    )  # a failure points at the line of the page
    exec(compile(source, str(page), "exec"), names)
