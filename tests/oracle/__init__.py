"""The scheduler of the first engine, kept as it was: an oracle for the order in which another one delivers.

What lives here: deficit round robin between keys (`drr.py`), what it holds in memory (`lanes.py`), lanes that
wait for tokens (`parking.py`), token buckets (`throttle.py`), packed lanes and rows (`rows.py`), and a queue
made of them that knows messages by their ids (`fair_queue.py`). Promises: imports nothing of the engine, so
it stays when the engine is replaced. Must not: be changed along with the engine; where the order is to change,
delete the comparison that no longer holds. Start at `FairQueue`; the comparison with a broker is
`tests/property/test_the_order_of_delivery.py`.
"""
