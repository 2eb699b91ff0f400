"""Messages of deliveries, made from their chunks, and how their payloads are read without the lock.

A claim plans and leases under the lock. Payloads that are not in memory are read after it, before the answer
is sent. Meanwhile another caller may settle a message of the answer by its id. When all messages of a chunk
are gone, so are its pages, and the answer is sent without these deliveries. Or the chunk is rewritten without
its messages that are gone: then the payloads are read from their new place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from fairlead.engine.delivery_columns import ChunkColumns, columns_of_list
from fairlead.errors import BrokenInvariant
from fairlead.model.delivery import Delivery
from fairlead.model.delivery_columns import DeliveryColumns
from fairlead.model.lane import pack_lane
from fairlead.model.message import Message
from fairlead.records.chunk import PIECE_BYTES, Chunk, Columns
from fairlead.records.ids import BLOCK_MASK, id_of
from fairlead.store.rows import read_payloads

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

T = TypeVar("T")


class ChunkMessages(msgspec.Struct, eq=False, weakref=True):
    """Makes messages of a chunk on access. It keeps the columns and payloads of the chunk as they were; what
    it uses of the chunk itself never changes. Without payloads, `read` must be called before the first
    access.
    """

    chunk: Chunk
    columns: Columns
    payloads: Sequence[bytes]
    #: Whether its queue orders streams.
    _is_ordered: bool
    _chunk_columns: ChunkColumns | None = None
    #: Whether other callers ended some or all messages of the chunk before their payloads were read.
    is_cut: bool = False

    def read(self, engine: Engine) -> None:
        """Needs no lock: pages are written once, and deleted with the last message of their chunk or when it
        is rewritten.
        """
        chunk: Chunk | None = self.chunk
        while chunk is not None:
            try:
                payloads = chunk.payloads or read_payloads(engine.store, chunk)
            except BrokenInvariant:
                before, chunk = chunk, find_chunk_now(engine, chunk)
                if chunk is not None and chunk.body == before.body:
                    raise
                self.is_cut = True
                continue
            self.payloads = chunk.payloads = payloads
            engine.memory.read_bodies.append(chunk)
            return

    def has(self, number: int) -> bool:
        """Whether the message's payload existed when it was read."""
        if not self.payloads:
            return False
        index = number & BLOCK_MASK
        return len(self.payloads[index]) == self.columns.sizes[index]

    @property
    def chunk_columns(self) -> ChunkColumns:
        if self._chunk_columns is None:
            self._chunk_columns = ChunkColumns(self.chunk, is_ordered=self._is_ordered)
        return self._chunk_columns

    def columns_of(self, deliveries: Sequence[Delivery]) -> DeliveryColumns:
        return columns_of_list(deliveries)

    def all_columns(self) -> DeliveryColumns:
        return self.chunk_columns.all_columns(self.payloads)

    def raw_id(self, number: int) -> bytes:
        return id_of(self.chunk.prefix, number)

    def payload(self, number: int) -> bytes:
        return self.payloads[number & BLOCK_MASK]

    def message(self, number: int) -> Message:
        index, columns = number & BLOCK_MASK, self.columns
        lane = columns.lanes[0 if columns.lane_at is None else columns.lane_at[index]]
        weights, headers = columns.weights, columns.headers
        stream = "" if columns.streams is None else columns.streams[index]
        return Message(
            id_of(self.chunk.prefix, number),
            self.chunk.queue_id,
            pack_lane(lane[0], lane[1:]),
            weights if isinstance(weights, int) else weights[index],
            b"" if headers is None else headers[index],
            self.payloads[index],
            self.chunk.enqueued_ms,
            number,
            stream=stream,
            seq=number if self._is_ordered and stream else 0,
        )


def find_chunk_now(engine: Engine, chunk: Chunk) -> Chunk | None:
    """For readers without the lock that miss a payload: the chunk as it is stored now; None if it is gone. If
    the body is the same, nothing has moved.
    """
    with engine.transaction() as tx:
        tx.bring_chunks([chunk.first])
        return tx.memory.chunks.get(chunk.block)


def with_bodies(engine: Engine, unread: Iterable[ChunkMessages], answer: T) -> T:
    """The answer, with the payloads that it lacked."""
    is_complete = True
    for stored in unread:
        stored.read(engine)
        is_complete = is_complete and not stored.is_cut
    return answer if is_complete else cast(T, _without_lost(answer))


def is_much(unread: Iterable[ChunkMessages]) -> bool:
    """Whether reading these payloads takes long."""
    return sum([stored.chunk.payload_bytes for stored in unread]) > PIECE_BYTES


def bytes_of_bodies(answer: Any) -> int:
    """An upper bound of the bytes of payloads in an answer with deliveries, also in an exchange. It is quick."""
    size, last = 0, None
    for one in answer if type(answer) is list else ():
        if type(one) is list:
            size += bytes_of_bodies(one)
        elif type(one) is Delivery and one.stored is not last:
            last = one.stored
            size += last.chunk.payload_bytes if isinstance(last, ChunkMessages) else 0
    return size


def read_bodies(engine: Engine, answer: T) -> T:
    """The answer of a gathered request, with payloads that were too large to be read with it."""
    return with_bodies(engine, {id(one): one for one in _unread_of(answer)}.values(), answer)


def _unread_of(answer: Any) -> Iterator[ChunkMessages]:
    for one in answer if type(answer) is list else ():
        if type(one) is list:
            yield from _unread_of(one)
        elif isinstance(one, Delivery) and isinstance(one.stored, ChunkMessages) and not one.stored.payloads:
            yield one.stored


def _without_lost(answer: Any) -> Any:
    """The answer without lost deliveries, which are in a list, or in one list of an exchange."""
    if not isinstance(answer, list):
        return answer
    return [_without_lost(one) for one in answer if not _is_lost(one)]


def _is_lost(one: Any) -> bool:
    return (
        isinstance(one, Delivery)
        and isinstance(one.stored, ChunkMessages)
        and one.stored.is_cut
        and not one.stored.has(one.number)
    )
