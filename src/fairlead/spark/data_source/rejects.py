"""Refused rows as Parquet files in the folder of the option `rejects`.

Each task writes its refused rows to a file in `_staged/`, which readers of Parquet ignore. After the other
rows are published, the driver moves the files of the committed attempts to `token=.../`. A second commit of
the same token finds `_SUCCESS` there and changes nothing, so a replay duplicates no row.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql.types import StringType, StructType

from fairlead.errors import InvalidRequest

#: The column with the reason of the refusal, beside the columns of the row.
ERROR = "error"
_DONE = "_SUCCESS"
#: Where Spark looks for types that Parquet does not have, such as intervals.
_SPARK_TYPES = b"org.apache.spark.sql.parquet.row.metadata"


def check_folder(folder: str) -> None:
    """Raises `InvalidRequest` for a relative path, which differs between processes, or an unknown file
    system.
    """
    _open(folder)


class RejectsFile:
    """The refused rows of one attempt of a task. The first row creates the file."""

    def __init__(self, folder: str, token: str, name: str, schema: StructType) -> None:
        self._folder = folder
        self._token = token
        self._name = f"{name}.parquet"
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.RecordBatch, errors: Sequence[str]) -> None:
        with_errors = rows.append_column(ERROR, pa.array(errors, pa.utf8()))
        if self._writer is None:
            files, root = _open(self._folder)
            place = posixpath.join(root, _staged(self._token))
            files.create_dir(place, recursive=True)
            types = StructType([*self._schema.fields]).add(ERROR, StringType())
            self._writer = pq.ParquetWriter(
                posixpath.join(place, self._name),
                with_errors.schema.with_metadata({_SPARK_TYPES: types.json()}),
                filesystem=files,
            )
        self._writer.write_batch(with_errors)

    def close(self) -> str:
        """Return the name of the file; "" if no row was refused."""
        if self._writer is None:
            return ""
        self._writer.close()
        return self._name


class RejectsFolder:
    """The files of one write, for the driver."""

    def __init__(self, folder: str, token: str) -> None:
        self._folder = folder
        self._files, root = _open(folder)
        self._from = posixpath.join(root, _staged(token))
        self._to = posixpath.join(root, f"token={quote(token, safe='')}")

    def check(self, names: Sequence[str]) -> None:
        """Check, before anything is published, that the driver can read the files of the executors."""
        paths = [posixpath.join(self._from, name) for name in names]
        missing = (
            [found.path for found in self._files.get_file_info(paths) if found.type != fs.FileType.File]
            if paths
            else []
        )
        if missing:
            shared = f"a folder that driver and executors share; {missing[0]} cannot be seen from the driver"
            raise InvalidRequest("option rejects", shared, self._folder)

    def keep(self, names: Sequence[str]) -> None:
        if names and not self._is_done():
            # A commit that was interrupted may have moved some files; it had the same rows.
            self._files.create_dir(self._to, recursive=True)
            self._files.delete_dir_contents(self._to)
            for name in names:
                self._files.move(posixpath.join(self._from, name), posixpath.join(self._to, name))
            with self._files.open_output_stream(posixpath.join(self._to, _DONE)):
                pass
        self.drop()

    def drop(self) -> None:
        """Delete all staged files of this write, also those of attempts that were not committed."""
        self._files.delete_dir_contents(self._from, missing_dir_ok=True)
        if self._files.get_file_info(self._from).type == fs.FileType.Directory:
            self._files.delete_dir(self._from)

    def _is_done(self) -> bool:
        return bool(self._files.get_file_info(posixpath.join(self._to, _DONE)).type == fs.FileType.File)


def _staged(token: str) -> str:
    return posixpath.join("_staged", quote(token, safe=""))


def _open(folder: str) -> tuple[fs.FileSystem, str]:
    """`/shared/rejects`, or a URI of a file system that Arrow knows, such as s3://bucket/rejects."""
    if not folder.startswith("/") and ":/" not in folder:
        raise InvalidRequest(
            "option rejects",
            "an absolute path or a URI, because each process has its own working directory",
            folder,
        )
    try:
        files, root = fs.FileSystem.from_uri(folder)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidRequest(
            "option rejects", f"a folder on a file system that Arrow knows ({error})", folder
        ) from None
    return files, root
