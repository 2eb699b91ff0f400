"""Tools for testing programs that use fairlead, used by our own tests as well.

Promises: no test needs to sleep to make time pass. Must not: be imported by the engine.
Start at `ManualClock`, then `MemoryStore`; `run_server` for tests against a server process.
"""

from fairlead.store.memory import MemoryStore
from fairlead.testing.manual_clock import ManualClock
from fairlead.testing.server import ServerDidNotStart, ServerProcess, run_server

__all__ = ["ManualClock", "MemoryStore", "ServerDidNotStart", "ServerProcess", "run_server"]
