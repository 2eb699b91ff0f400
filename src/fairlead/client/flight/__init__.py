"""The Flight part of a client, with pyarrow: requests that transfer the rows of messages, and their answers.

`bulk.py` has the requests, `core.py` one request with all its attempts, `streamed.py` answers of many
batches. `channel.py` and `transport.py` are streams and their deadlines, and `daemon_threads.py` has the threads in
which a stream is opened and the asyncio client waits. Every request may be repeated after a lost answer, so
there are no sessions.

Guarantees: making a `Bulk` waits for nothing; each step of a call ends within `timeout` + `retry_for`; no
thread keeps the process from ending. Requests that are not bulk verbs never come here. Start with `bulk.py`.
"""
