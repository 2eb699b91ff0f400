"""Frozen values, ids and enumerations that users and all layers share. Their only behaviour is packing and
checking themselves.

Guarantees: no clock, no I/O, no threads, no logging; imports nothing of fairlead but `errors`. Does not
decide anything (that is `decide/`) and does not know how it is stored (that is `store/`). Start at
`message.py`. The facts of a transaction are in `records/`.
"""
