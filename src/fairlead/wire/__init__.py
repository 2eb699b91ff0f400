"""The data that travels between a client and a server: record batches over Arrow Flight, MessagePack over the
Redis protocol.

Guarantees: each side decodes to equal values what the other side encodes, and untrusted bytes raise
`InvalidRequest`, never anything else. This folder knows no sockets and no engine. For Flight start with
`schemas.py`, which is the protocol; docs/reference/flight.md describes it. For the Redis protocol start with
`packed.py`. It works without pyarrow, and so do `packed_deliveries.py`, `subscriptions.py`, `error_lines.py`,
`plain.py`, `values.py` and `settlement_rows.py`.
"""
