"""What must hold about staged writes: whoever decided to publish can finish, and what was published is known as long as it must be."""

from __future__ import annotations

from collections import Counter

import msgspec

from fairlead.model.message import HELD
from fairlead.model.staging import StagedChunk, unpack_chunk
from fairlead.store.port import Store

_EVERYTHING = 1 << 60


def check_staged(store: Store) -> list[str]:
    """Every broken law, as a sentence. One chunk is in memory at a time."""
    chunks = {(chunk.token, chunk.chunk): chunk for chunk in store.staged_chunks()}
    problems = [f"chunk {name!r} of write {token!r} {what}" for (token, name), chunk in chunks.items() for what in _body(store, chunk)]
    for record in store.publishing():
        for name, times in Counter(record.chunks).items():
            if (record.token, name) not in chunks:
                problems.append(f"write {record.token!r} is published, but chunk {name!r} that is still to come is not there")
            elif times > 1:
                problems.append(f"write {record.token!r} is published, with chunk {name!r} still to come {times} times")
        first = chunks.get((record.token, record.chunks[0])) if record.chunks else None
        if record.offset and (first is None or record.offset >= first.count):
            problems.append(f"write {record.token!r} goes on at message {record.offset} of a chunk that has no such message")
        if store.published(record.token) is not None:
            problems.append(f"write {record.token!r} is done and still to be done")
    return problems + _remembered(store, {token for token, _ in chunks})


def _body(store: Store, chunk: StagedChunk) -> list[str]:
    packed = store.staged_body(chunk.token, chunk.chunk)
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


def _remembered(store: Store, staged: set[str]) -> list[str]:
    problems = []
    ends = {token: until_ms for until_ms, token in store.published_over(HELD, _EVERYTHING)}
    for record in store.last_published(_EVERYTHING):
        if record.token in staged:
            problems.append(f"write {record.token!r} is done, and still has staged chunks")
    for token, until_ms in ends.items():
        done = store.published(token)
        if done is None or done.until_ms != until_ms:
            problems.append(f"write {token!r} is to be forgotten at {until_ms}, but is remembered until {done.until_ms if done else 0}")
    return problems
