"""Settings of Python's garbage collector in a server process, because its runs stop every thread.

The engine frees nearly everything by reference counts, so the collector finds little; but each of its full
runs visits every list, dictionary and plain object. The library leaves the collector alone, because it
belongs to the surrounding program; a server process runs only its broker.
"""

from __future__ import annotations

import gc

#: New objects before the youngest generation is collected: Python's default, 700, is a few messages.
_YOUNG_OBJECTS = 10_000


def spare_what_is_there() -> None:
    """Call this once the data directory is open and everything is loaded: full runs then skip all current
    objects, which stay as long as the process, or are freed by their reference counts. Garbage is
    collected first, because the collector would never find it afterwards.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
