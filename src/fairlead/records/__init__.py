"""The values of the engine: the parts of a transaction, and the stored records.

`ids` has numbers and message ids, `chunk` a batch of messages as stored, `lease` the members of a claim,
`state` a message that changed alone and the counts of a queue, `stream` messages in order, `consumer`,
`staging` and `session` the stored records of numbered claims, staged writes and sessions, and `facts` the
changes that a transaction makes. Guarantees: values are frozen, or live objects that only `Memory.apply`
changes. Does not read a clock, do I/O or start threads. Start at `facts.py`.
"""
