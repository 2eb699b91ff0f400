"""Rows of streams with messages that memory need not hold, by stream and seq. Reads see the changes of their
transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from fairlead.records.state import MemberRow
from fairlead.store.changes import Changes
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.row_keys import pack_key

_encode = msgspec.msgpack.Encoder().encode
_decode_member = msgspec.msgpack.Decoder(MemberRow).decode

#: A seq, and whether the row is about one message: the end of the key of a row.
_SEQ_BYTES = 9
_LAST_SEQ = b"\xff" * _SEQ_BYTES
_END_OF_NAME = b"\0\0"
_PAGE_ROWS = 1000


class StreamMembers(NamedTuple):
    """A row, by the seq of its first message."""

    place: int
    row: MemberRow


def member_key(home_id: int, stream: str, seq: int, is_single: bool) -> bytes:
    return _prefix(home_id, stream) + pack_key(seq) + bytes((is_single,))


def _prefix(home_id: int, stream: str) -> bytes:
    # Rows sort by name, and no name with its end is a prefix of another one.
    return pack_key(home_id) + stream.encode().replace(b"\0", b"\0\1") + _END_OF_NAME


def _stream_in(key: bytes) -> str:
    return key[8 : -_SEQ_BYTES - len(_END_OF_NAME)].replace(b"\0\1", b"\0").decode()


def write_members(batch: Batch, changes: Changes) -> None:
    for (home_id, stream), rows in changes.members.items():
        for (seq, is_single), row in rows.items():
            key = member_key(home_id, stream, seq, is_single)
            if row is None:
                batch.delete(Table.MEMBERS, key)
            else:
                batch.put(Table.MEMBERS, key, _encode(row))


def read_members(
    store: KeyValueStore, changes: Changes, home_id: int, stream: str, start: int, *, limit: int
) -> list[StreamMembers]:
    """The first rows of a stream from a seq on, in order."""
    changed = changes.members.get((home_id, stream))
    prefix = _prefix(home_id, stream)
    most = limit + len(changed) if changed else limit
    rows = store.scan(Table.MEMBERS, prefix + pack_key(start), prefix + _LAST_SEQ, limit=most)
    if not changed:
        return [
            StreamMembers(int.from_bytes(key[-_SEQ_BYTES:-1], "big"), _decode_member(raw))
            for key, raw in rows
        ]
    found: dict[tuple[int, bool], MemberRow | None] = {
        (int.from_bytes(key[-_SEQ_BYTES:-1], "big"), bool(key[-1])): _decode_member(raw) for key, raw in rows
    }
    found.update({at: row for at, row in changed.items() if at[0] >= start})
    left = [(at, row) for at, row in found.items() if row is not None]
    return [StreamMembers(seq, row) for (seq, _), row in sorted(left, key=lambda one: one[0])[:limit]]


def has_members(store: KeyValueStore, home_id: int) -> bool:
    """Whether a stream of the queue has rows."""
    return bool(store.scan(Table.MEMBERS, pack_key(home_id), pack_key(home_id + 1), limit=1))


def read_streams_of_several(store: KeyValueStore, home_id: int, start: str) -> Iterator[list[str]]:
    """Streams with rows of several messages, from a name on and in the order of names, page by page; a page
    may be empty.
    """
    place, name, messages = _prefix(home_id, start), "", 0
    while rows := store.scan(Table.MEMBERS, place, pack_key(home_id + 1), limit=_PAGE_ROWS):
        found: list[str] = []
        for key, raw in rows:
            of_row = _stream_in(key)
            if of_row != name:
                name, messages = of_row, 0
            count = _decode_member(raw).count or 1
            if messages < 2 <= messages + count:
                found.append(name)
            messages += count
        yield found
        place = rows[-1][0] + b"\0"
