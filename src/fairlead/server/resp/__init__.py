"""The door that speaks the Redis protocol, RESP2 and RESP3: `FL.<VERB>` for every verb of the table.

`door.py` has the life of the door, its turns, syncs and threads, `connection.py` one connection; `parser.py` reads
commands, `arguments.py` their plain words, `replies.py` writes answers for people, `commands.py` has what is no verb,
`subscriptions.py` deliveries that are pushed, and `streams/` the commands of Redis Streams.
Answers to our own client are MessagePack (`wire.packed`).

Guarantees: answers of one connection leave in the order of its commands; a durable answer leaves after its sync; what a
stranger sends ends his own connection at most. A waiting claim takes no thread. Deliveries that could not be written
return to their places. Must not: know a rule of the queue. Start at `door.py`.
"""
