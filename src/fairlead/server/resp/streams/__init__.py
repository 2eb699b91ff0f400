"""The commands of Redis Streams, for programs that exist: a stream is a queue, its one group that queue's consumers.

`commands.py` is the table of the commands. `produce.py`, `consume.py`, `claims.py`, `groups.py` and `look.py` have what
each command asks of the broker: a generator yields requests of the table of verbs, one after the other, gets their
answers, and returns the reply. `steps.py` names that shape, `session.py` has what a command knows of its
connection and its door, `words.py` reads arguments, `entry_ids.py` and `entries.py` turn messages into entries and
back, `pending.py` shows leases as pending entries, `replies.py` has errors as Redis words them.

Guarantees: every request passes the same layers as any other of the table. Ids of entries need no state. An entry that a
consumer was sent is settled by its lease. Must not: know a rule of the queue. Start at `commands.py`.
"""
