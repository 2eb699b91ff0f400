"""The engine decides, applies and writes. It is the only stateful part. Start at `engine.py`.

* `broker.py`: the object that users open, a `Surface` around the engine. `engine.py`: the lock, the
  transactions and `do(request)`. `transaction.py`: what a verb works with.
* `memory.py`: everything known without reading, and `apply`, with the table of the reducers in `reduce/`.
  `queue.py`: a queue in memory. `own_states.py`: the meaning of a message's state. `due_times.py`: when
  something is due. `streams.py`: a queue's streams. `blocks.py`, `growing.py`, `chunk_messages.py`: its
  chunks.
* `work/`: the work of each verb. `short_ways.py`: a faster way for requests about plain messages. `moves.py`:
  how messages change state. `choose.py`, `act.py`: select and change messages. `dead_letters.py`: return dead
  letters. `operations.py`: long operations in steps that survive the process.
* `read_ahead.py`, `cold.py`: read messages that memory does not hold. `demotion.py`: choose messages that it
  need not hold any more. `known_waits.py`: waiting messages where they are few. `thinning.py`,
  `evacuation.py`: rewrite chunks of which little is left.
* `walk.py`, `walk_ids.py`: read many messages in bounded steps (`met.py`). `infos.py`: show them.
  `find_ids.py`: find a message by part of its id. `blocked_streams.py`: find the message that blocks a
  stream.
* `consumers.py`, `consumer_steps.py`, `claim_reading.py`: numbered claims. `delivery_columns.py`: deliveries
  by column. `staged.py`: staged writes. `sessions.py`, `session_index.py`: remembered answers.
  `closed_throttles.py`: closed throttle keys.
* `hooking.py`, `hook_calls.py`: call hooks without the lock. `fair_lock.py`, `turns.py`, `room.py`: bound the
  time of the lock, the size of a gathered transaction and the space on disk. `waiting.py`: waiting claims.
  `timer.py`, `store_time.py`: time. `forks.py`: keep a forked child away from the store.
* `tally.py`, `measures.py`, `observers.py`: metrics. `audit_trail.py`, `key_ring.py`: serve the layers around
  the engine. `verify.py`: check a directory from outside. `laws.py`, with `consumer_laws.py`,
  `staging_laws.py` and `session_laws.py`: what must hold of an engine at rest.

Guarantees: a transaction is one atomic write; memory changes only by `Memory.apply(fact)`, live and at open.
If a write fails, or anything but a refusal is raised, nothing of the transaction is written, every request
that joined it gets `Unavailable`, and the touched queues are loaded anew. On a stale epoch the engine steps
down and answers nothing more. It knows no protocol and no row.
"""
