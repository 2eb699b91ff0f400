"""Commands that are run to their end, for those who list and take."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.worker.running import run

PRINT_STDIN = (sys.executable, "-c", "import sys; print(len(sys.stdin.read()))")


@contextmanager
def little_room() -> Iterator[None]:
    """Files of this process end after some kilobytes, as those on a full disk do. No longer than needed: its
    log may be one.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_with_no_room_for_what_a_command_reads_is_trouble_and_not_the_end_of_the_worker(
    tmp_path: Path,
) -> None:
    with little_room():
        ran = run(PRINT_STDIN, b"x" * 100_000, base=str(tmp_path), limit_s=60, max_bytes=1000)
    assert "could not be started: File too large" in ran.trouble
    assert ran.stdout == b""


def test_a_command_reads_all_it_is_given(tmp_path: Path) -> None:
    assert run(PRINT_STDIN, b"x" * 100_000, base=str(tmp_path), limit_s=60, max_bytes=1000) == (
        b"100000\n",
        "",
        "",
    )
