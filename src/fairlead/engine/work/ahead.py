"""A large payload is stored before the transaction of its enqueue, in pieces that are not visible.

RocksDB's binding holds the interpreter lock for the whole of a write, so one write of a large payload would
block every other thread. The enqueue itself stays one transaction, with its dedup key and its remembered
answer: its chunk takes over the pages. If it makes no chunk, or if a crash comes first, the pages are dropped
like any staged part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairlead.engine.transaction import StoredAhead
from fairlead.engine.work.enqueue import source_queue
from fairlead.engine.work.staging import drop_own, own_write, stage_part, to_parts
from fairlead.model.checks import check_columns
from fairlead.records.chunk import PIECE_BYTES
from fairlead.verbs.enqueue import Enqueue

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


#: Larger payloads are stored ahead.
LARGE_PAYLOAD_BYTES = 2 * PIECE_BYTES


def is_large_payload(request: Enqueue) -> bool:
    payload = request.payload
    return type(payload) is bytes and len(payload) > LARGE_PAYLOAD_BYTES


@contextmanager
def stored_ahead(engine: Engine, request: Enqueue) -> Iterator[None]:
    """Inside the block the payload of the enqueue is stored already. Raises at once what the enqueue would
    raise.
    """
    given = check_columns([request.message()])
    with engine.transaction() as tx:
        queue_id = source_queue(tx, request.queue).record.queue_id
    write = own_write(request.queue)
    try:
        stage_part(engine, write, queue_id, "", to_parts(given, [])[0])
        engine.stored_ahead[id(request)] = StoredAhead(request.payload, write)
        yield
    finally:
        engine.stored_ahead.pop(id(request), None)
        drop_own(engine, write)
