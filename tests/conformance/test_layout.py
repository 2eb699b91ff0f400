"""The layout is written down once, as a table in the package, and shown in the reference."""

from __future__ import annotations

from pathlib import Path

from fairlead.store import rocks
from fairlead.store.rocks.layout import FAMILIES, after_prefix

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "key-layout.md"


def table(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def test_every_family_has_its_line_in_the_table() -> None:
    assert [line.split("`")[1] for line in table(rocks.__doc__ or "")] == list(FAMILIES)


def test_the_reference_shows_the_same_table() -> None:
    assert table(PAGE.read_text()) == table(rocks.__doc__ or "")


def test_the_key_after_a_prefix_is_behind_all_keys_that_have_it() -> None:
    assert after_prefix(b"ab") == b"ac"
    assert after_prefix(b"a\xff") == b"b"
    for prefix in (b"\0\0\0\xff", b"\xff\xff"):
        assert prefix + b"\xff" * 40 < after_prefix(prefix)
