"""What must hold about staged writes: whoever decided to publish can finish, and what was published is known
as long as it must be.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from fairlead.model.message import HELD
from fairlead.model.names import Scoped
from fairlead.model.staging import StagedChunk, unpack_chunk
from fairlead.store.port import Store

_EVERYTHING = 1 << 60


def check_staged(store: Store) -> list[str]:
    """Every broken law, as a sentence. One chunk is in memory at a time."""
    chunks = {(chunk.write, chunk.chunk): chunk for chunk in store.staged_chunks()}
    problems = [
        f"chunk {name!r} of {_show(write)} {what}"
        for (write, name), chunk in chunks.items()
        for what in _body(store, chunk)
    ]
    for record in store.publishing():
        for name, times in Counter(record.chunks).items():
            if (record.write, name) not in chunks:
                problems.append(
                    f"{_show(record.write)} is published, but chunk {name!r} that is still to come is not there"
                )
            elif times > 1:
                problems.append(
                    f"{_show(record.write)} is published, with chunk {name!r} still to come {times} times"
                )
        first = chunks.get((record.write, record.chunks[0])) if record.chunks else None
        if record.offset and (first is None or record.offset >= first.count):
            problems.append(
                f"{_show(record.write)} goes on at message {record.offset} of a chunk that has no such message"
            )
        if store.published(record.write) is not None:
            problems.append(f"{_show(record.write)} is done and still to be done")
    return problems + _remembered(store, {write for write, _ in chunks})


def _body(store: Store, chunk: StagedChunk) -> list[str]:
    packed = store.staged_body(chunk.write, chunk.chunk)
    if packed is None:
        return ["has no messages"]
    try:
        body = unpack_chunk(packed)
    except msgspec.DecodeError as why:
        return [f"does not decode ({why})"]
    size = sum(len(message.payload) + len(message.headers) for message in body.messages)
    told, found = (chunk.count, chunk.bytes, chunk.stored_bytes), (len(body.messages), size, len(packed))
    wrong = [] if told == found else [f"says (messages, bytes, bytes stored) {told}, has {found}"]
    deaths = len(body.deaths)
    if bool(deaths) != chunk.dead or deaths not in (0, 1, len(body.messages)):
        wrong.append(f"has {deaths} reasons why its {len(body.messages)} messages are dead")
    return wrong


def _remembered(store: Store, staged: set[Scoped]) -> list[str]:
    problems = []
    ends = {write: until_ms for until_ms, write in store.published_over(HELD, _EVERYTHING)}
    for record in store.last_published(_EVERYTHING):
        if record.write in staged:
            problems.append(f"{_show(record.write)} is done, and still has staged chunks")
    for write, until_ms in ends.items():
        done = store.published(write)
        if done is None or done.until_ms != until_ms:
            problems.append(
                f"{_show(write)} is to be forgotten at {until_ms}, but is remembered until {done.until_ms if done else 0}"
            )
    return problems


def _show(write: Scoped) -> str:
    return f"write {write.name!r} to {write.queue!r}"
