"""What travels between a client and a server: over Arrow Flight as record batches, over the Redis protocol as
MessagePack.

Promises that what one side encodes the other decodes to equal values, and that bytes from a stranger give
`InvalidRequest`, never anything else. Knows no sockets and no engine. For Flight start with `schemas.py`, which is the
protocol; docs/reference/flight.md describes it. For the Redis protocol start with `packed.py`, which, like
`packed_deliveries.py`, `subscriptions.py`, `error_lines.py`, `plain.py`, `values.py` and `settlement_rows.py`, works
without pyarrow.
"""
