"""RocksDB through rocksdict: one database, one column family per kind of row, one write batch per commit.

Promises: what `store/port.py` promises, with the settings of docs/decisions/0003-rocksdb-settings.md. Must
not: decide anything, read a clock, or let bytes, handles and iterators out of this folder. Start at
`store.py`; keys are made in `layout.py`, values in `codec.py`, and `commit.py` turns facts into rows.

Numbers are big-endian, so that keys sort by them; `q` is a queue id in 4 bytes, times and places have 8, ids
16. The first byte of every value is the version of its record.

| family         | key                     | value                                                            |
|----------------|-------------------------|------------------------------------------------------------------|
| `messages`     | id                      | queue, weight, enqueued, place, lane, headers, extras, payload; written once |
| `state`        | id                      | what happened since (msgpack array); absent until the first move |
| `ready`        | q, lane, place          | id, weight, flags, size, stream: the rest of the row             |
| `waiting`      | q, due, id              | weight, flags, size, lane, stream; due 2^63-1 is held            |
| `leases`       | id                      | queue, claim, expiry, deliveries, started, place, weight, flags, size, lane, stream |
| `lease_expiry` | expires, claim          | the claim (msgpack map); one row per group that expires together |
| `done`         | q, done, id             | place (0), weight, flags, size, lane (completed ones that are kept) |
| `ttl`          | q, expires, id          | nothing; q is where the message is now                           |
| `dedup`        | q, dedup key            | id, until (0: as long as the message is live)                    |
| `dedup_end`    | q, until, dedup key     | nothing; one row per window                                      |
| `streams`      | q, stream               | key, live count, first message, front, who is let by (msgpack array) |
| `stream_rows`  | q, stream, seq          | lane and row of a live message behind the first (msgpack array)  |
| `requests`     | request id              | the answer to it, until it has arrived or for twenty minutes      |
| `queues`       | q                       | the queue's record (msgpack map); an unlinked one has no name    |
| `counters`     | q                       | ready, waiting, leased, done, bytes: absolute values             |
| `config`       | configuration key       | its value                                                        |
| `clock`        | `mark`                  | the store's time, wall time and steady time of one moment (msgpack array) |
| `buckets`      | throttle key            | tokens, when, rate, burst: what a token bucket held              |
| `intents`      | intent id (8)           | the intent (msgpack map)                                         |
| `meta`         | a name                  | a number: `boot`, `last_commit`, `last_queue_id`                 |
| `keys`         | key id                  | an API key (msgpack map), with a digest in place of its secret   |
| `audit`        | number (8)              | who did what (msgpack map)                                       |
| `runbooks`     | project                 | the runbook in force                                             |
| `consumers`    | queue, name             | a durable consumer and the claim it has in hand (msgpack map)    |
| `claim_members` | consumer, number, page (8) | ids of a numbered claim, in its order; gone when it is over      |
| `claim_outcomes` | consumer, number, call (8) | part, and what was said about members (msgpack arrays)          |
| `claim_choices` | consumer, number        | the parts whose outcomes count (msgpack array)                   |
| `staged`       | queue, token, chunk     | the checked messages of a chunk (msgpack array)                  |
| `staged_chunks`| queue, token, chunk     | queue, counts, sizes, times of a chunk (msgpack array)           |
| `publishing`   | queue, token            | a published write that is not yet all messages: chunks to come, offset (msgpack array) |
| `published`    | queue, token            | a write that is done (msgpack array)                             |
| `published_end`| until, queue, token     | nothing; when it is forgotten                                    |
"""

from fairlead.store.rocks.store import RocksStore

__all__ = ["RocksStore"]
