"""Remembers rows and answers questions about them; never decides.

`rows.py` is the one row layout: what a transaction changed becomes rows, and rows become facts. `row_keys.py` packs their
keys; `cold_rows.py`, `stream_rows.py` and `index_rows.py` read and write the rows of messages that memory need not hold,
of streams and of what time brings; `changes.py` notes what a transaction changed; `row_check.py` and
`stored_messages.py` serve verification and repair. `boot_id.py` names the boot of the machine,
`modes.py` says who else may read a directory, `checkpoint_path.py` where a checkpoint may be written.
`kv/` is the ordered key-value store with its port and backends, and `rocks/` has what it needs to know of RocksDB's
files.

Guarantees: one transaction is one atomic write; the suite in tests/conformance/kv holds for every backend. Must not:
read a clock, know a rule of queues, or hand out objects of RocksDB. Start at `rows.py`, then `kv/port.py`.
"""
