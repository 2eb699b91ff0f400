"""Processes that tests on Spark start end with the test, and their failures show their output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.spark.driver import Driver, run_driver
from tests.spark.processes import Family, wait_until

# Like the daemon of Spark's Python workers: it has its own process group, ignores SIGTERM, and outlives its
# parent.
_DAEMON = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setpgid(0, 0)
print("up", flush=True)
time.sleep(3600)
"""
_PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {_DAEMON!r}], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), child.pid, flush=True)
time.sleep(3600)
"""


def test_a_grandchild_in_a_group_of_its_own_ends_with_its_family(tmp_path: Path) -> None:
    family = Family(tmp_path)
    parent = family.start("parent", [sys.executable, "-c", _PARENT], {})
    wait_until(
        lambda: "up" in (tmp_path / "parent.out").read_text(), "the grandchild to run", explain=family.report
    )
    grandchild = int((tmp_path / "parent.out").read_text().split()[1])
    assert family.pids() == sorted([parent.pid, grandchild])
    parent.kill()
    parent.wait()
    assert family.pids() == [grandchild]
    family.end()
    assert family.pids() == []


def test_another_family_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = Family(tmp_path / "ours"), Family(tmp_path / "theirs")
    sleeper = theirs.start("sleeper", [sys.executable, "-c", "import time; time.sleep(3600)"], {})
    ours.kill()
    ours.end()
    assert sleeper.poll() is None
    theirs.end()
    assert sleeper.returncode is not None


def test_a_driver_that_fails_shows_its_logs_and_leaves_nothing(tmp_path: Path) -> None:
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_DAEMON!r}]); print('so far'); sys.exit('no such queue')"
    with pytest.raises(AssertionError, match=r"ended with 1(.|\n)*no such queue(.|\n)*so far"):
        run_driver(tmp_path, program, "local[2]")


def test_a_driver_gets_its_master_and_gives_its_last_line(tmp_path: Path) -> None:
    program = "import json, os, sys; print('noise'); print(json.dumps([os.environ['FAIRLEAD_SPARK_MASTER'], 'HOME' in os.environ, sys.argv[1:]]))"
    driver = run_driver(tmp_path, program, "local[7]", 1, environment={"HOME": None})
    assert driver.answer == ["local[7]", False, ["1"]]


def test_a_killed_driver_is_gone_with_all_its_own(tmp_path: Path) -> None:
    driver = Driver(tmp_path, _PARENT, "local[2]")
    wait_until(lambda: "up" in driver.out, "the grandchild to run", explain=driver.family.report)
    driver.kill()
    assert driver.process.returncode == -9
    assert driver.family.pids() == []
