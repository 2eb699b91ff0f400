"""Rules of staged writes: arguments, and how a write is shown and remembered."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import InvalidRequest
from fairlead.model.checks import check_text
from fairlead.model.durations import Duration, to_ms
from fairlead.model.limits import MAX_STAGING_NAME_BYTES, MAX_WRITE_CHUNKS, PUBLISHED_KEPT_MS
from fairlead.model.names import Scoped, check_queue_name
from fairlead.model.staging import Published, Publishing, StagedChunk, StagedWrite

#: The prefix of tokens of writes that the broker makes itself. They are not shown.
OWN_TOKENS = "\0"


def read_write(token: object, queue: object) -> Scoped:
    write = Scoped(check_queue_name(queue), check_name(token, "token"))
    if write.name.startswith(OWN_TOKENS):
        raise InvalidRequest("token", "text that does not begin with a zero byte", token)
    return write


def check_name(value: object, field: str) -> str:
    return check_text(value, field, MAX_STAGING_NAME_BYTES)


def read_staging_ttl(ttl: Duration) -> int:
    ttl_ms = to_ms(ttl, "ttl")
    if not ttl_ms:
        raise InvalidRequest("ttl", "longer than nothing", ttl)
    return ttl_ms


def check_chunk_names(chunks: object) -> tuple[str, ...]:
    if isinstance(chunks, (str, bytes)) or not isinstance(chunks, Sequence):
        raise InvalidRequest("chunks", "a list of names", chunks)
    if len(chunks) > MAX_WRITE_CHUNKS:
        raise InvalidRequest("chunks", f"at most {MAX_WRITE_CHUNKS}", f"{len(chunks)} chunks")
    names = tuple([check_name(chunk, "chunks") for chunk in chunks])
    if len(set(names)) < len(names):
        raise InvalidRequest(
            "chunks", "each name once", next(name for name in names if names.count(name) > 1)
        )
    return names


def expires_ms(chunks: Sequence[StagedChunk]) -> int:
    """When the write expires: with its youngest chunk, because it is deleted as a whole."""
    return max((chunk.expires_ms for chunk in chunks), default=0)


def ended_record(record: Publishing) -> Published:
    until_ms = record.published_ms + PUBLISHED_KEPT_MS
    return Published(
        record.token,
        record.chunk_count,
        record.count,
        record.bytes,
        record.queue,
        record.staged_ms,
        record.published_ms,
        until_ms,
    )


def view_staged(write: Scoped, chunks: Sequence[StagedChunk]) -> StagedWrite:
    return StagedWrite(
        token=write.name,
        published=False,
        chunks=len(chunks),
        messages=sum(chunk.count for chunk in chunks),
        bytes=sum(chunk.bytes for chunk in chunks),
        queue=write.queue,
        staged_at=min(chunk.staged_ms for chunk in chunks),
        expires_at=expires_ms(chunks),
    )


def view_published(record: Published) -> StagedWrite:
    return StagedWrite(
        token=record.token,
        published=True,
        chunks=record.chunk_count,
        messages=record.count,
        bytes=record.bytes,
        queue=record.queue,
        staged_at=record.staged_ms,
        expires_at=record.until_ms,
    )
