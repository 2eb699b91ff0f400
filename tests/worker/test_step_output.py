"""What a step prints never fails its message, whatever became of the worker's stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
def test_a_step_that_prints_goes_on_whatever_became_of_stderr(before: str) -> None:
    if "/dev/full" in before and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    ran = subprocess.run(
        [sys.executable, "-c", PRINTS.format(before=before)], capture_output=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, b"went on")
    assert ran.stderr.count(b"said ") == (0 if before else 3)
