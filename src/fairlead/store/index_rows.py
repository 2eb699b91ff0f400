"""Rows that lead to messages by time: the ends of waits and lives, and the completions of retained messages.

Reads see the changes of their transaction. At open only the first row of each queue is read.
"""

from __future__ import annotations

from fairlead.model.message import HELD
from fairlead.store.changes import Changes
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.row_keys import numbers_of_three, pack_key, pack_three

#: A time and a number: of a message that waits, or the first one of a chunk.
Timed = tuple[int, int]


def write_indexes(batch: Batch, changes: Changes) -> None:
    for table, changed in (
        (Table.DUE, changes.due),
        (Table.DONE, changes.done),
        (Table.LIVES, changes.lives),
    ):
        for key, is_there in changed.items():
            if is_there:
                batch.put(table, pack_three(*key), b"")
            else:
                batch.delete(table, pack_three(*key))


def read_due(store: KeyValueStore, changes: Changes, home_id: int, after: Timed, limit: int) -> list[Timed]:
    """The waiting messages of a queue after that one: (due time, number), the earliest first."""
    return _read(store, Table.DUE, changes.due, home_id, after, limit)


def read_done(store: KeyValueStore, changes: Changes, home_id: int, after: Timed, limit: int) -> list[Timed]:
    """The retained completed messages of a queue after that one: (time of completion, number)."""
    return _read(store, Table.DONE, changes.done, home_id, after, limit)


def read_lives(store: KeyValueStore, changes: Changes, home_id: int, limit: int) -> list[Timed]:
    """(end of a life, first number of a chunk that has lives with that end), the earliest first."""
    return _read(store, Table.LIVES, changes.lives, home_id, (0, 0), limit)


def read_latest_due(store: KeyValueStore, changes: Changes, home_id: int) -> int | None:
    """The latest due time of messages that wait for a time; None if none does."""
    changed = {
        (due_ms, number): is_there
        for (home, due_ms, number), is_there in changes.due.items()
        if home == home_id and due_ms < HELD
    }
    start, end = pack_key(home_id), pack_key(home_id, HELD)
    rows = store.scan(Table.DUE, start, end, limit=1 + len(changed), reverse=True)
    found = _laid_over([_timed(key) for key, _ in rows], changed)
    return max(found)[0] if found else None


def _read(
    store: KeyValueStore,
    table: Table,
    changes: dict[tuple[int, int, int], bool],
    home_id: int,
    after: Timed,
    limit: int,
) -> list[Timed]:
    changed = {
        (time_ms, number): is_there
        for (home, time_ms, number), is_there in changes.items()
        if home == home_id and (time_ms, number) > after
    }
    start = pack_key(home_id, after[0], after[1] + 1)
    # The transaction may have deleted that many more.
    rows = store.scan(table, start, pack_key(home_id + 1), limit=limit + len(changed))
    if not changed:
        return [_timed(key) for key, _ in rows]
    return sorted(_laid_over([_timed(key) for key, _ in rows], changed))[:limit]


def _laid_over(stored: list[Timed], changed: dict[Timed, bool]) -> list[Timed]:
    """The stored entries with the changes of a transaction applied."""
    entries = dict.fromkeys(stored, True) | changed
    return [entry for entry, is_there in entries.items() if is_there]


def _timed(key: bytes) -> Timed:
    _, time_ms, number = numbers_of_three(key)
    return time_ms, number
