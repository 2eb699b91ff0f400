from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlead.server.metric_names import METRICS
from tests.docs.pages import ROOT, all_pages

_NAME = re.compile(r"\bfairlead_[a-z_]+\b")
_SHOWN = {
    shown
    for metric in METRICS
    for shown in (
        [metric.name]
        if metric.kind != "histogram"
        else [metric.name, *(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))]
    )
}
_PAGES = [page for page in all_pages() if _NAME.search(page.read_text())]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_only_metrics_that_exist(page: Path) -> None:
    assert set(_NAME.findall(page.read_text())) - _SHOWN == set()


def test_the_pages_about_metrics_are_among_them() -> None:
    assert {"metrics.md", "monitor.md"} <= {page.name for page in _PAGES}
