"""Send the runbook's folder to the executors: modules and commands of its steps are files in it.

A local master has the folder already. Elsewhere the folder travels as an archive that Spark unpacks on each
executor. The archive has the code of steps only: large files, hidden files and files made by tools are left
out, and packages belong in the executors' environment.
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

MAX_FILES = 5_000
MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_BYTES = 64 * 1024 * 1024
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
    """The name of the archive's folder on executors; "" if they have `folder` itself.

    Raises `InvalidRequest` for a folder with more than `MAX_FILES` files or `MAX_BYTES` bytes.
    """
    master = str(spark.conf.get("spark.master", ""))
    if local_cores(master) is not None and not master.startswith("local-cluster"):
        return ""
    from pyspark import SparkFiles

    files = list(_files(folder))
    name = f"fairlead-steps-{_digest(folder, files)}"
    # Executors fetch the archive from here, also those that join later. Spark clears this folder when its
    # context ends.
    archives = Path(SparkFiles.getRootDirectory()) / "fairlead"
    archives.mkdir(exist_ok=True)
    archive = archives / f"{name}.tar.gz"
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
    """The files to send, in a fixed order. Links to files are followed; links to folders are not, because
    they may form a circle.
    """
    count = size = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_folder_left_out(Path(parent) / name))
        for name in sorted(names):
            file = Path(parent) / name
            if _is_file_left_out(file):
                continue
            count, size = count + 1, size + file.stat().st_size
            if count > MAX_FILES or size > MAX_BYTES:
                raise InvalidRequest(
                    "the folder of the runbook",
                    f"at most {MAX_FILES} files and {MAX_BYTES // 1024 // 1024} MiB, because it is sent to every executor; "
                    "give the runbook and its steps a folder of their own",
                    str(folder),
                )
            yield file


def _is_folder_left_out(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _LEFT_OUT or (folder / "pyvenv.cfg").exists()


def _is_file_left_out(file: Path) -> bool:
    if file.name.startswith(".") or file.suffix == ".pyc":
        return True
    return not file.is_file() or file.stat().st_size > MAX_FILE_BYTES


def _digest(folder: Path, files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:16]
