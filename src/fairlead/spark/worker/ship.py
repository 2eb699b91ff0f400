"""The runbook's folder on its way to the executors: its steps are modules and commands that live beside it.

A local master has the folder already. Anywhere else it travels as an archive that Spark unpacks on each
executor, small as the code of steps is: what is large, hidden or made by tools stays here, and packages
belong in the executors' environment.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.errors import InvalidRequest
from fairlead.spark.runtime.spark_session import local_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_FILES = 5_000
MOST_FILE_BYTES = 8 * 1024 * 1024
MOST_BYTES = 64 * 1024 * 1024
_LEFT_OUT = frozenset(
    {
        "__pycache__",
        "venv",
        "env",
        "node_modules",
        "site-packages",
        "build",
        "dist",
        "spark-warehouse",
        "artifacts",
    }
)


def ship(spark: SparkSession, folder: Path) -> str:
    """The name of the archive's folder on executors; "" where the folder itself is there.

    Raises `InvalidRequest` for a folder that is more than the code of some steps.
    """
    master = str(spark.conf.get("spark.master", ""))
    if local_cores(master) is not None and not master.startswith("local-cluster"):
        return ""
    from pyspark import SparkFiles

    files = list(_files(folder))
    name = f"fairlead-steps-{_digest(folder, files)}"
    # Executors fetch it from where it lies, those that come late too. Spark clears this folder when its
    # context ends.
    room = Path(SparkFiles.getRootDirectory()) / "fairlead"
    room.mkdir(exist_ok=True)
    archive = room / f"{name}.tar.gz"
    if not archive.exists():
        pack(folder, files, archive.with_suffix(".part"))
        archive.with_suffix(".part").rename(archive)
        spark.sparkContext.addArchive(f"{archive}#{name}")
    return name


def pack(folder: Path, files: list[Path], archive: Path) -> None:
    with tarfile.open(archive, "w:gz", dereference=True) as packed:
        for file in files:
            packed.add(file, file.relative_to(folder), recursive=False)


def _files(folder: Path) -> Iterator[Path]:
    """In a fixed order. Links are followed to files and not to folders, which may lead in a circle."""
    count = size = 0
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if not _is_left_out(Path(where) / one))
        for name in sorted(names):
            file = Path(where) / name
            if (
                name.startswith(".")
                or name.endswith(".pyc")
                or not file.is_file()
                or file.stat().st_size > MOST_FILE_BYTES
            ):
                continue
            count, size = count + 1, size + file.stat().st_size
            if count > MOST_FILES or size > MOST_BYTES:
                limits = f"at most {MOST_FILES} files and {MOST_BYTES // 1024 // 1024} MiB, because it is sent to every executor"
                raise InvalidRequest(
                    "the folder of the runbook",
                    f"{limits}; give the runbook and its steps a folder of their own",
                    str(folder),
                )
            yield file


def _is_left_out(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _LEFT_OUT or (folder / "pyvenv.cfg").exists()


def _digest(folder: Path, files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:16]
