"""`format("fairlead")`: queues as DataFrames and streams, read, written and settled.

Promises: Arrow batches from broker to executor and back, with no Python per payload; what is repeated changes
nothing. Must not: run anybody's steps. Start at `source`.
"""
