"""`fairlead.spark.quarantine`: bad rows of anybody's job become dead letters, and come back when they are
redriven.

Promises: good rows pass without Python touching a value; a bad row is never lost. Must not: need a queue's
rows as input. Start at `quarantining`.
"""
