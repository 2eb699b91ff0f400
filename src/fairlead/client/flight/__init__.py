"""What a client does by Arrow Flight, with pyarrow: requests that carry the rows of messages, and their answers.

`bulk.py` has the requests, `core.py` one request with all its attempts, `streamed.py` answers of many batches;
`channel.py` and `transport.py` are streams and their deadlines, `crew.py` the threads in which a stream is opened and
the asyncio client waits. Everything here may be repeated after a lost answer, so there are no sessions.

Promises: making a `Bulk` waits for nothing; each step of a call ends within `timeout` + `retry_for`; no thread keeps the
process from ending. Plain calls never come here. Start with `bulk.py`.
"""
