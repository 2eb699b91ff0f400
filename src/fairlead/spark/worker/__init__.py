"""A runbook's worker on Spark: the driver claims and closes, each task runs the local worker's own Crew on
its slice of the claim.

Promises: all that must outlive a process is in the broker. Must not: know how steps are run, which is
`fairlead.worker`'s. Start at `run_worker`, then `loop`, then `run_slice`.
"""
