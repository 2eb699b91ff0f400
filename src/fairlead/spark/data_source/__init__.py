"""`format("fairlead")`: read, write and settle queues as DataFrames and streams.

`source` chooses a reader or writer. Reads: `batch_read`, `stream_read`, `rows` (record batches of Spark's
schema), `schema`. Writes: `write`, `write_columns`, `rejects` (refused rows as files), `settle`,
`settle_columns`. Shared: `columns` (checks of columns), `chunks` (rows of one request), `task` (what Spark
tells a task).

Guarantees: Arrow batches travel between broker and executor without Python code per payload; a repeated read,
write or commit has no second effect. This folder must not run steps. Start at `source`.
"""
