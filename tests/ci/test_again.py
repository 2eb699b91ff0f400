"""Tests that failed beside others are run again alone, and only noise is forgiven."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

ALWAYS = "def test_always_fails():\n    assert False\n"
SOUND = "def test_is_sound():\n    pass\n"


def fails_until(runs: int, counter: Path) -> str:
    """A test that passes once it has been run so often."""
    return f"""
from pathlib import Path

def test_fails_at_first():
    counter = Path({str(counter)!r})
    runs = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(runs + 1))
    assert runs >= {runs}
"""


class Project:
    """A folder of tests that are run as `make test` runs ours."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counter = root / "counter"
        self.note = root / "note"
        (root / "pytest.ini").write_text("[pytest]\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def run(self, *options: str) -> int:
        command = ("-m", "pytest", "-q", "-p", "tests.ci.last_run", *options)
        return self._python(*command).returncode

    def again(self) -> subprocess.CompletedProcess[str]:
        return self._python("-m", "tests.ci.again", "--root", str(self.root), "--note", str(self.note))

    def unstable(self) -> list[str]:
        return self.note.read_text().splitlines() if self.note.exists() else []

    def times_run(self) -> int:
        return int(self.counter.read_text())

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=environment, capture_output=True, text=True
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["in one process", "side by side"])
def test_one_that_passes_three_times_alone_is_named_as_unstable(
    project: Project, options: tuple[str, ...]
) -> None:
    project.write("test_noisy.py", fails_until(1, project.counter) + SOUND)
    assert project.run(*options) == 1
    again = project.again()
    assert again.returncode == 0, again.stdout
    assert project.unstable() == ["test_noisy.py::test_fails_at_first"]
    assert project.times_run() == 4


def test_one_that_always_fails_has_failed(project: Project) -> None:
    project.write("test_wrong.py", ALWAYS)
    assert project.run() == 1
    again = project.again()
    assert again.returncode == 1
    assert "fails alone, too: test_wrong.py::test_always_fails" in again.stderr
    assert project.unstable() == []


def test_one_that_fails_in_the_third_repetition_has_failed(project: Project) -> None:
    script = fails_until(1, project.counter).replace("runs >= 1", "runs in (1, 2)")
    project.write("test_rare.py", script)
    assert project.run() == 1
    assert project.again().returncode == 1
    assert project.times_run() == 4


def test_more_than_three_failures_are_not_tried_again(project: Project) -> None:
    project.write("test_noisy.py", fails_until(1, project.counter))
    project.write("test_wrong.py", "\n".join(ALWAYS.replace("always", name) for name in ("a", "b", "c")))
    assert project.run() == 1
    again = project.again()
    assert again.returncode == 1
    assert "4 tests failed" in again.stderr
    assert project.times_run() == 1


@pytest.mark.parametrize(
    "broken",
    [
        "import no_such_module",
        "import os\ndef test_that_ends_the_run():\n    os._exit(9)",
        "def test_that_interrupts_the_run():\n    raise KeyboardInterrupt",
    ],
    ids=["not collected", "killed", "interrupted"],
)
def test_a_run_that_did_not_come_to_its_end_has_failed(project: Project, broken: str) -> None:
    project.write("test_a.py", fails_until(1, project.counter))
    assert project.run() == 1
    project.counter.unlink()
    project.write("test_b.py", broken)
    assert project.run() not in (0, 1)
    assert project.again().returncode == 1
    assert project.unstable() == []


def test_no_run_at_all_is_a_failure(project: Project) -> None:
    assert project.again().returncode == 1


def test_a_random_example_that_failed_is_replayed(project: Project) -> None:
    project.write(
        "test_random.py",
        """
from hypothesis import given, settings, strategies as st

@settings(database=__import__("hypothesis").database.DirectoryBasedExampleDatabase(".hypothesis"))
@given(st.integers(0, 1 << 40))
def test_one_of_many(n):
    import pathlib
    bad = pathlib.Path("bad")
    if not bad.exists() and n > 1000:
        bad.write_text(str(n))
    assert not bad.exists() or n != int(bad.read_text())
""",
    )
    assert project.run() == 1
    assert project.again().returncode == 1


class TestTheWholeRun:
    """`.ci/run` with a `make` that does what the test says, and keeps the order of its calls."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / ".ci").mkdir()
        (tmp_path / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text())
        return tmp_path

    def run(self, folder: Path, *, failing: str = "", again: str = "exit 0") -> tuple[int, list[str], str]:
        """The exit code, the targets that were made, and what was printed."""
        make = folder / "make"
        make.write_text(f"""#!/usr/bin/env bash
echo "$1" >> made
case "$1" in
    again) note="${{2#NOTE=}}"; {again};;
    test*) if [ "$1" = "{failing}" ]; then echo "== 1 failed, 8 passed in 7.00s =="; exit 2; fi
        echo "== 9 passed in 7.00s ==";;
esac
""")
        make.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", ".ci/run"], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        return ended.returncode, (folder / "made").read_text().split(), ended.stdout

    def test_ends_with_the_last_line_of_each_run_of_tests(self, folder: Path) -> None:
        code, made, printed = self.run(folder)
        assert code == 0
        assert made == ["check", "test", "test-crash", "test-spark", "demo"]
        assert "UNSTABLE" not in printed
        assert [line.split(":")[0] for line in printed.splitlines()[-3:]] == [
            "make test",
            "make test-crash",
            "make test-spark",
        ]
        assert all(line.endswith("== 9 passed in 7.00s ==") for line in printed.splitlines()[-3:])

    @pytest.mark.parametrize("target", ["test", "test-crash", "test-spark"])
    def test_goes_on_after_noise_and_names_it_at_the_end(self, folder: Path, target: str) -> None:
        noise = 'echo tests/a.py::test_a >> "$note"'
        code, made, printed = self.run(folder, failing=target, again=noise)
        assert code == 0
        assert made[made.index("again") - 1] == target
        assert made[-1] == "demo"
        closing = printed.splitlines()[-8:]
        assert "  tests/a.py::test_a" in closing
        assert any("1 failed, 8 passed" in line for line in closing)

    @pytest.mark.parametrize("target", ["test", "test-crash", "test-spark"])
    def test_ends_where_a_failure_is_no_noise(self, folder: Path, target: str) -> None:
        code, made, printed = self.run(folder, failing=target, again="exit 2")
        assert code == 2
        assert made[-2:] == [target, "again"]
        assert "== 1 failed, 8 passed in 7.00s ==" in printed.splitlines()[-3:]

    def test_does_not_judge_a_target_by_an_earlier_run(self, folder: Path) -> None:
        noted = folder / ".pytest_cache" / "v" / "fairlead" / "last_run"
        noted.parent.mkdir(parents=True)
        noted.write_text("{}")
        code, _, _ = self.run(folder, failing="test", again=f"test ! -e {noted}")
        assert code == 0
