"""The doors of a broker: Arrow Flight, gRPC for Fila's clients, HTTP for health and metrics; and the process
around them.

A door translates and delegates: no rule of the queue lives here, and what a door answers is what the engine
said. Promises that a stop loses no confirmed work and that one bad connection harms no other. Start with
`serve.py`.
"""
