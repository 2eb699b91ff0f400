"""The doors of a broker, and the process around them: RESP (the Redis protocol), Arrow Flight, gRPC for
Fila's clients, HTTP for health and metrics.

A door turns bytes into requests and answers into bytes; the layers of `fairlead.middleware` and the verbs do
everything else, so no rule of the queue is here. `turn.py` carries out arrived requests as one transaction,
and `subscriptions.py` pushes messages. `event_loop.py` has the one loop of the asyncio doors; `http.py` has
the pages of the HTTP door and `http_connections.py` its connections. `collector.py` configures Python's
garbage collector. Guarantees: a stop loses no confirmed work, and a bad connection harms no other. Start at
`serve.py`.
"""
