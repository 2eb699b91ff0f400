"""Writing checkpoints. A broker in process writes them anywhere; a server writes them to one directory."""

from __future__ import annotations

from fairlead.broker.core import Core
from fairlead.store.checkpoint_path import checkpoint_target


def checkpoint(core: Core, path: object) -> None:
    target = checkpoint_target(path, core.settings.checkpoint_dir)
    with core.lock:
        core.check_open()
        core.store.checkpoint(target)
