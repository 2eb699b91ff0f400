"""The engine: decide, apply, write. The only stateful part.

`broker.py` is what users open: a `Surface` around the engine. `engine.py` has the lock, the transactions and
`do(request)`; `transaction.py` is what a verb works with;
`memory.py` has what the engine knows without reading, and `apply`, with the table of the reducers in `reduce/`;
`queue.py` is a queue in it, `own_states.py` says what a state of a message means, `due_times.py` when something is
due; `cold.py` reads the messages that memory does
not hold, and `demotion.py` chooses those that it need not hold any more, and `known_waits.py` has those that wait where they are few;
`moves.py` is how messages move on;
`walk.py` and `walk_ids.py` meet many messages in bounded steps (`met.py`), `infos.py` shows them, `find_ids.py`
finds one by a part of its id, `blocked_streams.py` finds who holds up a stream, `tally.py` counts what passed,
`measures.py` measures all queues, `closed_throttles.py` closes and opens throttle keys, and `observers.py` has who else is told of commits;
`thinning.py` and `evacuation.py` write chunks anew of which little is left;
`consumers.py` and `consumer_steps.py` know numbered claims and how they end, `claim_reading.py` has what the readers
of one share, `delivery_columns.py` makes deliveries by column, `staged.py` knows staged writes;
`choose.py` finds the messages that a verb is about, `act.py` changes them, `dead_letters.py` brings them back, and
`operations.py` does it in steps that outlive the process; `hooking.py` and `hook_calls.py` ask hooks without the lock;
`fair_lock.py`, `turns.py` and `room.py` bound the time of the lock, a gathered transaction and what is stored;
`waiting.py` has the claims that wait, in threads or as entries of a door; `timer.py` and `store_time.py` know when
something is due, `forks.py` keeps a forked child away; `audit_trail.py` and `key_ring.py` serve the layers around the engine; `sessions.py` remembers
answers and forgets them, and `session_index.py` has what memory knows of them; `streams.py` has the streams of a
queue in memory, `blocks.py`, `growing.py` and `chunk_messages.py` its chunks; `work/` has the work of each verb, and
`short_ways.py` a shorter way for requests about plain messages; `verify.py` checks a directory from outside;
`laws.py`, with `consumer_laws.py`, `staging_laws.py` and `session_laws.py`, states what must hold of an engine at
rest.

Guarantees: a transaction is one atomic write; memory changes only by `Memory.apply(fact)`, live and at open;
if a write fails, or anything but a refusal is raised, nothing of the transaction is written, every request
that joined it gets `Unavailable`, and the touched queues are loaded anew. On a stale epoch the engine steps
down: it answers nothing more. Must not: know a protocol, or a row. Start at `engine.py`.
"""
