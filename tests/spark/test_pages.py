"""The pages about Spark: all their blocks run, in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, all_pages, needs_spark
from tests.docs.reading import read_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = [page for page in all_pages() if needs_spark(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_says(
    spark: SparkSession,
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`fairlead.spark.session` in a page returns the running session."""
    monkeypatch.chdir(tmp_path)
    read_page(page, tmp_path, capsys, types=True)


def test_the_pages_about_spark_have_examples() -> None:
    assert {
        "README.md",
        "tutorial-spark.md",
        "tutorial-spark-stream.md",
        "spark-write.md",
        "spark-settle.md",
    } <= {page.name for page in PAGES}
