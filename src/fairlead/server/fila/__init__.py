"""The door for clients of Fila: gRPC `fila.v1`, with the messages of Fila's published protocol.

Guarantees: an unmodified client works; concurrent single calls share commits; a late settle by a former
holder changes nothing; a consumer that stops reading blocks no other caller. Must not: know a rule of the
queue. The door returns the answers of the broker. Start at `door.py`. docs/reference/fila.md lists the
differences from Fila.
"""
