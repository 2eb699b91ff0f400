"""The clients of the Redis protocol, on hiredis and msgspec alone: no pyarrow, no engine, no thread of their own but the
heartbeat's.

`commands.py` makes commands and reads answers, `attempts.py` decides what follows a failure, `prefetch.py` keeps what a
loop was sent ahead, `session.py` numbers requests: all four without I/O, for both clients. `connection.py` has one
socket, `shared.py` lets threads share one, `connections.py` has all of a client; `client.py` and `consume.py` are what
users see. The asyncio forms are `async_connection.py`, `async_client.py` and `async_consume.py`. `bulk.py` says where
bulk verbs are.

Promises: threads, or tasks, that call at the same time share a connection and their commands go out together; a call
that may wait, or takes long, uses a connection of its own; every call ends within `timeout` + `retry_for` (+ `wait`);
after a lost answer a request is sent again if that is safe, or has a number in a session, under which it takes effect
once. Start with `client.py`.
"""
