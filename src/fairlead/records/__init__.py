"""The values of the engine: what a transaction is made of, and what is stored.

`ids` (numbers and message ids), `chunk` (a batch of messages as stored), `lease` (the members of a claim),
`state` (a message that something happened to, and the counts of a queue), `stream` (messages in order),
`consumer`, `staging` and `session` (what is stored of numbered claims, staged writes and sessions), `facts` (the changes that a
transaction makes). Guarantees: frozen values, or live objects that `Memory.apply` alone changes. Must not:
read a clock, do I/O, start threads. Start at `facts.py`.
"""
