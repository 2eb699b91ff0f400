"""What a step prints never fails its message, whatever happens to the worker's stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead

PRINTS = """
import os, sys
result = os.dup(1)
{before}
from fairlead.worker.step_output import print_to_stderr
print_to_stderr()
for _ in range(3):
    print("said", "x" * 100_000, flush=True)
    sys.stderr.write("complained\\n")
os.write(result, b"went on")
os._exit(0)
"""


@pytest.mark.parametrize(
    "before",
    [
        "",
        "os.close(2)",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
        "read, write = os.pipe(); os.close(read); os.dup2(write, 2)",
        "read, write = os.pipe(); os.set_blocking(write, False); os.dup2(write, 2)",
    ],
    ids=["open", "closed", "a full disk", "nobody reads", "nobody reads fast enough"],
)
def test_a_step_that_prints_continues_whatever_happens_to_stderr(before: str) -> None:
    if "/dev/full" in before and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    ran = subprocess.run(
        [sys.executable, "-c", PRINTS.format(before=before)], capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, b"went on")
    assert ran.stderr.count(b"said ") == (0 if before else 3)


STEPS = """
import os, sys

def talk(item):
    print("said", flush=True)
    sys.stderr.write("complained\\n")
    sys.stdout.write("said with no end of line")
    if item.get("raw"):
        os.write(1, b"wrote\\n")
"""
RUNBOOK = """
[queue.work]
type = "persisted"

[pipeline.talk]
steps = [{{ name = "talk", run = "talking:talk" }}]

[worker.talker]
queue = "work"
pipeline = "talk"
isolate = "{isolate}"
"""


@pytest.mark.parametrize("isolate", ["process", "thread"])
@pytest.mark.parametrize("stderr", ["full", "read"])
def test_only_the_summary_is_on_the_stdout_of_a_worker_whose_steps_print(
    tmp_path: Path, isolate: str, stderr: str
) -> None:
    if stderr == "full" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "talking.py").write_text(STEPS)
    (tmp_path / "runbook.toml").write_text(RUNBOOK.format(isolate=isolate))
    with fairlead.open(tmp_path / "data") as broker:
        broker.create_queue("work", max_attempts=1)
        broker.enqueue("work", b'{"raw": true}' if stderr == "read" else b"{}")
    options = ["--data", "data", "-o", "json", "worker", "run", "--file", "runbook.toml", "--burst"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    with open("/dev/full" if stderr == "full" else tmp_path / "stderr", "wb") as complaints:
        ran = subprocess.run(
            [sys.executable, "-m", "fairlead.cli", *options],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=complaints,
            check=True,
        )
    (worker,) = json.loads(ran.stdout)["workers"]
    assert (worker["completed"], worker["dead"]) == (1, 0)
    if stderr == "read":
        printed = (tmp_path / "stderr").read_text()
        for text in ("said\n", "complained\n", "wrote\n", "said with no end of line"):
            assert text in printed
