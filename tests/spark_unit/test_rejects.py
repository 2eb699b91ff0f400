from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from fairlead.errors import InvalidRequest
from fairlead.spark.data_source.columns import describe_rows
from fairlead.spark.data_source.rejects import RejectsFile, RejectsFolder, check_folder

SCHEMA = StructType([StructField("payload", BinaryType()), StructField("fairness_key", StringType())])


def rows(*keys: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"payload": [b"x"] * len(keys), "fairness_key": list(keys)})


def stage(folder: Path, token: str, name: str, *keys: str) -> str:
    file = RejectsFile(str(folder), token, name, SCHEMA)
    file.add(rows(*keys), ["too much"] * len(keys))
    return file.close()


def kept(folder: Path) -> list[str]:
    """The rows that a reader of Parquet finds in the folder."""
    return (
        sorted(pq.read_table(folder).column("fairness_key").to_pylist())
        if [*folder.glob("token=*/*.parquet")]
        else []
    )


def test_refused_rows_are_seen_once_the_write_is_kept_with_their_columns_and_why(tmp_path: Path) -> None:
    names = [stage(tmp_path, "query/7", "one", "a", "b"), stage(tmp_path, "query/7", "two", "c")]
    assert kept(tmp_path) == []
    folder = RejectsFolder(str(tmp_path), "query/7")
    folder.check(names)
    folder.keep(names)
    table = pq.read_table(tmp_path)
    assert sorted(table.to_pylist(), key=lambda row: row["fairness_key"]) == [
        {"payload": b"x", "fairness_key": key, "error": "too much", "token": "query/7"} for key in "abc"
    ]
    assert not [*(tmp_path / "_staged").iterdir()]


def test_a_second_commit_of_a_token_keeps_the_rows_of_the_first(tmp_path: Path) -> None:
    RejectsFolder(str(tmp_path), "t").keep([stage(tmp_path, "t", "one", "a")])
    RejectsFolder(str(tmp_path), "t").keep([stage(tmp_path, "t", "other", "b")])
    assert kept(tmp_path) == ["a"]
    assert not [*(tmp_path / "_staged").iterdir()]


def test_a_commit_that_was_cut_short_is_done_again_whole(tmp_path: Path) -> None:
    name = stage(tmp_path, "t", "one", "a")
    (tmp_path / "token=t").mkdir()
    (tmp_path / "_staged" / "t" / name).rename(tmp_path / "token=t" / name)
    RejectsFolder(str(tmp_path), "t").keep(
        [stage(tmp_path, "t", "again-1", "a"), stage(tmp_path, "t", "again-2", "b")]
    )
    assert kept(tmp_path) == ["a", "b"]


def test_files_of_attempts_that_do_not_count_are_dropped(tmp_path: Path) -> None:
    stage(tmp_path, "t", "lost", "x")
    RejectsFolder(str(tmp_path), "t").keep([stage(tmp_path, "t", "won", "a")])
    assert kept(tmp_path) == ["a"]
    stage(tmp_path, "u", "lost", "x")
    RejectsFolder(str(tmp_path), "u").drop()
    RejectsFolder(str(tmp_path), "u").drop()
    assert not [*(tmp_path / "_staged").iterdir()]


def test_a_task_that_refuses_nothing_leaves_no_file(tmp_path: Path) -> None:
    assert RejectsFile(str(tmp_path), "t", "one", SCHEMA).close() == ""
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_the_driver_does_not_share_is_noticed_before_anything_is_published(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"a folder that driver and executors share; .*one\.parquet cannot be seen from the driver",
    ):
        RejectsFolder(str(tmp_path), "t").check(["one.parquet"])


@pytest.mark.parametrize("folder", ["rejects", "./rejects", "nosuch://bucket/rejects"])
def test_a_folder_that_is_not_the_same_place_everywhere_is_refused(folder: str) -> None:
    with pytest.raises(InvalidRequest, match="option rejects"):
        check_folder(folder)


def test_a_uri_is_as_good_as_a_path(tmp_path: Path) -> None:
    RejectsFolder(f"file://{tmp_path}", "t").keep([stage(tmp_path, "t", "one", "a")])
    assert kept(tmp_path) == ["a"]


def test_rows_are_shown_by_their_keys_and_never_by_payload_or_header_values() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([b"secret", None, b"", b"x"]),
            pa.array([[("auth", "secret")], None, [], []], pa.map_(pa.string(), pa.string())),
            pa.array(["k" * 100, "b", None, "d"]),
        ],
        names=["payload", "headers", "fairness_key"],
    )
    assert describe_rows(batch, ["one", "two", "three", "four"]) == [
        f"payload of 6 bytes, headers auth, fairness_key='{'k' * 56}...: one",
        "no payload, fairness_key='b': two",
        "payload of 0 bytes: three",
    ]
    text = pa.RecordBatch.from_pydict({"payload": ["secret"]})
    assert describe_rows(text, ["why"]) == ["payload of text: why"]
