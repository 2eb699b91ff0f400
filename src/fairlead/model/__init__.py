"""Frozen records, ids and enums: what the broker knows, with no behaviour beyond packing and checking
themselves.

Promises: no clock, no I/O, no threads, no logging; imports nothing of fairlead but `errors`.
Must not: decide anything (that is `decide/`) or know how it is stored (that is `store/`).
Start at `message.py`; the facts that a commit is made of are in `records/`.
"""
