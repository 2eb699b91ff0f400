"""Tools for testing programs that use fairlead, used by our own tests as well.

What lives here: a clock that a test moves (`manual_clock.py`), brokers without a disk and questions about
their inside (`engine.py`), data that can be watched, restarted and made to fail (`storage.py`), what a broker
is about to write (`steps.py`), the sizes of its steps and pages (`sizes.py`), server processes (`server.py`),
certificates (`authority.py`), a key-value store that fails at a chosen step and counts its reads
(`faulty.py`). Promises: no test needs to sleep to make time
pass, and none outside `tests/unit` and `tests/conformance` imports the engine. Must not: be imported by the
engine. Start at `ManualClock`, then `open_in_memory`; `run_server` for tests against a server process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fairlead.testing.manual_clock import ManualClock
from fairlead.testing.server import ServerDidNotStart, ServerProcess, run_server

if TYPE_CHECKING:
    from fairlead.testing.engine import Durability, laws, open_in_memory, run_due
    from fairlead.testing.steps import Step, stop_before
    from fairlead.testing.storage import Storage
else:
    # Loaded when it is asked for: who only starts a server or moves a clock does not wait for the engine.
    _MODULE_OF = {
        "Durability": "engine",
        "Step": "steps",
        "Storage": "storage",
        "laws": "engine",
        "open_in_memory": "engine",
        "run_due": "engine",
        "stop_before": "steps",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'fairlead.testing' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"fairlead.testing.{_MODULE_OF[name]}"), name)
        return value


__all__ = [
    "Durability",
    "ManualClock",
    "ServerDidNotStart",
    "ServerProcess",
    "Step",
    "Storage",
    "laws",
    "open_in_memory",
    "run_due",
    "run_server",
    "stop_before",
]
