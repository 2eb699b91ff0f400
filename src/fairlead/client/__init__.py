"""The Python client: the verbs of `fairlead.surface` over the network.

One blocking core with its own threads; the blocking client is here, the asyncio client is `fairlead.aio`.
Promises that a call repeated after a lost answer takes effect once, that a held lease is kept alive while its
work goes on, and that no thread of it keeps a process from ending. Imports no engine. Start with
`requests.py` (how each request travels), then `core.py` (one request, and what is done about trouble),
`gather.py` (many calls in one request), `consume.py` and `heartbeat.py`; `bulk.py` has what Spark uses.
"""

try:
    import pyarrow  # noqa: F401  # asked for here, so that whoever lacks it is told what to do, whichever module comes first
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"a client needs {missing.name}; install it with: pip install 'fairlead[client]'", name=missing.name
    ) from None
