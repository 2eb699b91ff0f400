"""What a server process does about Python's garbage collector, whose runs stop every thread.

The engine frees nearly everything by counting references, so the collector finds little; but each of its full runs
looks at every list, dictionary and plain object there is. The library leaves the collector alone, because it belongs
to the program around it; a server process is nothing else than its broker.
"""

from __future__ import annotations

import gc

#: Objects more than before, so that the youngest are looked at: Python's own number, 700, is a few messages.
_YOUNG_OBJECTS = 10_000


def spare_what_is_there() -> None:
    """Call this once the data directory is open and everything is loaded: full runs pass over all objects of now, which
    stay for as long as the process, or are freed by their counts. What is garbage already goes first, because
    the collector would never find it again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
