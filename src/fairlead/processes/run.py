"""Run a command to its end: an argument list, no shell, a time limit, bounded output."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import IO

from fairlead.processes.lifetime import kill_group

_PIECE_BYTES = 64 * 1024
_POLL_S = 0.02
#: How long output is read after the command has ended: a process it left behind may hold the pipes open.
_LINGER_S = 0.2
_TAIL_BYTES = 3000


class KillReason(Enum):
    """Why the command was killed by its caller."""

    NO = "no"
    TOO_LONG = "too long"
    TOO_MUCH_OUTPUT = "too much output"


@dataclass
class Capture:
    """The first `head_bytes` bytes of an output stream, its last bytes, and its size."""

    head_bytes: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytes = b""
    size: int = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        room = max(0, self.head_bytes - len(self.head))
        self.head += piece[:room]
        self.tail = (self.tail + piece[room:])[-_TAIL_BYTES:]

    @property
    def is_complete(self) -> bool:
        """Whether the head is the whole output."""
        return self.size == len(self.head)


@dataclass(frozen=True)
class Finished:
    """`code` is negative for a command that a signal ended."""

    code: int
    stdout: Capture
    stderr: Capture
    killed: KillReason


def run(
    arguments: Sequence[str],
    *,
    cwd: str,
    stdin: bytes | None,
    keep_bytes: int,
    timeout_s: float | None = None,
    max_stdout_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Finished:
    """Run the command in a session of its own, and kill its process group when it exceeds a limit.

    `stdin=None` gives it no input. Of each output stream the first `keep_bytes` are kept. `prepare` runs in
    the new process before the command does. Raises `OSError` when the command cannot be started.
    """
    process = subprocess.Popen(
        arguments,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=prepare,
    )
    try:
        with _Pipes(process, stdin or b"", keep_bytes) as pipes:
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            killed = _attend(process, pipes, deadline, max_stdout_bytes)
    except BaseException:
        kill_group(process.pid)
        raise
    finally:
        process.wait()
    return Finished(process.returncode, pipes.stdout, pipes.stderr, killed)


def _attend(
    process: subprocess.Popen[bytes], pipes: _Pipes, deadline: float | None, max_stdout_bytes: int | None
) -> KillReason:
    """Feed the command and read its output until it has ended and its pipes are closed or have lingered."""
    killed = KillReason.NO
    while process.poll() is None:
        if deadline is not None and time.monotonic() >= deadline:
            killed = KillReason.TOO_LONG
        elif max_stdout_bytes is not None and pipes.stdout.size > max_stdout_bytes:
            killed = KillReason.TOO_MUCH_OUTPUT
        if killed is not KillReason.NO:
            kill_group(process.pid)
            break
        if pipes.are_open:
            pipes.transfer()
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
    # A transfer reads at least as much as a pipe holds, so nothing that the command itself wrote is missed.
    linger_until = time.monotonic() + _LINGER_S
    while pipes.are_open:
        pipes.transfer()
        if time.monotonic() > linger_until:
            break
    return killed


class _Pipes:
    """The three standard streams of a child, seen from its parent."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, keep_bytes: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = Capture(keep_bytes), Capture(keep_bytes)
        self._streams = [process.stdout, process.stderr]
        self._unwritten = memoryview(stdin)
        self._selector = selectors.DefaultSelector()
        self._selector.register(process.stdout, selectors.EVENT_READ, self.stdout)
        self._selector.register(process.stderr, selectors.EVENT_READ, self.stderr)
        if process.stdin is not None:
            self._streams.append(process.stdin)
            os.set_blocking(process.stdin.fileno(), False)
            self._selector.register(process.stdin, selectors.EVENT_WRITE)

    @property
    def are_open(self) -> bool:
        return bool(self._selector.get_map())

    def transfer(self) -> None:
        """Move a piece on each pipe that is ready, waiting a moment for the first one."""
        for key, _ in self._selector.select(_POLL_S):
            if key.data is None:
                self._feed(key.fileobj)  # type: ignore[arg-type]
            elif piece := os.read(key.fd, _PIECE_BYTES):
                key.data.add(piece)
            else:
                self._selector.unregister(key.fileobj)

    def _feed(self, stdin: IO[bytes]) -> None:
        try:
            self._unwritten = self._unwritten[os.write(stdin.fileno(), self._unwritten[:_PIECE_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            self._unwritten = self._unwritten[:0]  # the command has closed its stdin
        if not self._unwritten:
            self._selector.unregister(stdin)
            with contextlib.suppress(OSError):
                stdin.close()

    def __enter__(self) -> _Pipes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._selector.close()
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.close()
