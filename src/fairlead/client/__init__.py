"""The Python client: the broker's verbs over the network.

One blocking core with its own threads; the sync face is here, the asyncio face is `fairlead.aio`. Promises that a call
repeated after a lost answer takes effect once, and that a held lease is kept alive while its work goes on. Imports no
engine. Start with `client.py`.
"""
