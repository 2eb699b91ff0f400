"""The commands of Redis Streams, for existing programs. A stream is a queue, and its only group is the
consumers of the queue.

`commands.py` is the table of the commands. `produce.py`, `consume.py`, `claims.py`, `groups.py` and `look.py`
implement the commands as generators: a command yields requests of the table of verbs one after the other,
receives their answers, and returns the reply. `steps.py` names this shape. `session.py` has what a command
needs from its connection and its door. `words.py` parses arguments. `entry_ids.py` and `entries.py` convert
between messages and entries. `pending.py` shows leases as pending entries. `replies.py` has the errors of
Redis, word for word.

Guarantees: every request passes the same layers as other requests. Ids of entries need no state. An entry
that was sent to a consumer is settled by its lease. Must not: know a rule of the queue. Start at
`commands.py`.
"""
