"""What a table says of its deletions of ranges, which a repair without its properties cannot keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from rocksdict import Cache, Options, Rdict, WriteBatch

from fairlead.store.rocks.mend import has_no_ranges, read_footer
from fairlead.store.rocks.options import MIB, Shape, family_options


def make_table(path: Path, shape: Shape, *, deletes_range: bool) -> Path:
    options = family_options(shape, Cache(MIB), Options(raw_mode=True))
    options.create_if_missing(True)
    database = Rdict(str(path), options=options)
    database.put(b"key", b"value")
    if deletes_range:
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(b"a", b"b")
        database.write(batch)
    database.flush()
    database.close()
    (table,) = path.glob("*.sst")
    return table


@pytest.mark.parametrize("shape", [Shape(), Shape(looked_up=True), Shape(queue_shaped=True)])
@pytest.mark.parametrize("deletes_range", [False, True])
def test_a_table_that_deletes_a_range_is_told_from_one_that_does_not(
    tmp_path: Path, shape: Shape, deletes_range: bool
) -> None:
    table = make_table(tmp_path / "data", shape, deletes_range=deletes_range)
    assert has_no_ranges(table) is not deletes_range


@pytest.mark.parametrize("deletes_range", [False, True])
def test_a_damaged_metaindex_never_hides_that_a_table_deletes_a_range(
    tmp_path: Path, deletes_range: bool
) -> None:
    table = make_table(tmp_path / "data", Shape(), deletes_range=deletes_range)
    content = table.read_bytes()
    places = read_footer(content)
    assert places is not None
    start, size = places[:2]
    damaged = tmp_path / "damaged.sst"
    for bit in range(start * 8, (start + size) * 8):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.write_bytes(changed)
        if deletes_range:
            assert not has_no_ranges(damaged), f"with bit {bit} changed"
        else:
            has_no_ranges(damaged)
