from __future__ import annotations

import re

import pytest

from fairlead.spark.data_source.columns import Column
from fairlead.spark.data_source.settle_columns import SETTLED
from fairlead.spark.data_source.write_columns import WRITTEN
from tests.docs.pages import ROOT


@pytest.mark.parametrize(("page", "columns"), [("spark-write.md", WRITTEN), ("spark-settle.md", SETTLED)])
def test_the_page_has_a_line_for_each_column_and_no_other(page: str, columns: dict[str, Column]) -> None:
    (table,) = re.findall(
        r"\| column \|.*\n\|[-|]+\n((?:\|.*\n)+)", (ROOT / "docs" / "how-to" / page).read_text()
    )
    named = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert named == list(columns)
