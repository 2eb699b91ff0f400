"""A ceiling on the memory that Arrow allocates, set before pyarrow is loaded.

Many large answers at once would take more memory than the server has. Environment variables make Arrow's
allocator, mimalloc, use one reserved part of the address space and ask the system for no more. An allocation
that does not fit fails with `ArrowMemoryError` in the call that needs it, and nowhere else: the store and
gRPC have allocators of their own. The reserve costs no memory until it is used.
"""

from __future__ import annotations

import logging
import os
import sys

_log = logging.getLogger("fairlead.flight")

_BACKEND = "ARROW_DEFAULT_MEMORY_POOL"
_RESERVE, _NO_MORE = "MIMALLOC_RESERVE_OS_MEMORY", "MIMALLOC_DISALLOW_OS_ALLOC"


def limit_arrow_memory(most_bytes: int) -> bool:
    """Set the ceiling, and return whether it holds, which is tested. It cannot be set in a process that has
    used pyarrow before.
    """
    if "pyarrow" not in sys.modules:
        os.environ.update({_BACKEND: "mimalloc", _RESERVE: f"{most_bytes // 1024}KiB", _NO_MORE: "1"})
    import pyarrow as pa

    # Children must not inherit it: the value for a server is wrong for a worker that it may start.
    for name in (_BACKEND, _RESERVE, _NO_MORE):
        os.environ.pop(name, None)
    try:
        pa.allocate_buffer(most_bytes + 1)
    except pa.ArrowMemoryError:
        return True
    _log.warning("the memory of Arrow has no ceiling here: limits.max_arrow_bytes does not hold")
    return False
