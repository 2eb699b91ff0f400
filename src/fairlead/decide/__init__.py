"""The rules: state and time in, decision out.

What lives here: deficit round robin and lanes (`drr.py`), token buckets (`throttle.py`), what follows a failure
(`retry.py`), the lifecycle table (`lifecycle.py`), which dead letters a filter selects (`dead_filter.py`).
Promises: same arguments, same answer; no clock reads, no I/O, no threads, no logging.
Must not: import anything but `model` and `errors`.
Start at `lifecycle.py`.
"""
