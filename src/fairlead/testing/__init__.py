"""Tools for testing programs that use fairlead, used by our own tests as well.

Promises: no test needs to sleep to make time pass. Must not: be imported by the engine.
Start at `ManualClock`, then `MemoryStore`.
"""

from fairlead.store.memory import MemoryStore
from fairlead.testing.manual_clock import ManualClock

__all__ = ["ManualClock", "MemoryStore"]
