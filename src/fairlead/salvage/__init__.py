"""`fairlead repair`: copy everything readable from a damaged data directory into a new one.

Guarantees: the damaged directory is never written to; the new directory gets its name only after it is
complete and `verify` finds it sound; the report lists what is lost. A repair that is killed at any moment
leaves the damaged directory unchanged, and no new directory. It never guesses: a row with a wrong checksum is
not used.

* `repair.py`: the order of the work. Start here.
* `cut.py`: `cut_unsynced`, for a healthy directory that is refused after a power failure.
* `rebuild.py`, `records.py`: build a valid store from the remaining rows.
* `unfinished.py`: the working directory beside the new one.
* `report.py`: what was found, saved and lost.

Rows come from `store/rocks/salvage.py`.
"""
