"""Pages of a numbered claim as record batches.

The columns of a chunk are made once, for all pages with messages of that chunk. A page of messages that were
enqueued one after the other is a slice of these columns, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import pyarrow as pa

from fairlead.model.delivery_columns import DeliveryPage, SharedTerms, StoredChunk
from fairlead.wire.columns import make_batch
from fairlead.wire.deliveries import arrays_of, encode_columns, encode_deliveries
from fairlead.wire.schemas import DELIVERIES

#: The most messages that may be read for each wanted one. Above this ratio, messages are gathered one by one.
_MAX_WASTE = 2

#: Encoded chunks, without the columns that hold only defaults. An entry lives as long as a reader or a page
#: has the payloads.
_encoded: WeakKeyDictionary[StoredChunk, pa.RecordBatch] = WeakKeyDictionary()


def encode_page(page: DeliveryPage, *, payloads: bool = True) -> pa.RecordBatch:
    count, spans = len(page), page.spans()
    if sum([span.size for span in spans]) > _MAX_WASTE * count:
        return encode_columns(page.columns(), payloads=payloads)
    parts = _same_columns([_all_of(span.stored).slice(span.start, span.size) for span in spans])
    found = _concat(parts)
    places = page.places()
    if places is not None:
        found = _take(found, places)
    columns = _columns_of(found) | _terms(page.shared, count)
    if not payloads:
        del columns["payload"]
    batch = make_batch(DELIVERIES, count, columns)
    touched = page.touched()
    if touched:
        batch = _replace(batch, touched, encode_deliveries([page[at] for at in touched], payloads=payloads))
    return batch


def _all_of(stored: StoredChunk) -> pa.RecordBatch:
    batch = _encoded.get(stored)
    if batch is None:
        columns = arrays_of(stored.all_columns())
        batch = _encoded[stored] = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
    return batch


def _same_columns(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len({tuple(batch.schema.names) for batch in batches}) == 1:
        return batches
    return [make_batch(DELIVERIES, batch.num_rows, _columns_of(batch)) for batch in batches]


def _columns_of(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _terms(shared: SharedTerms, count: int) -> dict[str, pa.Array]:
    columns = {
        "lease": pa.repeat(pa.scalar(shared.claim_id, pa.uint64()), count),
        "lease_until": pa.repeat(pa.scalar(shared.lease_until, pa.int64()), count),
    }
    if shared.source is not None:
        columns["source"] = pa.repeat(shared.source, count)
    return columns


def _replace(batch: pa.RecordBatch, places: Sequence[int], rows: pa.RecordBatch) -> pa.RecordBatch:
    order = [*range(batch.num_rows)]
    for at, place in enumerate(places, batch.num_rows):
        order[place] = at
    return _take(_concat([batch, rows]), order)


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _take(batch: pa.RecordBatch, indexes: Sequence[int]) -> pa.RecordBatch:
    return batch.take(pa.array(indexes, pa.int32()))
