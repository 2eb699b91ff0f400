"""Strangers at the doors: bytes, calls, arguments and signals that nobody should send, at real servers.

Each must end in a typed error or a closed connection, store nothing, and leave the server as it was. The
random part is `python -m tests.hostile --seconds 60`, which prints its seed; what it finds is kept as a case
in one of the tests.
"""
