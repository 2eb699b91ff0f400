from __future__ import annotations

import re
from pathlib import Path

from fairlead.runbook.check import check_text
from tests.docs.pages import ROOT, Session, steps_in
from tests.docs.terminals import Terminals

HOW_TO = ROOT / "docs" / "how-to" / "apply-a-runbook.md"
REFERENCE = ROOT / "docs" / "reference" / "runbook.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_about_apply_can_be_followed(tmp_path: Path) -> None:
    [runbook] = blocks(HOW_TO, "toml")
    (tmp_path / "runbook.toml").write_text(runbook)
    sessions = [step for step in steps_in(HOW_TO) if isinstance(step, Session)]
    assert len(sessions) == 6
    terminals = Terminals(tmp_path)
    for session in sessions:
        terminals.follow(session)


def test_the_runbooks_of_the_reference_are_one_and_the_same(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "orders.lua").write_text("function on_enqueue(msg) return {} end\n")
    [toml], [hcl] = blocks(REFERENCE, "toml"), blocks(REFERENCE, "hcl")
    read = [
        check_text(text, syntax, file=str(tmp_path / "runbook")).runbook
        for text, syntax in ((toml, "toml"), (hcl, "hcl"))
    ]
    assert read[0] == read[1]
    assert read[0].queues["orders"].options["retry"]["attempts"] == 3
