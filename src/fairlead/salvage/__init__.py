"""`fairlead repair`: save what can be read of a damaged data directory into a new one.

Promises: the damaged directory is not written to; the new one gets its name only when it is complete and
`verify` finds it sound; the report lists what is gone. Killed at any moment, a repair leaves the damaged
directory as it was, and no new one. Must not: guess. A row with a wrong checksum is never used.

* `repair.py`: the order of the work. Start here.
* `cut.py`: `cut_unsynced`, for a healthy directory that is refused after a power failure.
* `rebuild.py`, `records.py`: a lawful store out of the rows that are left.
* `unfinished.py`: the directory beside the new one in which all of it happens.
* `report.py`: what was found, saved and lost.

Rows come from `store/rocks/salvage.py`.
"""
