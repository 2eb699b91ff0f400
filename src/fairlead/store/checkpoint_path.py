"""Where a checkpoint may be written: a broker in process writes anywhere, a server into one directory."""

from __future__ import annotations

from pathlib import Path

from fairlead.errors import InvalidRequest


def checkpoint_target(path: object, directory: str) -> Path:
    """`path` itself; or, if a directory is set, a place in it: a name, or an absolute path within the
    directory.

    Links are resolved before the comparison, so that none leads out of the directory.
    """
    if not isinstance(path, (str, Path)):
        raise InvalidRequest("path", "a path that does not exist yet", path)
    if not directory:
        return Path(path)
    try:
        base = Path(directory).resolve()
        target = (base / path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise InvalidRequest("path", f"a path in {directory}", str(path)) from None
    if base not in target.parents:
        raise InvalidRequest(
            "path",
            f"a name, or an absolute path in {base}, where this server keeps checkpoints (store.checkpoint_dir)",
            str(path),
        )
    return target
