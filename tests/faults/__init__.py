"""Real `fairlead serve` processes and real client processes, killed, paused, cut off and restarted under each
other's hands.

What lives here: `roles.py` (what a client process does), `processes.py` (how a test holds one), `proxy.py` (a
network that goes away without a word), `rounds.py` (a server killed again and again, and the account settled
with the crash tests' ledger). Promises: a failing round prints its seed and the command that replays it;
nothing here asserts how long something takes. Must not: look inside a server or a client to judge it. Start
at `test_server_killed.py`, then the other tests, a fault each.
"""
