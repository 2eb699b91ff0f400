"""The layout of rows is written down once, in the docstring of `store/rows.py`, and covers every table."""

from __future__ import annotations

from docs.rows import listed_tables
from fairlead.store.kv.port import Table
from fairlead.store.rows import VALUE_TYPES

#: Tables that no row is written to yet.
UNUSED: set[str] = set()


def test_every_table_has_a_line_in_the_docstring_and_a_type_of_value() -> None:
    tables = {table.name.lower() for table in Table} - UNUSED
    assert set(listed_tables()) - UNUSED == tables
    assert {table.name.lower() for table in VALUE_TYPES} - UNUSED == tables
