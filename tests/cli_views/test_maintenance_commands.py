from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead import errors
from fairlead.cli.lock_holder import find_holder, name_holder
from fairlead.cli.restoring import restore
from tests.cli_views.conftest import Run

#: Restores, and stops for good when it comes to a given moment.
_CHILD = """
import sys, time
from pathlib import Path
from fairlead.cli.restoring import restore

backup, into, moment = sys.argv[1:]

def stop(now):
    if now == moment:
        print("there", flush=True)
        time.sleep(600)

restore(Path(backup), Path(into), began=lambda what, size: stop(what), copied=lambda size: stop("a piece was copied"))
"""

MOMENTS = ("checking the backup", "copying", "a piece was copied", "checking the copy")


def nothing(*_: object) -> None:
    pass


@pytest.fixture
def backup(run: Run, data: Path, place: Path) -> Path:
    run("--data", data, "backup", place / "backup")
    return place / "backup"


@pytest.fixture
def holder(data: Path) -> Iterator[int]:
    """Another process that has the directory open."""
    code = "import fairlead, sys; broker = fairlead.open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        yield child.pid
        child.communicate("")


def contents(path: Path) -> list[object]:
    with fairlead.open(path, durability="os") as broker:
        found: list[object] = [broker.config.list()]
        for queue in ("emails", "emails.dlq", "orders"):
            found += [
                message
                for where in ("ready", "waiting", "leased")
                for message in broker.peek(queue, where=where, limit=100)
            ]
        return found


def beside(into: Path) -> list[str]:
    return sorted(entry.name for entry in into.parent.iterdir() if entry.name not in ("data", "backup"))


def test_a_backup_restores_to_the_same_content(run: Run, data: Path, backup: Path, place: Path) -> None:
    said = run("restore", backup, "--data", place / "new").stdout
    assert "restored 42 messages in 4 queues, 2 leases" in said
    assert contents(place / "new") == contents(data)
    assert beside(place / "new") == ["new"]


def test_an_empty_directory_may_be_restored_to(run: Run, backup: Path, place: Path) -> None:
    (place / "new").mkdir()
    found = json.loads(run("restore", backup, "--data", place / "new", "-o", "json").stdout)
    assert (found["data"], found["messages"], found["queues"], found["leases"]) == (
        str(place / "new"),
        42,
        4,
        2,
    )
    assert fairlead.verify(place / "new").ok


def test_a_directory_with_anything_in_it_is_not_restored_to(run: Run, backup: Path, place: Path) -> None:
    (place / "new").mkdir()
    (place / "new" / "mine").write_text("keep")
    assert "empty directory" in run("restore", backup, "--data", place / "new", code=3).stderr
    assert [entry.name for entry in (place / "new").iterdir()] == ["mine"]
    assert beside(place / "new") == ["new"]


def test_restore_needs_a_directory_and_not_a_server(run: Run, backup: Path) -> None:
    assert "--data DIR" in run("restore", backup, "--addr", "127.0.0.1:1", code=2).stderr


def test_what_is_no_backup_is_refused(run: Run, place: Path) -> None:
    (place / "other").mkdir()
    run("restore", place / "other", "--data", place / "new", code=3)
    run("restore", place / "absent", "--data", place / "new", code=3)
    assert beside(place / "new") == ["other"]


def damage(directory: Path) -> None:
    file = max(directory.glob("*.sst"), key=lambda file: file.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    file.write_bytes(raw)


def test_a_damaged_backup_is_refused_before_anything_is_made(run: Run, backup: Path, place: Path) -> None:
    damage(backup)
    assert "corrupt" in run("restore", backup, "--data", place / "new", code=10).stderr
    assert beside(place / "new") == []


def test_a_copy_that_came_out_damaged_does_not_get_the_name(backup: Path, place: Path) -> None:
    def began(what: str, size: int) -> None:
        if what == "checking the copy":
            damage(place / ".new.fairlead-restore")

    with pytest.raises(errors.StoreCorrupt):
        restore(backup, place / "new", began=began, copied=nothing)
    assert beside(place / "new") == []


def test_an_interrupted_restore_clears_up(backup: Path, place: Path) -> None:
    def interrupt(size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(backup, place / "new", began=nothing, copied=interrupt)
    assert beside(place / "new") == []


def test_a_directory_that_is_filled_meanwhile_is_left_alone(backup: Path, place: Path) -> None:
    def began(what: str, size: int) -> None:
        if what == "checking the copy":
            (place / "new").mkdir()
            (place / "new" / "mine").write_text("keep")

    with pytest.raises(errors.InvalidRequest):
        restore(backup, place / "new", began=began, copied=nothing)
    assert [entry.name for entry in (place / "new").iterdir()] == ["mine"]
    assert beside(place / "new") == ["new"]


def test_the_bytes_told_of_are_the_bytes_copied(backup: Path, place: Path) -> None:
    told: list[tuple[str, int]] = []
    pieces: list[int] = []
    restore(backup, place / "new", began=lambda what, size: told.append((what, size)), copied=pieces.append)
    size = sum(file.stat().st_size for file in (place / "new").iterdir())
    assert told == [("checking the backup", 0), ("copying", size), ("checking the copy", 0)]
    assert sum(pieces) == size > 0


@pytest.fixture
def stuck_at(backup: Path, place: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    children = []

    def start(moment: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(backup), str(place / "new"), moment],
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_restore_that_is_killed_leaves_no_data_directory_and_can_be_repeated(
    moment: str,
    stuck_at: Callable[[str], subprocess.Popen[str]],
    run: Run,
    data: Path,
    backup: Path,
    place: Path,
) -> None:
    child = stuck_at(moment)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (place / "new").exists()
    assert beside(place / "new") == ([] if moment == MOMENTS[0] else [".new.fairlead-restore"])
    run("restore", backup, "--data", place / "new")
    assert contents(place / "new") == contents(data)
    assert beside(place / "new") == ["new"]


def test_two_restores_to_one_place_do_not_mix(
    stuck_at: Callable[[str], subprocess.Popen[str]], run: Run, backup: Path, place: Path
) -> None:
    stuck_at("a piece was copied")
    assert "no other restore" in run("restore", backup, "--data", place / "new", code=3).stderr
    assert beside(place / "new") == [".new.fairlead-restore"]


def test_a_directory_that_is_open_elsewhere_is_neither_restored_from_nor_verified(
    run: Run, data: Path, place: Path, holder: int
) -> None:
    for command in (("restore", data, "--data", place / "new"), ("verify", data)):
        complaint = run(*command, code=7).stderr
        assert f"process {holder}" in complaint
    assert beside(place / "new") == []


def test_the_holder_of_a_directory_is_found_by_its_lock(data: Path, holder: int) -> None:
    assert find_holder(data) == holder
    assert name_holder(holder).startswith(f"process {holder} (python")
    assert "fairlead.open" in name_holder(holder)


def test_a_holder_that_is_gone_or_hidden_is_still_called_something() -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    assert name_holder(gone.pid) == f"process {gone.pid}"
    assert name_holder(0) == "another process"


def test_a_directory_that_nobody_has_open_has_no_holder(data: Path, place: Path) -> None:
    assert find_holder(data) is None
    assert find_holder(place / "absent") is None


def test_looking_for_a_holder_does_not_take_the_lock_from_a_broker_in_this_process(data: Path) -> None:
    with fairlead.open(data, durability="os"):
        assert find_holder(data) == os.getpid()
        opened = subprocess.run(
            [sys.executable, "-c", f"import fairlead; fairlead.open({str(data)!r})"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "StoreLocked" in opened.stderr


def test_a_backup_never_overwrites(run: Run, data: Path, backup: Path) -> None:
    run("--data", data, "backup", backup, code=3)
    assert fairlead.verify(backup).ok


def test_a_backup_of_a_directory_that_a_server_has_open_points_to_the_server(
    run: Run, data: Path, place: Path, holder: int
) -> None:
    assert "--addr" in run("--data", data, "backup", place / "copy", code=7).stderr


def test_a_backup_by_a_server_needs_an_absolute_path(run: Run) -> None:
    complaint = run("--addr", "127.0.0.1:1", "backup", "copy", code=2).stderr
    assert "absolute path" in complaint
    assert "127.0.0.1:1" in complaint


def test_a_backup_here_may_have_a_relative_path(
    run: Run, data: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    assert json.loads(run("--data", data, "backup", "copy", "-o", "json").stdout) == {
        "backup": "copy",
        "where": "here",
    }
    assert fairlead.verify(place / "copy").ok


def test_verify_tells_what_is_there(run: Run, backup: Path) -> None:
    assert run("verify", backup).stdout == f"ok {backup}: 42 messages in 4 queues, 2 leases, no problems\n"
    assert json.loads(run("verify", "--data", backup, "-o", "json").stdout) == {
        "directory": str(backup),
        "ok": True,
        "problems": [],
        "messages": 42,
        "queues": 4,
        "leases": 2,
    }


def test_verify_tells_every_problem_and_fails(run: Run, backup: Path) -> None:
    damage(backup)
    found = json.loads(run("verify", backup, "-o", "json", code=10).stdout)
    assert (found["ok"], len(found["problems"])) == (False, len(fairlead.verify(backup).problems))
    first, *problems = run("verify", backup, code=10).stdout.splitlines()
    assert first.startswith(f"bad {backup}: {len(problems)} problem")
    assert all(".sst is corrupt" in problem for problem in problems)


def test_verify_needs_to_be_told_where(run: Run, place: Path) -> None:
    assert "expected a directory, such as: fairlead verify DIR" in run("verify", code=2).stderr
    assert "expected path to be a data directory" in run("verify", place / "absent", code=3).stderr
