from __future__ import annotations

from pathlib import Path

from tests.docs.pages import ROOT, Session, steps_in
from tests.docs.terminals import Terminals
from tests.runbook.test_page import blocks

HOW_TO = ROOT / "docs" / "how-to" / "push-items.md"


def test_the_page_about_items_can_be_followed(tmp_path: Path) -> None:
    [runbook] = blocks(HOW_TO, "toml")
    (tmp_path / "runbook.toml").write_text(runbook)
    sessions = [step for step in steps_in(HOW_TO) if isinstance(step, Session)]
    assert len(sessions) == 5
    terminals = Terminals(tmp_path)
    for session in sessions:
        terminals.follow(session)
