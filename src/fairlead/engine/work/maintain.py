"""Maintenance of the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.engine.transaction import StepsTable
from fairlead.request import Caller
from fairlead.store.checkpoint_path import checkpoint_target
from fairlead.verbs.maintain import Checkpoint

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


def checkpoint(engine: Engine, request: Checkpoint, _: Caller) -> None:
    """A copy of everything that was written before the call, whatever transaction this thread has open."""
    target = checkpoint_target(request.path, engine.settings.checkpoint_dir)
    # Under the lock, because a store accepts no write from another thread meanwhile.
    with engine.transaction():
        engine.store.checkpoint(target)


WORK_IN_STEPS: StepsTable = {
    Checkpoint: checkpoint,
}
