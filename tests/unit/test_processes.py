"""Child processes: commands that are run to their end within limits, and frames on pipes."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.processes.lifetime import describe_exit
from fairlead.processes.pipes import FrameTooLong, pack_frame, read_frame, take_frames
from fairlead.processes.run import Finished, KillReason, run

PRINT_STDIN = (sys.executable, "-c", "import sys; print(len(sys.stdin.read()))")


def run_here(*arguments: str, tmp_path: Path, **options: object) -> Finished:
    given = {"stdin": b"", "keep_bytes": 1000, "timeout_s": 60.0} | options
    return run(arguments, cwd=str(tmp_path), **given)  # type: ignore[arg-type]


@contextmanager
def small_files() -> Iterator[None]:
    """Files of this process end after some kilobytes, as on a full disk. Brief, because its log may be a
    file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_command_reads_all_its_input_and_needs_no_disk_for_it(tmp_path: Path) -> None:
    with small_files():
        finished = run_here(*PRINT_STDIN, tmp_path=tmp_path, stdin=b"x" * 1_000_000)
    assert (finished.code, bytes(finished.stdout.head)) == (0, b"1000000\n")


def test_a_command_that_reads_nothing_ends_well(tmp_path: Path) -> None:
    assert run_here("true", tmp_path=tmp_path, stdin=b"x" * 1_000_000).code == 0


def test_of_much_output_the_head_the_tail_and_the_size_are_kept(tmp_path: Path) -> None:
    script = "import sys; sys.stdout.write('a' * 300_000 + 'b' * 5); sys.stderr.write('short')"
    finished = run_here(sys.executable, "-c", script, tmp_path=tmp_path)
    assert finished.stdout.head == b"a" * 1000
    assert finished.stdout.tail.endswith(b"abbbbb")
    assert finished.stdout.size == 300_005
    assert not finished.stdout.is_complete
    assert finished.stderr.is_complete


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = "sleep 600 & echo $! > started; wait"
    finished = run_here("sh", "-c", script, tmp_path=tmp_path, timeout_s=0.5)
    assert (finished.killed, finished.code) == (KillReason.TOO_LONG, -9)
    started = int((tmp_path / "started").read_text())
    deadline = time.monotonic() + 60
    while _runs(started):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_prints_too_much_is_killed(tmp_path: Path) -> None:
    finished = run_here("yes", tmp_path=tmp_path, max_stdout_bytes=100_000)
    assert (finished.killed, finished.code) == (KillReason.TOO_MUCH_OUTPUT, -9)


def test_a_process_that_a_command_left_behind_does_not_delay_its_end(tmp_path: Path) -> None:
    began = time.monotonic()
    finished = run_here("sh", "-c", "echo done; sleep 30 & exit 3", tmp_path=tmp_path)
    assert (finished.code, bytes(finished.stdout.head)) == (3, b"done\n")
    assert time.monotonic() - began < 25


def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    finished = run_here("sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 4", tmp_path=tmp_path)
    assert (finished.code, finished.killed) == (4, KillReason.NO)


def test_a_command_that_is_not_there_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-command"):
        run_here("no-such-command", tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "ended with exit code 3"), (-9, "was killed by SIGKILL"), (-99, "was killed by signal 99")],
)
def test_an_exit_code_is_described(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_frames_are_taken_as_they_become_complete() -> None:
    buffer = bytearray(pack_frame(b"one") + pack_frame(b"") + pack_frame(b"three")[:-1])
    assert take_frames(buffer) == [b"one", b""]
    buffer += b"e"
    assert take_frames(buffer) == [b"three"]
    assert not buffer


def test_a_frame_that_is_too_long_is_refused_after_the_frames_before_it() -> None:
    buffer = bytearray(pack_frame(b"ok") + pack_frame(b"too long"))
    assert take_frames(buffer, max_bytes=4) == [b"ok"]
    with pytest.raises(FrameTooLong):
        take_frames(buffer, max_bytes=4)


def test_a_frame_is_read_in_pieces_and_an_end_in_its_middle_is_an_error() -> None:
    reader, writer = os.pipe()
    body = os.urandom(300_000)

    def write() -> None:
        with open(writer, "wb") as pipe:
            pipe.write(pack_frame(body) + pack_frame(body)[:-1])

    thread = threading.Thread(target=write)
    thread.start()
    assert read_frame(reader) == body
    with pytest.raises(EOFError):
        read_frame(reader)
    thread.join()
    os.close(reader)
