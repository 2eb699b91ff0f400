"""Answers of many parts. Each is made once the one before has been written, so that a slow client has one of
them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import Runs, columns_of, sizes_of
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersRead
from fairlead.wire.browsed import encode_browsed
from fairlead.wire.calls import PagesCall, decode
from fairlead.wire.deliveries import encode_columns, runs_of
from fairlead.wire.records import decode_fields

#: A part ends with the row that reaches either. Large enough that the work for a part is little beside that
#: for its rows, and small enough that a hundred readers that have stopped reading can be waited for.
MOST_ROWS = 10_000
MOST_BYTES = 2 * 1024 * 1024

Part = tuple[Runs, pa.RecordBatch]


def read(broker: AdmittedCaller, metadata: bytes) -> Iterator[Part]:
    call = decode(metadata, PagesCall)
    pages = broker.do(decode_fields(ConsumersRead, call.fields))
    return _encoded(pages, call.payloads)


def browse(broker: AdmittedCaller, metadata: bytes) -> Iterator[Part]:
    call = decode(metadata, PagesCall)
    for infos in broker.browse_pages(decode_fields(Browse, call.fields)):
        yield runs_of(infos), encode_browsed(infos, payloads=call.payloads)


STREAMED: dict[str, Callable[[AdmittedCaller, bytes], Iterator[Part]]] = {"read": read, "browse": browse}


def _encoded(pages: Iterable[Sequence[Delivery]], payloads: bool) -> Iterator[Part]:
    for part in _parts(pages):
        columns = columns_of(part)
        encoded = columns.runs, encode_columns(columns, payloads=payloads)
        # A client may take its time to read: meanwhile the bodies are not needed twice.
        del part, columns
        yield encoded


def _parts(pages: Iterable[Sequence[Delivery]]) -> Iterator[Sequence[Delivery]]:
    """Pages, cut where they are too large."""
    for page in pages:
        start = size = 0
        for at, more in enumerate(sizes_of(page), 1):
            size += more
            if size >= MOST_BYTES or at - start >= MOST_ROWS:
                yield page[start:at]
                start, size = at, 0
        if start < len(page):
            yield page[start:]
