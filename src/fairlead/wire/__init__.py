"""What travels between a client and a server over Arrow Flight: schemas, and the two ways through each.

Promises that what one side encodes the other decodes to equal values, and that bytes from a stranger give
`InvalidRequest`, never anything else. Knows no sockets and no engine. Start with `schemas.py`, which is the
protocol; docs/reference/flight.md says it in words.
"""
