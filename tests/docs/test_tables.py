"""Every row of a table on a page has the cells that the header announces: a renderer drops or invents others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_pages

_CELL_END = re.compile(r"(?<!\\)\|")


def tables_in(text: str) -> list[list[tuple[int, str]]]:
    """Lines that begin with a bar, outside of code blocks, with their numbers."""
    found: list[list[tuple[int, str]]] = []
    in_code = in_table = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        is_row = line.startswith("|") and not in_code
        if is_row and not in_table:
            found.append([])
        if is_row:
            found[-1].append((number, line))
        in_table = is_row
    return found


@pytest.mark.parametrize("page", all_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_row_of_a_table_has_as_many_cells_as_its_header(page: Path) -> None:
    wrong = [
        f"{page.name}:{number}: {line}"
        for rows in tables_in(page.read_text())
        for number, line in rows
        if len(_CELL_END.findall(line)) != len(_CELL_END.findall(rows[0][1]))
    ]
    assert wrong == []
