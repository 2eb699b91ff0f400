"""Runbook workers on Spark: the driver claims and closes, and each task runs the local worker's loop on its
slice of the claim.

Driver: `run_worker` (the public function), `loop` (claim, job, close), `worker_consumer` (its durable
consumer), `claim_size`, `slice_jobs` (Spark jobs), `ship` (the runbook's folder). Task: `run_slice` (counts
of one slice), `slice_worker` (the worker loop of the process), `slice_handler` (its requests), `slice_queue`
(messages and outcomes).

Guarantee: everything that must outlive a process is in the broker. This folder must not know how steps run;
that belongs to `fairlead.worker`. Start at `run_worker`, then `loop`, then `run_slice`.
"""
