"""Messages of deliveries, made of their chunks; and how their payloads are read without the lock.

A claim plans and leases under the lock. Payloads that are not in memory are read after it, before the answer goes out.
Meanwhile somebody else may settle a message of the answer, by its id: when all messages of a chunk are gone, so are its
pages, and the answer goes out without these deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fairlead.engine.delivery_columns import ChunkColumns, columns_of_list
from fairlead.errors import BrokenInvariant
from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import DeliveryColumns
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message
from fairlead.records.chunk import Chunk, Columns
from fairlead.records.ids import BLOCK_MASK, id_of
from fairlead.store.rows import read_payloads

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

T = TypeVar("T")


class ChunkMessages:
    """Makes messages of a chunk when they are asked for. It keeps the columns and payloads of the chunk as they
    were. `is_ordered`: its queue orders streams. With no payloads, `read` must come before anybody asks for one.
    """

    __slots__ = ("__weakref__", "_chunk", "_chunk_columns", "_columns", "_enqueued_ms", "_is_ordered", "_payloads",
                 "_queue_id", "block", "is_lost", "prefix")  # fmt: skip

    def __init__(
        self,
        chunk: Chunk,
        payloads: Sequence[bytes],
        *,
        is_ordered: bool,
        chunk_columns: ChunkColumns | None = None,
    ) -> None:
        self._chunk = chunk
        self._chunk_columns = chunk_columns
        self.block = chunk.block
        #: Whether somebody else has ended all messages of the chunk before their payloads were read.
        self.is_lost = False
        self.prefix = chunk.prefix
        self._columns = chunk.columns
        self._enqueued_ms = chunk.enqueued_ms
        self._is_ordered = is_ordered
        self._payloads = payloads
        self._queue_id = chunk.queue_id

    def read(self, engine: Engine) -> None:
        """Needs no lock: pages are written once, and go with the last message of their chunk."""
        try:
            self._payloads = self._chunk.payloads = read_payloads(engine.store, self._chunk)
            engine.memory.read_bodies.append(self._chunk)
        except BrokenInvariant:
            if self.block in engine.memory.chunks:
                raise
            self.is_lost = True

    @property
    def columns(self) -> Columns:
        return self._columns

    @property
    def payloads(self) -> Sequence[bytes]:
        return self._payloads

    @property
    def chunk_columns(self) -> ChunkColumns:
        if self._chunk_columns is None:
            self._chunk_columns = ChunkColumns(self._chunk, is_ordered=self._is_ordered)
        return self._chunk_columns

    def columns_of(self, deliveries: Sequence[Delivery]) -> DeliveryColumns:
        return columns_of_list(deliveries)

    def raw_id(self, number: int) -> bytes:
        return id_of(self.prefix, number)

    def payload(self, number: int) -> bytes:
        return self._payloads[number & BLOCK_MASK]

    def message(self, number: int) -> Message:
        index, columns = number & BLOCK_MASK, self._columns
        lane = columns.lanes[0 if columns.lane_at is None else columns.lane_at[index]]
        weights, headers = columns.weights, columns.headers
        stream = "" if columns.streams is None else columns.streams[index]
        return Message(
            id_of(self.prefix, number),
            self._queue_id,
            pack_lane(lane[0], lane[1:]),
            weights if isinstance(weights, int) else weights[index],
            b"" if headers is None else headers[index],
            self._payloads[index],
            self._enqueued_ms,
            number,
            stream=stream,
            seq=number if self._is_ordered and stream else 0,
        )


def with_bodies(engine: Engine, unread: Iterable[ChunkMessages], answer: T) -> T:
    """The answer, with the payloads that it lacked."""
    is_complete = True
    for stored in unread:
        stored.read(engine)
        is_complete = is_complete and not stored.is_lost
    return answer if is_complete else cast(T, _without_lost(answer))


def _without_lost(answer: Any) -> Any:
    """Deliveries are in a list, in an exchange in one of several."""
    if not isinstance(answer, list):
        return answer
    return [_without_lost(one) for one in answer if not _is_lost(one)]


def _is_lost(one: Any) -> bool:
    return isinstance(one, Delivery) and isinstance(one.stored, ChunkMessages) and one.stored.is_lost
