from __future__ import annotations

from itertools import chain, pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fairlead.spark.data_source.chunks import Chunker, row_sizes


def rows(*sizes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([b"x" * size for size in sizes], pa.binary())], names=["payload"]
    )


def cut(batches: list[pa.RecordBatch], max_bytes: int, max_rows: int) -> list[pa.RecordBatch]:
    chunker = Chunker(max_bytes=max_bytes, max_rows=max_rows)
    chunks = [chunk for batch in batches for chunk in chunker.add(batch, batch)] + [*chunker.rest()]
    assert all(chunk.given.equals(chunk.wire) for chunk in chunks)
    return [chunk.wire for chunk in chunks]


SIZES = st.lists(st.lists(st.integers(0, 500), max_size=8), max_size=5)


@given(SIZES, st.integers(100, 1500), st.integers(1, 6))
def test_chunks_hold_all_rows_in_order_and_none_is_larger_than_it_may_be(
    sizes: list[list[int]], max_bytes: int, max_rows: int
) -> None:
    chunks = cut([rows(*batch) for batch in sizes], max_bytes, max_rows)
    lengths = [[len(value) for value in chunk.column("payload").to_pylist()] for chunk in chunks]
    assert [*chain(*lengths)] == [*chain(*sizes)]
    for chunk in lengths:
        assert 0 < len(chunk) <= max_rows
        assert len(chunk) == 1 or sum(chunk) + 64 * len(chunk) <= max_bytes


@given(SIZES, st.integers(100, 1500), st.integers(1, 6))
def test_no_chunk_could_have_held_the_first_row_of_the_next(
    sizes: list[list[int]], max_bytes: int, max_rows: int
) -> None:
    chunks = cut([rows(*batch) for batch in sizes], max_bytes, max_rows)
    for chunk, following in pairwise(chunks):
        grown = int(row_sizes(chunk).sum() + row_sizes(following)[0])
        assert chunk.num_rows == max_rows or grown > max_bytes


def test_the_size_of_a_row_counts_texts_and_lists_and_is_right_in_a_slice() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["a", None, "ccc"]),
            pa.array([["xx", "y"], None, ["z" * 10]]),
            pa.nulls(3, pa.binary()),
            pa.array([1, 2, 3]),
        ],
        names=[*"abcd"],
    )
    assert row_sizes(batch).tolist() == [64 + 1 + 3, 64, 64 + 3 + 10]
    assert row_sizes(batch.slice(1)).tolist() == [64, 64 + 3 + 10]
