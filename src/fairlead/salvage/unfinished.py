"""A directory that gets its name when it is complete, or never: for `repair` and `restore`."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import InvalidRequest
from fairlead.store.modes import DIRECTORY_MODE, open_private
from fairlead.store.rocks.format import sync_directory

_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class UnfinishedDirectory:
    """The directory `target`, made in a directory beside it.

    `verb` is what is being done, `repair` or `restore`; `argument` names the target in errors.
    """

    target: Path
    verb: str
    argument: str

    @contextmanager
    def work_directory(self) -> Iterator[Path]:
        """An empty directory beside the target, for this process alone. It is removed at the end.

        Contents that a killed process left behind are removed first. Raises `InvalidRequest` when another
        process uses the directory.
        """
        directory = self.target.with_name(f".{self.target.name}.fairlead-{self.verb}")
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._lock(handle, directory)
            for left_over in directory.iterdir():
                shutil.rmtree(left_over) if left_over.is_dir() else left_over.unlink()
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(handle)

    def finish(self, made: Path) -> None:
        """Rename the complete directory to the target, which may be an empty directory. Synced."""
        try:
            os.rename(made, self.target)
        except OSError as trouble:
            raise InvalidRequest(
                self.argument,
                f"a directory that stays empty during the {self.verb}",
                f"{self.target} ({trouble.strerror})",
            ) from trouble
        sync_directory(self.target.parent)

    def _lock(self, handle: int, directory: Path) -> None:
        """The lock ends with the process, so that the next one can take over what a killed process left."""
        busy = InvalidRequest(
            self.argument, f"a directory that no other {self.verb} is writing", str(self.target)
        )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise busy from None
        if not directory.is_dir() or not os.path.samestat(os.fstat(handle), os.stat(directory)):
            raise busy


def copy_file(source: Path, target: Path, size: int, copied: Callable[[int], None]) -> None:
    """Copy the first `size` bytes of a file, and sync the copy."""
    with open(source, "rb") as reading, open(target, "xb", opener=open_private) as writing:
        while size and (chunk := reading.read(min(_CHUNK, size))):
            writing.write(chunk)
            size -= len(chunk)
            copied(len(chunk))
        writing.flush()
        os.fsync(writing.fileno())
