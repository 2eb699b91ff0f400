"""The files of a runbook's folder that are sent to executors."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import InvalidRequest
from fairlead.spark.worker import ship
from fairlead.spark.worker.run_worker import retry_tasks


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def shipped(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in ship._files(folder)]


def test_steps_travel_and_what_tools_have_made_stays(tmp_path: Path) -> None:
    make(tmp_path, "runbook.toml", "steps.py", "lib/parse.py", "bin/mail.sh")
    make(
        tmp_path,
        ".git/config",
        ".env",
        ".venv/x.py",
        "lib/__pycache__/parse.pyc",
        "node_modules/a.js",
        "own/pyvenv.cfg",
        "own/lib.py",
    )
    assert shipped(tmp_path) == ["runbook.toml", "steps.py", "bin/mail.sh", "lib/parse.py"]


def test_what_is_large_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "steps.py", "orders.parquet")
    monkeypatch.setattr(ship, "MAX_FILE_BYTES", 10)
    assert shipped(tmp_path) == ["steps.py"]


@pytest.mark.parametrize(("limit", "most"), [("MAX_FILES", 2), ("MAX_BYTES", 20)])
def test_a_folder_that_is_more_than_steps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    make(tmp_path, "a_step.py", "b_step.py", "c_step.py")
    monkeypatch.setattr(ship, limit, most)
    with pytest.raises(InvalidRequest, match="a folder of their own"):
        shipped(tmp_path)


def test_an_archive_has_files_with_their_modes_and_what_links_lead_to(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "project", tmp_path / "shared.py"
    make(folder, "bin/mail.sh")
    (folder / "bin/mail.sh").chmod(0o755)
    elsewhere.write_text("shared")
    (folder / "shared.py").symlink_to(elsewhere)
    ship.pack(folder, list(ship._files(folder)), tmp_path / "it.tar.gz")
    with tarfile.open(tmp_path / "it.tar.gz") as packed:
        packed.extractall(tmp_path / "there", filter="data")
    assert (tmp_path / "there/shared.py").read_text() == "shared"
    assert (tmp_path / "there/bin/mail.sh").stat().st_mode & 0o100


class _Master:
    """A session that has only a master."""

    def __init__(self, master: str) -> None:
        self.conf = {"spark.master": master}


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2]", "local[2,4]"])
def test_a_local_master_has_the_folder_already(tmp_path: Path, master: str) -> None:
    spark: Any = _Master(master)
    assert ship.ship(spark, tmp_path) == ""


def test_the_same_files_have_the_same_name_and_others_another(tmp_path: Path) -> None:
    make(tmp_path, "steps.py")
    first = ship._digest(tmp_path, list(ship._files(tmp_path)))
    assert first == ship._digest(tmp_path, list(ship._files(tmp_path)))
    (tmp_path / "steps.py").write_text("otherwise")
    assert first != ship._digest(tmp_path, list(ship._files(tmp_path)))


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://a:7077", "spark://a:7077"),
    ],
)
def test_a_task_that_crashes_on_a_local_master_is_tried_again_as_on_a_cluster(given: str, used: str) -> None:
    assert retry_tasks(given) == used
