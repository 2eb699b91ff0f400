"""The doors of a broker: Arrow Flight, gRPC for Fila's clients, HTTP for health and metrics; and the process
around them.

A door turns bytes into requests and answers into bytes; the layers of `fairlead.middleware` and the verbs do
the rest, so no rule of the queue lives here. `turn.py` carries out what arrived as one transaction, and
`subscriptions.py` what is to be sent without being asked for. `event_loop.py` has the one loop of the doors that speak through
asyncio; `http.py` has the pages of the HTTP door and `http_connections.py` its connections. `collector.py` keeps
Python's garbage collector away from what the process opened with. Promises that a stop loses no confirmed work
and that one bad connection harms no other. Start with `serve.py`.
"""
