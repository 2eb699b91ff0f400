"""A secret in a file that only its owner can read. The file is complete, or does not exist."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from types import TracebackType


class SecretFile:
    """The file is created beside its place when the block begins, so that a problem with the place shows
    before the secret exists.

    `write` gives it its name. An existing file is replaced or, with `exclusive`, refused with
    FileExistsError.
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        self.path = path
        self._exclusive = exclusive
        self._beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")

    def __enter__(self) -> SecretFile:
        if self._exclusive and os.path.lexists(self.path):
            raise FileExistsError(17, "there is such a file already", str(self.path))
        self._handle = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._handle)
        self._beside.unlink(missing_ok=True)

    def write(self, secret: str) -> None:
        os.write(self._handle, f"{secret}\n".encode())
        os.fsync(self._handle)
        if self._exclusive:
            os.link(self._beside, self.path)
        else:
            os.replace(self._beside, self.path)
        _sync(self.path.parent)


def _sync(directory: Path) -> None:
    """Without it a power cut could undo the renaming."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
