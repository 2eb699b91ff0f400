"""Groups the rows of a task into chunks, one request each: small batches are joined, large ones are cut."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

CHUNK_BYTES = 8 * 1024 * 1024
CHUNK_ROWS = 25_000
#: What a row takes besides its texts and bytes.
_ROW_BYTES = 64

Sizes = npt.NDArray[np.int64]


class RowChunk:
    """Rows in the columns of the wire, and the same rows as the user gave them, to describe refused rows."""

    def __init__(self, wire: list[pa.RecordBatch], given: list[pa.RecordBatch]) -> None:
        self.wire = wire[0] if len(wire) == 1 else pa.concat_batches(wire)
        self._given = given

    @property
    def given(self) -> pa.RecordBatch:
        return self._given[0] if len(self._given) == 1 else pa.concat_batches(self._given)


class Chunker:
    def __init__(self, *, max_bytes: int = CHUNK_BYTES, max_rows: int = CHUNK_ROWS) -> None:
        self._most_bytes = max_bytes
        self._most_rows = max_rows
        self._wire: list[pa.RecordBatch] = []
        self._given: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0

    def add(self, wire: pa.RecordBatch, given: pa.RecordBatch) -> Iterator[RowChunk]:
        """Add rows, and yield the chunks that are full. A row larger than `max_bytes` is a chunk of its own."""
        ends = np.cumsum(row_sizes(wire)) if wire.num_rows else np.zeros(0, np.int64)
        start = 0
        while start < wire.num_rows:
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + self._most_bytes - self._bytes, side="right"))
            end = min(end, start + self._most_rows - self._rows)
            if end <= start and self._wire:
                yield self._cut()
                continue
            end = max(end, start + 1)
            self._wire.append(wire.slice(start, end - start))
            self._given.append(given.slice(start, end - start))
            self._rows += end - start
            self._bytes += int(ends[end - 1]) - before
            start = end

    def rest(self) -> Iterator[RowChunk]:
        if self._wire:
            yield self._cut()

    def _cut(self) -> RowChunk:
        chunk = RowChunk(self._wire, self._given)
        self._wire, self._given, self._bytes, self._rows = [], [], 0, 0
        return chunk


def row_sizes(batch: pa.RecordBatch) -> Sizes:
    """About how many bytes each row takes on the wire, from the lengths of its values."""
    sizes: Sizes = np.full(batch.num_rows, _ROW_BYTES, np.int64)
    for column in batch.columns:
        if column.null_count == len(column):
            continue
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes += _lengths(column)
        elif pa.types.is_list(column.type):
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(_lengths(column.values))])
            offsets = column.offsets.to_numpy()
            sizes += ends[offsets[1:]] - ends[offsets[:-1]]
    return sizes


def _lengths(column: pa.Array) -> Sizes:
    lengths = pc.binary_length(column)
    found: Sizes = (lengths.fill_null(0) if lengths.null_count else lengths).to_numpy().astype(np.int64)
    return found
