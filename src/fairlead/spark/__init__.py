"""fairlead on Apache Spark: a session, and the data source `format("fairlead")`.

Promises: Arrow batches from broker to executor and back, with no Python per payload. Must not: be needed by anything else
in fairlead, or bring the engine to an executor. Start at `session`, then `source`.
"""
