"""fairlead: a durable work queue that takes failure seriously.

`fairlead.open("./data")` gives a `Broker` in this process, with no server, like SQLite does for tables.
"""

from __future__ import annotations

from pathlib import Path

from fairlead import errors
from fairlead.broker.broker import Broker, Durability
from fairlead.clock import Clock
from fairlead.config import HookSettings, Settings
from fairlead.decide.dead_filter import DeadFilter
from fairlead.decide.policy_lint import PolicyLint, lint_policy
from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason, FailureRecord, Progress
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, DeliveryRef, Extend, Fail, Release, SettleResult, Start
from fairlead.store.rocks.store import RocksStore
from fairlead.store.verify import VerifyReport, verify

__version__ = "0.1.0"

__all__ = [
    "Broker",
    "Complete",
    "DeadFilter",
    "Delivery",
    "DeliveryRef",
    "Extend",
    "Fail",
    "FailureReason",
    "FailureRecord",
    "HookSettings",
    "NewMessage",
    "PolicyLint",
    "Progress",
    "Release",
    "Settings",
    "SettleResult",
    "Start",
    "VerifyReport",
    "errors",
    "lint_policy",
    "open",
    "verify",
]


def open(path: str | Path, *, durability: Durability = "fsync", clock: Clock | None = None, settings: Settings | None = None) -> Broker:
    """Open a data directory, making it if there is none. One process at a time: a second one gets `StoreLocked`."""
    chosen = settings or Settings()
    store = RocksStore.open(Path(path), disk_reserve_bytes=chosen.disk_reserve_bytes, cache_bytes=chosen.block_cache_bytes)
    try:
        return Broker(store, clock=clock, durability=durability, settings=chosen)
    except BaseException:
        store.close()
        raise
