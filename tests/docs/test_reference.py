from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate import BLOCKS, LIMITS, OPTIONS, REFERENCE, WHEN, leaf_errors, regenerated
from fairlead.model import limits
from fairlead.model.queue import QUEUE_OPTIONS


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.name)
def test_a_reference_page_says_what_the_code_says(page: Path) -> None:
    assert page.read_text() == regenerated(page.read_text()), "run: make docs"


def test_every_generated_table_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    assert [name for name in BLOCKS if f"<!-- generated: {name} -->" not in text] == []


def test_every_meaning_belongs_to_something_that_exists() -> None:
    assert set(LIMITS) == {name for name in vars(limits) if name.isupper()}
    assert set(OPTIONS) == set(QUEUE_OPTIONS)
    assert set(WHEN) == {error.__name__ for error in leaf_errors()}


def test_error_codes_are_distinct() -> None:
    codes = [error.code for error in leaf_errors()]
    assert len(codes) == len(set(codes))
