"""The doors beside the engine in process and beside other brokers, all in one run. `python -m bench --only
doors`, a part of it with `--doors lifecycle,latency`.

What lives here: `contender.py` (what each must be able to do), `engine.py`, `resp.py`, `flight.py`, `redis_streams.py`,
`jetstream.py` (one contender each), `servers.py` (a server process with its own port and directory),
`measure.py` (interleaved rounds), `waiting.py` (connections that do nothing), `neighbours.py` (other work on the machine),
`report.py` (tables and aims), `profile.py`, `profiler.py` and `profiled.py` (where client and server spend their time),
`large.py` and `held.py` (single enqueues beside messages of 16 MiB, by themselves: `python -m bench.doors.large`). Promises: everyone
gets the same bodies, batches and durability, and the way of working that its makers advise; whoever is not
installed is named in the tables. Servers listen on loopback and are stopped by their own process id. Must
not: assert anything, or leave a server behind. Start at `measure.py`.
"""
