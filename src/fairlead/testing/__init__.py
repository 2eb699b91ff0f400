"""Tools for testing programs that use fairlead; our own tests use them too.

`manual_clock.py` has a clock that a test moves, `engine.py` brokers without a disk and questions about their
inside, `storage.py` data that a test can watch, restart and make fail, `steps.py` and `changes.py` what a
broker is about to write, `between.py` code that runs between two steps, `sizes.py` the sizes of steps and
pages, `server.py` server processes, `authority.py` certificates, `faulty.py` a key-value store that fails at
a chosen step and counts its reads, `stored.py` counts of stored records, and `verbs.py` replaced verbs.

Guarantees: no test needs to sleep to make time pass, and no test outside `tests/unit` and `tests/conformance`
imports the engine. The engine must not import this folder. Start at `ManualClock`, then `open_in_memory`;
`run_server` is for tests against a server process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from fairlead.testing.manual_clock import ManualClock
from fairlead.testing.server import ServerDidNotStart, ServerProcess, run_server

if TYPE_CHECKING:
    from fairlead.testing.engine import Durability, laws, open_in_memory, run_due
    from fairlead.testing.steps import CommitStep, stop_before
    from fairlead.testing.storage import Storage
else:
    # Loaded on access: a test that only starts a server or moves a clock does not wait for the engine.
    _MODULE_OF = {
        "Durability": "engine",
        "CommitStep": "steps",
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
    "CommitStep",
    "Durability",
    "ManualClock",
    "ServerDidNotStart",
    "ServerProcess",
    "Storage",
    "laws",
    "open_in_memory",
    "run_due",
    "run_server",
    "stop_before",
]
