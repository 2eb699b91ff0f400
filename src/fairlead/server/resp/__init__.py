"""The door that speaks the Redis protocol, RESP2 and RESP3. Every verb is a command, `FL.<VERB>`.

`door.py` has the life cycle of the door, its turns, syncs and threads. `connection.py` handles one
connection, `parser.py` parses commands, `arguments.py` turns their plain words into requests, and
`replies.py` formats answers for people. `commands.py` has the commands that are not verbs, `subscriptions.py`
pushes deliveries, and `streams/` has the commands of Redis Streams. The fairlead client gets answers in
MessagePack (`wire.packed`).

Guarantees: the answers of a connection are sent in the order of its commands. A durable answer is sent after
its sync. Malformed input closes at most the connection that sent it. A waiting claim takes no thread.
Deliveries that could not be sent return to their places. Must not: know a rule of the queue. Start at
`door.py`.
"""
