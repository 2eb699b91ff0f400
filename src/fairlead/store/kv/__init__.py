"""An ordered key-value store with named tables: the port that every row of the engine goes through.

| module              | contents                                                                             |
|---------------------|--------------------------------------------------------------------------------------|
| `port.py`           | the contract: `Table`, `Batch`, `KeyValueStore`                                      |
| `fence.py`          | the rule of epochs and commit numbers, shared by the backends                        |
| `dictionary.py`     | a backend in memory, for tests and for queues that need not last                     |
| `rocks.py`          | a backend on RocksDB: open, acquire, write, sync, checkpoint, close, full disks      |
| `rocks_database.py` | a database that can be opened again under its readers: tables, cursors, reads        |
| `empty_ranges.py`   | ranges without rows, so that a scan does not walk over deleted rows again            |
| `rocks_options.py`  | settings of the column families, one per table                                       |
| `rocks_space.py`    | the disk reserve: refusals before the disk is full, flushes, compactions that fit    |
| `rocks_files.py`    | files beside the database: format, lock, census, read-only copies, names of damage   |

Guarantees: the docstrings of `port.py`; `tests/conformance/kv` checks them for every backend.
Must not: know what a row means, know the engine's time, or import the engine. Only `rocks*.py` may import
rocksdict; no object of rocksdict leaves them.
Start at `port.py`. To add a table, add a line to `Table`; to add a backend, write a class with the methods of
`KeyValueStore` and add it to the fixtures of the conformance suite.
"""
