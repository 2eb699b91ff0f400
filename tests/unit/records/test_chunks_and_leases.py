"""Chunks mark what became of their messages; leases list their members as runs."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fairlead.records.chunk import (
    GONE,
    OWN,
    PAGE_BYTES,
    PIECE_BYTES,
    Chunk,
    Columns,
    Head,
    by_chunk,
    cut_pages,
    page_sizes,
    page_starts,
)
from fairlead.records.ids import BLOCK_SHIFT
from fairlead.records.lease import to_runs

FIRST = 3 << BLOCK_SHIFT
SETS = st.sets(st.integers(min_value=0, max_value=200), min_size=1)


def chunk_of(sizes: list[int]) -> Chunk:
    columns = Columns((("k",),), None, 1, None, sizes)
    return Chunk.of(1, Head(FIRST, b"prefix--", 0, columns, None), [b"x" * size for size in sizes])


@given(SETS)
def test_runs_hold_exactly_their_numbers(numbers: set[int]) -> None:
    runs = to_runs(numbers)
    assert sorted(number for first, count in runs for number in range(first, first + count)) == sorted(
        numbers
    )
    assert all(end + 1 < first for (_, end), (first, _) in zip(_ends(runs), runs[1:], strict=False))


def _ends(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(first, first + count - 1) for first, count in runs]


@given(st.lists(st.integers(min_value=0, max_value=5 << BLOCK_SHIFT), unique=True))
def test_numbers_are_grouped_by_their_chunk_in_order(numbers: list[int]) -> None:
    groups = list(by_chunk(numbers))
    assert [number for _, members in groups for number in members] == sorted(numbers)
    assert [block for block, _ in groups] == sorted({number >> BLOCK_SHIFT for number in numbers})


@given(SETS, SETS)
def test_a_chunk_knows_what_became_of_each_message(own: set[int], gone: set[int]) -> None:
    chunk = chunk_of([1] * 201)
    chunk.mark(sorted(FIRST + index for index in own), OWN)
    chunk.mark(sorted(FIRST + index for index in gone), GONE)
    assert chunk.with_own_rows() == [FIRST + index for index in sorted(own - gone)]
    assert list(chunk.implied()) == [FIRST + index for index in range(201) if index not in own | gone]


@given(st.lists(st.integers(min_value=0, max_value=2 * PAGE_BYTES), min_size=1, max_size=30))
def test_pages_are_cut_where_the_next_payload_would_not_fit(sizes: list[int]) -> None:
    starts = chunk_of(sizes).page_starts()
    pages = [sizes[start:end] for start, end in zip(starts, [*starts[1:], len(sizes)], strict=True)]
    assert [size for page in pages for size in page] == sizes
    assert all(pages)
    assert all(sum(page) <= PAGE_BYTES or len([size for size in page if size]) == 1 for page in pages)


def test_a_chunk_that_grows_gets_more_pages() -> None:
    chunk, size = chunk_of([PAGE_BYTES]), PAGE_BYTES
    assert chunk.page_starts() == [0]
    more = Columns((), None, 1, None, [size, size])
    chunk.grow(more, [b"", b""], ())
    assert chunk.page_starts() == [0, 1, 2]


def test_pages_begin_where_the_next_payload_has_no_room() -> None:
    def one_by_one(sizes: list[int]) -> list[int]:
        starts, used = [0], 0
        for index, size in enumerate(sizes):
            if used and used + size > PAGE_BYTES:
                starts.append(index)
                used = 0
            used += size
        return starts

    chance = random.Random(7)
    edges = [0, 0, 1, 1000, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 3 * PAGE_BYTES]
    for _ in range(2000):
        sizes = chance.choices(edges, k=chance.randrange(30))
        assert page_starts(sizes) == one_by_one(sizes)


@given(
    st.lists(st.sampled_from([0, 1, PAGE_BYTES, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES]), max_size=8)
)
def test_large_payloads_are_cut_into_pieces_and_joined_again(sizes: list[int]) -> None:
    payloads = [bytes([index % 256]) * size for index, size in enumerate(sizes)]
    starts = page_starts(sizes)
    if not sizes:
        return
    pages = [*cut_pages(payloads, starts)]
    assert [sum(map(len, page)) for page in pages] == page_sizes(starts, sizes)
    assert max(sum(map(len, page)) for page in pages) <= PIECE_BYTES
    assert b"".join([b"".join(page) for page in pages]) == b"".join(payloads)
