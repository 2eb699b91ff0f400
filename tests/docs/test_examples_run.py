from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, all_pages, examples_in

PAGES = [page for page in all_pages() if examples_in(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_blocks_of_a_page_run_in_order_and_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in examples_in(page):
        source = "\n" * (example.line - 1) + example.code  # a failure points at the line of the page
        exec(compile(source, str(page), "exec"), names)
        printed = capsys.readouterr().out
        if example.prints is not None:
            assert printed == example.prints


def test_the_pages_a_newcomer_starts_with_have_examples() -> None:
    assert {"README.md", "tutorial.md"} <= {page.name for page in PAGES}
