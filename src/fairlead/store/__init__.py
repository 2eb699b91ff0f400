"""Remembers facts and answers questions; never decides.

What lives here: the port (`port.py`), an in-memory store for tests (`memory.py`), RocksDB (`rocks/`), the
laws that hold in any of them (`laws.py`), and the check of a directory from outside (`verify.py`). Beside
them, for the engine that will replace today's: an ordered key-value store with its own port and backends
(`kv/`). Promises: one commit is one atomic write; the conformance suite holds for every store. Must not: read
a clock, know a queue rule, or hand out bytes, column families or iterators of its engine. Start at `port.py`;
the key layout of RocksDB is the table in `rocks/__init__.py`.
"""
