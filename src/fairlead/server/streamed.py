"""Answers of many parts. Each part is made once the one before has been written, so that a slow client
occupies the memory of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import DeliveryPage, Runs
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersRead
from fairlead.wire.browsed import encode_browsed
from fairlead.wire.calls import PagesCall, decode
from fairlead.wire.deliveries import runs_of
from fairlead.wire.delivery_pages import encode_page
from fairlead.wire.writes import decode_fields

#: The approximate size of a part. The engine ends a page of a claim with the message that reaches it: then
#: the work for a part is little beside that for its rows, and a stop can wait for a hundred readers that have
#: stopped reading.
MAX_BYTES = 2 * 1024 * 1024

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
    for page in pages:
        assert isinstance(page, DeliveryPage), "an engine answers in pages"
        encoded = [(page.shared.queue, len(page))], encode_page(page, payloads=payloads)
        # A client may read slowly: meanwhile the bodies are not needed twice.
        del page
        yield encoded
