from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Session, all_pages, examples_in, needs_spark, steps_in
from tests.docs.reading import read_page

#: Their console blocks are typed too, in order with their Python.
WITH_TERMINALS = (
    "docs/tutorial-server.md",
    "docs/tutorial-runbook.md",
    "docs/how-to/tls.md",
    "docs/how-to/keys-and-rights.md",
    "docs/how-to/secure-a-server.md",
)
PAGES = [
    page
    for page in all_pages()
    if not needs_spark(page) and (examples_in(page) or str(page.relative_to(ROOT)) in WITH_TERMINALS)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    read_page(page, tmp_path, capsys, types=str(page.relative_to(ROOT)) in WITH_TERMINALS)


def test_the_pages_a_newcomer_starts_with_have_examples() -> None:
    assert {"tutorial.md", "tutorial-server.md", "tutorial-runbook.md"} <= {page.name for page in PAGES}
    for page in WITH_TERMINALS:
        assert [
            step.terminal for step in steps_in(ROOT / page) if isinstance(step, Session) and step.terminal
        ], page
