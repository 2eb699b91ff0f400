"""What a worker has done so far."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class WorkerCounts:
    """`failed` counts attempts that will be retried, `dead` those that made a dead letter."""

    completed: int = 0
    failed: int = 0
    dead: int = 0
    #: Messages returned without an outcome: not begun, or in doubt when the worker stopped.
    released: int = 0
    #: Leases that expired or were taken away before the work ended.
    lost: int = 0
    #: Calls of steps that succeeded; a batch counts its rows.
    steps: int = 0
    #: Step processes that died and were replaced.
    restarts: int = 0

    def __add__(self, other: WorkerCounts) -> WorkerCounts:
        names = [field.name for field in fields(self)]
        return WorkerCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})
