"""What a worker has done so far."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass
class WorkerCounts:
    """`failed` counts tries that will be repeated, `dead` those after which the message is a dead letter."""

    completed: int = 0
    failed: int = 0
    dead: int = 0
    #: Given back unworked, or in doubt when the worker stopped.
    released: int = 0
    #: Leases that were over before the work was.
    lost: int = 0
    #: Calls of steps that ended well.
    steps: int = 0
    #: Step processes that died and were replaced.
    restarts: int = 0

    def __add__(self, other: WorkerCounts) -> WorkerCounts:
        return WorkerCounts(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )
