"""The door for Fila's clients: gRPC `fila.v1`, message for message as their published protocol has it.

Promises that an unmodified client works, that concurrent single calls share commits, that a late settle of a
former holder changes nothing, and that a consumer that stops reading holds up nobody else. Knows no rule of
the queue: what it answers is what the broker said. Start with `door.py`; docs/reference/fila.md says what
differs from Fila.
"""
