"""The reducers: how each fact changes memory, and the rows that the transaction writes. Start at `chunks.py`.

A reducer is a plain function `(memory, fact)`. The table from each type of fact to its reducer is in
`engine/memory.py`, and only `Memory.apply(fact)` uses it.

By the subject of facts: `chunks.py` (chunks begin, grow and are rewritten), `leases.py` (claims, completions
and splits), `moves.py` (messages move or end), `states.py` (single messages are read and restated),
`lives.py` (ends of lives, and dedup keys), `lanes.py` and `streams.py` (reads of them, and the messages in
them), `cooling.py` (hot chunks become cold), `queues.py` (queues are stored and deleted), `throttles.py`
(throttle keys are closed and opened), and `records.py` (everything beside the messages). Shared parts:
`chunk_ends.py` (messages are gone), `stream_members.py` (rows of streams), `hot_room.py` (whether new
messages are hot) and `kept_chunks.py` (cold chunks and payloads in memory).

The engine also calls some functions once the facts of a request or of a transaction are known:
`hold_scattered`, `update_fronts`, `cool_chunks`, `follow_probes`, and, after the write, `let_go` of
`letting_go.py`.

Guarantees: a reducer changes memory in the same way live and at open. It does not decide, refuse, or write to
the store.
"""
