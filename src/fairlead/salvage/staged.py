"""Staged and published writes of a rebuilt store: whole ones are kept, the rest is listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairlead.model.facts import ChunkStaged, PublishEnded, PublishSaved
from fairlead.model.names import Scoped
from fairlead.model.staging import ChunkBody, StagedChunk, unpack_chunk
from fairlead.store.rocks import codec
from fairlead.store.rocks.layout import chunk_key

if TYPE_CHECKING:
    from fairlead.salvage.rebuild import Rebuild


def rebuild_staged(rebuild: Rebuild) -> None:
    done: set[Scoped] = set()
    for _, record in rebuild.decoded("published", codec.decode_published):
        done.add(record.write)
        rebuild.add(PublishEnded(record))
        rebuild.flush_if_large()
    chunks = {
        chunk_key(chunk.write, chunk.chunk): chunk
        for _, chunk in rebuild.decoded("staged_chunks", codec.decode_chunk)
    }
    kept: dict[tuple[Scoped, str], StagedChunk] = {}
    for row in rebuild.rows("staged"):
        chunk = chunks.pop(row.key, None)
        # A write that is done has no chunks any more: these are left over from before.
        if chunk is not None and chunk.write in done:
            continue
        if chunk is None or not _is_whole(chunk, row.value[1:]):
            rebuild.report.other.append(
                f"the staged chunk {row.key.decode('utf-8', 'replace')!r} is not whole and is gone"
            )
            continue
        kept[chunk.write, chunk.chunk] = chunk
        rebuild.add(ChunkStaged(chunk, row.value[1:]), len(row.value))
        rebuild.flush_if_large()
    for chunk in chunks.values():
        if chunk.write not in done:
            rebuild.report.other.append(
                f"chunk {chunk.chunk!r} of the staged write {chunk.token!r} ({chunk.count} messages) is gone"
            )
    _keep_publishing(rebuild, kept, done)


def _keep_publishing(
    rebuild: Rebuild, kept: dict[tuple[Scoped, str], StagedChunk], done: set[Scoped]
) -> None:
    """What is left of a write that was published becomes messages, because its publisher was told so."""
    for _, record in rebuild.decoded("publishing", codec.decode_publishing):
        if record.write in done:
            continue
        chunks = tuple(name for name in dict.fromkeys(record.chunks) if (record.write, name) in kept)
        if chunks != record.chunks:
            missing = [name for name in record.chunks if name not in chunks]
            rebuild.report.other.append(f"chunks {missing} of the published write {record.token!r} are gone")
        same_first = bool(chunks) and chunks[0] == record.chunks[0]
        offset = record.offset if same_first and record.offset < kept[record.write, chunks[0]].count else 0
        rebuild.add(PublishSaved(msgspec.structs.replace(record, chunks=chunks, offset=offset)))
    rebuild.flush()


def _is_whole(chunk: StagedChunk, packed: bytes) -> bool:
    try:
        body: ChunkBody = unpack_chunk(packed)
    except msgspec.DecodeError:
        return False
    size = sum(len(message.payload) + len(message.headers) for message in body.messages)
    fits = (chunk.count, chunk.bytes, chunk.stored_bytes) == (len(body.messages), size, len(packed))
    return fits and bool(body.deaths) == chunk.dead and len(body.deaths) in (0, 1, len(body.messages))
