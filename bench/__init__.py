"""How fast the engine is, beside the bare cost of the same bytes in RocksDB. `python -m bench`, or `make
bench`.

What lives here: `lifecycle.py` (enqueue, claim, complete in step, and a backlog drained), `backlog.py` (large
backlogs in fresh processes), `many_keys.py` (backlogs over many random keys, beside other checkouts),
`hooks.py` and `streams.py` (each beside the same without), `doors/` (through a server, beside the engine in
process, Redis Streams and NATS JetStream), `census.py` (what noticing damage costs), `bare.py` (RocksDB
alone), `compare.py` (two checkouts in turns: has a change made it slower?), `turns.py` (checkouts in turn, in
processes that stay open), `door_turns.py` (the same at the RESP door, without sockets), `cases.py` (the
engine by case),
`parked.py` (an active tenant beside messages that nobody takes), `holds.py` (how long the lock is held),
`churn.py` (how much disk few messages take), `walk.py` (calls and files per verb), `hot.py` (where the time
goes), `report.py` (table, JSON, docs/benchmarks.md).

Promises: ratios are taken within one round and given as medians of interleaved rounds with their spread;
absolute figures stand beside the machine and commit they were measured on. Must not: assert anything; no test
reads a clock here. Start at `__main__.py`.
"""
