"""Answers of many parts. Each is made once the one before has been written, so that a slow client has one of them in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import pyarrow as pa

from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_CLAIM
from fairlead.server.guard import GuardedBroker
from fairlead.wire.browsed import encode_browsed
from fairlead.wire.calls import BrowseCall, ReadCall, decode
from fairlead.wire.deliveries import Runs, encode_deliveries, runs_of

#: A part ends with the row that reaches either.
MOST_ROWS = 10_000
MOST_BYTES = 8 * 1024 * 1024

Part = tuple[Runs, pa.RecordBatch]


def read(broker: GuardedBroker, metadata: bytes) -> Iterator[Part]:
    call = decode(metadata, ReadCall)
    if not 0 <= call.skip <= MAX_CLAIM:
        raise InvalidRequest("skip", f"a whole number from 0 to {MAX_CLAIM}", call.skip)
    deliveries = broker.consumers.read(call.name, call.generation, call.number, slice=call.slice, slices=call.slices)
    return _encoded(islice(deliveries, call.skip, None), call.payloads)


def browse(broker: GuardedBroker, metadata: bytes) -> Iterator[Part]:
    call = decode(metadata, BrowseCall)
    for infos in broker.browse_pages(call.queue, call.view, call.low, call.high, call.after):
        yield runs_of(infos), encode_browsed(infos, payloads=call.payloads)


STREAMED: dict[str, Callable[[GuardedBroker, bytes], Iterator[Part]]] = {"read": read, "browse": browse}


def _encoded(deliveries: Iterable[Delivery], payloads: bool) -> Iterator[Part]:
    for page in _pages(deliveries):
        yield runs_of(page), encode_deliveries(page, payloads=payloads)


def _pages(deliveries: Iterable[Delivery]) -> Iterator[list[Delivery]]:
    page: list[Delivery] = []
    size = 0
    for delivery in deliveries:
        page.append(delivery)
        size += delivery.message.size
        if size >= MOST_BYTES or len(page) >= MOST_ROWS:
            yield page
            page, size = [], 0
    if page:
        yield page
