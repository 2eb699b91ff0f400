"""Writes to a key-value store until it is killed: a program of its own.

    python -m tests.conformance.kv.writing DIRECTORY ROWS_IN_A_WRITE

Each write puts rows into several tables, deletes those of the write before, and prints its commit number
after it returned.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.store.kv.port import Batch, Table
from fairlead.store.kv.rocks import RocksKeyValueStore

TABLES = (Table.CHUNKS, Table.PAGES, Table.OWN)


def row_key(commit: int, row: int) -> bytes:
    return commit.to_bytes(8, "big") + row.to_bytes(4, "big")


def main(path: Path, rows: int) -> None:
    store = RocksKeyValueStore.open(path)
    commit, epoch = store.last_commit, store.acquire()
    while True:
        commit += 1
        batch = Batch()
        batch.put(Table.META, b"commit", str(commit).encode())
        for table in TABLES:
            batch.delete_range(table, row_key(commit - 1, 0), row_key(commit, 0))
            for row in range(rows):
                batch.put(table, row_key(commit, row), bytes(500))
        store.write(batch, epoch, commit)
        print(commit, flush=True)
        if commit % 50 == 0:
            store.sync()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
