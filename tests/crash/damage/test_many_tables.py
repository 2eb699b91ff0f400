"""RocksDB opens 16 tables at its start and the others at their first read. A refusal names a damaged table in
both cases.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fairlead
from fairlead.errors import StoreCorrupt
from fairlead.testing import ManualClock

from .judge import contents_of
from .victim import make_directory

FOOTER_BYTES = 53
Change = Callable[[bytearray], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = make_directory(tmp_path_factory.mktemp("many"), "tables")
    assert len(tables(base)) > 16
    return base


def tables(path: Path) -> list[Path]:
    return sorted(path.glob("*.sst"))


def flip(content: bytearray, at: int) -> None:
    content[at] ^= 0x10


def in_order_of_properties(content: bytearray) -> None:
    """RocksDB then says "properties unsorted", and not of which table."""
    flip(content, content.index(b"column.family.id"))


def in_value_of_property(content: bytearray) -> None:
    flip(content, content.index(b"leveldb.BytewiseComparator"))


def in_metaindex(content: bytearray) -> None:
    flip(content, content.index(b"rocksdb.properties") + 3)


def in_index_handle(content: bytearray) -> None:
    flip(content, len(content) - FOOTER_BYTES + 4)


def in_magic_number(content: bytearray) -> None:
    flip(content, len(content) - 3)


def in_version(content: bytearray) -> None:
    flip(content, len(content) - 12)


def in_checksum_type(content: bytearray) -> None:
    flip(content, len(content) - FOOTER_BYTES)


def in_first_block(content: bytearray) -> None:
    flip(content, 12)


CHANGES = (
    in_order_of_properties,
    in_value_of_property,
    in_metaindex,
    in_index_handle,
    in_magic_number,
    in_version,
    in_checksum_type,
    in_first_block,
)


def assert_each_refusal_names(path: Path, table: Path) -> None:
    (problem, *_) = fairlead.verify(path).problems
    assert problem.startswith(f"{table} is corrupt: ")
    with (
        pytest.raises(StoreCorrupt) as refused,
        fairlead.open(path, durability="os", clock=ManualClock()) as broker,
    ):
        contents_of(broker)
    assert refused.value.where == str(table)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("position", [0, -1])
def test_a_refusal_names_the_damaged_table(made: Path, tmp_path: Path, change: Change, position: int) -> None:
    path = Path(shutil.copytree(made, tmp_path / "data"))
    table = tables(path)[position]
    content = bytearray(table.read_bytes())
    change(content)
    table.write_bytes(content)
    assert_each_refusal_names(path, table)


def test_a_refusal_names_a_table_that_is_another_one_of_the_same_size(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "data"))
    size_of = {table: table.stat().st_size for table in tables(path)}
    swapped, other = next(
        (one, two)
        for one in reversed(tables(path))
        for two in tables(path)
        if one != two and size_of[one] == size_of[two]
    )
    shutil.copyfile(other, swapped)
    assert_each_refusal_names(path, swapped)


def test_a_refusal_names_every_damaged_table(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "data"))
    damaged = tables(path)[-3:]
    for table in damaged:
        content = bytearray(table.read_bytes())
        in_order_of_properties(content)
        table.write_bytes(content)
    (problem,) = fairlead.verify(path).problems
    assert all(table.name in problem for table in damaged)
