"""Invariants of staged writes: a decided publication can finish, nothing staged is incomplete or left over,
and a published write is remembered long enough.
"""

from __future__ import annotations

from fairlead.decide.staging import OWN_TOKENS
from fairlead.engine.memory import Memory
from fairlead.engine.staged import StagedIndex
from fairlead.records.chunk import page_starts
from fairlead.store.kv.port import KeyValueStore
from fairlead.store.rows import count_staged_pages, read_parts, read_published, write_key


def staging_differences(memory: Memory, again: Memory) -> list[str]:
    """Differences from `again`, which is the memory that a reopening would build."""
    if _shown(memory.staged) == _shown(again.staged):
        return []
    return ["staged writes differ after a reopening"]


def _shown(staged: StagedIndex) -> tuple[object, ...]:
    return staged.writes, staged.publishing, staged.stored_bytes, staged.chunk_count


def broken_staging_laws(memory: Memory, store: KeyValueStore) -> list[str]:
    staged, parts, broken = memory.staged, read_parts(store), []
    published, ends = read_published(store)
    for write, chunks in staged.writes.items():
        record = staged.publishing.get(write)
        if write_key(write) in published and record is None:
            broken.append(f"write {write} is done, and still has staged chunks")
        for name, chunk in chunks.items():
            if chunk.count != sum(count for _, count in chunk.parts):
                broken.append(
                    f"chunk {name!r} of write {write} does not have the {chunk.count} messages it counts"
                )
            skipped = record.offset if record is not None and record.chunks[:1] == (name,) else 0
            for number, count in chunk.parts:
                skipped -= count
                if skipped >= 0:
                    continue  # It is published.
                part = parts.pop((chunk.queue_id, number), None)
                if part is None or part.count != count:
                    broken.append(f"chunk {name!r} of write {write} lacks messages")
                    continue
                if bool(part.deaths) != chunk.dead or len(part.deaths) not in (0, 1, count):
                    broken.append(f"chunk {name!r} of write {write} has {len(part.deaths)} deaths")
                if part.inline is None and chunk.queue_id in memory.by_id:
                    pages = count_staged_pages(store, chunk.queue_id, number)
                    wanted = len(page_starts(part.sizes))
                    # A crash may have interrupted a part of the broker's own; it is never published then.
                    is_cut = write.name.startswith(OWN_TOKENS) and record is None and pages < wanted
                    if pages != wanted and not is_cut:
                        broken.append(f"chunk {name!r} of write {write} has {pages} pages")
    broken += [f"staged part {where} belongs to nothing" for where in parts]
    for write, record in staged.publishing.items():
        missing = set(record.chunks) - staged.chunks_of(write).keys()
        if missing:
            broken.append(f"write {write} is published, and chunks {missing} are not there")
        if len(set(record.chunks)) < len(record.chunks):
            broken.append(f"write {write} is published, and a chunk is still to come twice")
        first = staged.chunks_of(write).get(record.chunks[0]) if record.chunks else None
        if record.offset and (first is None or record.offset >= first.count):
            broken.append(f"write {write} goes on at message {record.offset} of a chunk without that message")
        if write_key(write) in published:
            broken.append(f"write {write} is done, and still to be done")
    if {key: done.until_ms for key, done in published.items()} != ends:
        broken.append("published writes are not forgotten when they should be")
    return broken
