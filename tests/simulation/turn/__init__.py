"""The door that speaks Redis, simulated from one seed: a server on a disk that forgets what is not synced, and ten
clients with sessions, some with subscriptions, on connections that break. Half of the servers ask for API keys, which are
revoked now and then.

What lives here: the machine that a server runs on, without a thread or a socket (`machine.py`), connections (`links.py`),
clients that repeat what was not answered (`clients.py`), the outside account of what must hold (`account.py`), and a life
that draws what happens next (`life.py`). Promises: nothing but the seed decides what happens. Must not: look inside the
server to judge it. Start at `life.py`; `python -m tests.simulation.turn --seeds 10000`.
"""
