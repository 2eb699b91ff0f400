"""Running a command to its end: an argument list, no shell, a time limit, and no more output kept than asked
for.
"""

from __future__ import annotations

import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, NamedTuple

from fairlead.worker.command import kill_group, signal_name

_SHOWN = 2000
_PIECE = 64 * 1024


class Ran(NamedTuple):
    """`trouble` says in words why it did not end well; "" when it did."""

    stdout: bytes
    stderr: str
    trouble: str


def run(arguments: Sequence[str], stdin: bytes, *, base: str, limit_s: float, max_bytes: int) -> Ran:
    """Killed with everything in its process group when its time is over, or when it prints more than it may."""
    if any("\0" in argument for argument in arguments):
        return Ran(b"", "", "an argument has a NUL character in it")
    # Files for what it reads and for its complaints, so that only one pipe has to be watched.
    with ExitStack() as files:
        try:
            given, complaints = files.enter_context(_file_with(stdin)), files.enter_context(_file_with(b""))
            process = subprocess.Popen(
                arguments,
                cwd=base,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        except OSError as error:
            return Ran(b"", "", f"{arguments[0]!r} could not be started: {error.strerror}")
        stdout, trouble = _listen(process, time.monotonic() + limit_s, max_bytes)
        if not trouble:
            trouble = _how_it_ended(process.returncode)
        complaints.seek(0)
        stderr = complaints.read(_SHOWN).decode("utf-8", "replace").strip()
    trouble = f"{arguments[0]!r} {trouble}" if trouble else ""
    return Ran(stdout, stderr, f"{trouble}: {stderr}" if trouble and stderr else trouble)


def _file_with(data: bytes) -> IO[bytes]:
    """Unbuffered: that a disk is full must show before the command begins, and not when the file is closed."""
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the caller closes it
    try:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _listen(process: subprocess.Popen[bytes], deadline: float, max_bytes: int) -> tuple[bytes, str]:
    assert process.stdout is not None
    kept = bytearray()
    trouble = ""
    with process.stdout as out, selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        while not trouble:
            left = deadline - time.monotonic()
            if left <= 0:
                trouble = "took too long and was killed"
            elif selector.select(left):
                piece = out.read1(_PIECE)  # type: ignore[attr-defined]  # it is buffered
                if not piece:
                    break
                kept += piece
                if len(kept) > max_bytes:
                    trouble = f"printed more than {max_bytes} bytes and was killed"
        if not trouble:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                trouble = "took too long and was killed"
        if trouble:
            kill_group(process)
        process.wait()
    return bytes(kept[:max_bytes]), trouble


def _how_it_ended(code: int) -> str:
    if code == 0:
        return ""
    return f"ended with exit code {code}" if code > 0 else f"was killed by {signal_name(-code)}"
