from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, SavedFile, Session, steps_in
from tests.docs.reading import read_page

PAGE = ROOT / "docs" / "how-to" / "batch-steps.md"


def test_the_page_about_batch_steps_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [type(step) for step in steps_in(PAGE)] == [SavedFile, SavedFile, Session]
    monkeypatch.chdir(tmp_path)
    read_page(PAGE, tmp_path, capsys, types=True)
