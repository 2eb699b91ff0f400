"""Stores rows and reads them; it never decides. Start at `rows.py`, then `kv/port.py`.

`rows.py` is the one row layout: the changes of a transaction become rows, and rows become facts.
`row_keys.py` packs their keys; `cold_rows.py`, `stream_rows.py` and `index_rows.py` read and write the rows
of messages that memory need not hold, of streams, and of due times; `changes.py` records what a transaction
changed; `row_check.py` and `stored_messages.py` serve verification and repair. `boot_id.py` identifies the
boot of the machine, `modes.py` checks who else may read a directory, and `checkpoint_path.py` where a
checkpoint may be written. `kv/` is the ordered key-value store with its port and backends; `rocks/` handles
RocksDB's files.

Guarantees: one transaction is one atomic write; the suite in tests/conformance/kv holds for every backend. It
reads no clock, knows no rule of queues, and returns no objects of RocksDB.
"""
