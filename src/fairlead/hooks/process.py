"""A hook host seen from the broker: start it, talk to it, notice that it is stuck, kill it.

Stalls are measured in real time, whatever clock the broker runs on, because they concern a real process.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import mmap
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from fairlead.hooks.confine import Confinement
from fairlead.hooks.wire import (
    MAX_FRAME_BYTES,
    ConfigLookup,
    ConfigValue,
    FromHost,
    HostReady,
    HostSetup,
    ResultRows,
    ToHost,
    frame,
)
from fairlead.processes.lifetime import kill_group
from fairlead.processes.pipes import FrameTooLong, take_frames

#: Generous, for a busy machine.
_START_SECONDS = 30.0
#: A host that neither answers nor computes is stopped or starved, and gets this many times the usual
#: patience.
_IDLE_PATIENCE = 20
_READ_BYTES = 1 << 20
#: All that the host inherits of the environment: some Pythons do not find their own library without it.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# The two empty packages stand for the real ones, whose __init__ would import the whole broker.
_BOOT = """
import sys, types
for name, path in (("fairlead", sys.argv[3]), ("fairlead.hooks", sys.argv[4])):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [path]
sys.path.extend(sys.argv[5:])
from fairlead.hooks.host import main
main()
"""


OUT_OF_TURN = "it sent something that was not asked for"


class HostDied(Exception):
    """The host ended by itself, was killed by somebody else, or sent something invalid."""


class HostDoesNotStart(Exception):
    """The installation or the machine is at fault, not a script."""


class HostStalled(Exception):
    """The host computed for too long without a result and was killed."""


class HostProcess:
    """One running host. Not thread-safe, except that any thread may call `kill`."""

    def __init__(self, setup: HostSetup, kill_after_ms: int) -> None:
        """Start the process without waiting for it. On Linux it dies with the calling *thread*."""
        self.loaded: dict[int, None] = {}
        #: What confines the host, once it is ready.
        self.confinement = Confinement()
        self._patience = kill_after_ms / 1000
        self._decoder = msgspec.msgpack.Decoder(FromHost)
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        page = _shared_page()
        try:
            self._mark = memoryview(mmap.mmap(page, mmap.PAGESIZE)).cast("q")
            here = Path(__file__).parent
            command = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _BOOT,
                str(os.getpid()),
                str(page),
                str(here.parent),
                str(here),
                *_search_path("lupa", "msgspec"),
            ]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                close_fds=True,
                pass_fds=(page,),
                start_new_session=True,
            )
        finally:
            os.close(page)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._stdin: IO[bytes] = self._process.stdin
        self._stdout: IO[bytes] = self._process.stdout
        self._write_fd, self._read_fd = self._stdin.fileno(), self._stdout.fileno()
        os.set_blocking(self._write_fd, False)
        os.set_blocking(self._read_fd, False)
        self._readable = select.poll()
        self._readable.register(self._read_fd, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(self._write_fd, select.POLLOUT)
        self._first_frame = frame(setup)

    def await_ready(self) -> None:
        """Raises `HostDied` with the reason if the host does not start."""
        watch = _StallWatch(self, patience=_START_SECONDS)
        try:
            self._write(self._first_frame, watch)
            ready = self._next(watch)
        except HostStalled:
            raise HostDied(f"it was not ready after {_START_SECONDS:.0f} s") from None
        problem = ready.problem if isinstance(ready, HostReady) else OUT_OF_TURN
        if problem or not isinstance(ready, HostReady):
            self.kill()
            raise HostDied(problem)
        self.confinement = ready.held

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def running_call(self) -> int:
        """The number of the call that was begun last in this turn, -1 if none was. Readable after the host's
        death.
        """
        return int(self._mark[0])

    def send(self, message: ToHost) -> None:
        self._write(frame(message), _StallWatch(self))

    def turn(self, message: ToHost, config: dict[str, str]) -> Iterator[FromHost]:
        """Send a turn or a check, and yield the frames that come back; the caller stops at the last one.

        Raises `HostStalled` or `HostDied`; then the process is dead, and the frames yielded before count.
        """
        self._mark[0] = -1
        watch = _StallWatch(self)
        self._write(frame(message), watch)
        while True:
            answer = self._next(watch)
            if isinstance(answer, ConfigLookup):
                # Not progress: a script that only asks for values is as stuck as an endless loop.
                self._write(frame(ConfigValue(config.get(answer.key))), watch)
                watch.check()
                continue
            if isinstance(answer, ResultRows) and answer.rows:
                watch.progress()
            yield answer

    def kill(self) -> None:
        """Kill the process and its group, and wait for its end. May be repeated."""
        kill_group(self.pid)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process and close the broker's ends of its pipes."""
        self.kill()
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._stdout.close()

    def cpu_seconds(self) -> float | None:
        """The CPU time that the host has used; None where the system does not report it."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2) if sys.platform == "linux" else None
        except OSError:
            return None

    def _next(self, watch: _StallWatch) -> FromHost:
        while not self._frames:
            if not self._readable.poll(watch.next_check_ms()):
                watch.check()
                continue
            try:
                data = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                self.kill()
                raise HostDied("it ended")
            self._buffer += data
            self._take_frames()
        try:
            message: FromHost = self._decoder.decode(self._frames.popleft())
        except msgspec.MsgspecError:
            self.kill()
            raise HostDied("it sent an invalid frame") from None
        return message

    def _take_frames(self) -> None:
        try:
            self._frames += take_frames(self._buffer, MAX_FRAME_BYTES)
        except FrameTooLong:
            self.kill()
            raise HostDied(f"it sent a frame of more than {MAX_FRAME_BYTES} bytes") from None

    def _write(self, data: bytes, watch: _StallWatch) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._write_fd, view) :]
            except BlockingIOError:
                if not self._writable.poll(watch.next_check_ms()):
                    watch.check()
            except (BrokenPipeError, OSError):
                self.kill()
                raise HostDied("it ended") from None


class _StallWatch:
    """Kills a host that makes no progress for `patience` seconds.

    Time alone does not prove an endless loop: on a busy machine a host may not get the processor. So where
    the system reports its CPU time, the host must also have used half of that time, or have been silent for
    many times as long.
    """

    def __init__(self, host: HostProcess, patience: float | None = None) -> None:
        self._host = host
        self._patience = host._patience if patience is None else patience
        self._mark = host.running_call
        self.progress()

    def progress(self) -> None:
        self._since = time.monotonic()
        self._cpu: float | None = None

    def next_check_ms(self) -> int:
        return max(1, int(self._patience * 250))

    def check(self) -> None:
        """Nothing came for a while. Kills the host and raises `HostStalled` if that has lasted too long."""
        if self._host.running_call != self._mark:
            self._mark = self._host.running_call
            self.progress()
            return
        silent = time.monotonic() - self._since
        cpu = self._host.cpu_seconds()
        if self._cpu is None:
            self._cpu = cpu
        if silent < self._patience:
            return
        computed = cpu is None or self._cpu is None or cpu - self._cpu >= self._patience / 2
        if computed or silent >= self._patience * _IDLE_PATIENCE:
            self._host.kill()
            raise HostStalled


def _shared_page() -> int:
    """A file descriptor of one page of memory without a name in any file system."""
    if sys.platform == "linux":
        page = os.memfd_create("fairlead-hooks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            page = os.dup(file.fileno())
    os.ftruncate(page, mmap.PAGESIZE)
    if sys.platform == "linux":
        # Without the seals the host could truncate the page, and reading it would kill the broker.
        fcntl.fcntl(page, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return page


def _search_path(*packages: str) -> list[str]:
    """The only directories in which the host looks for packages."""
    found: dict[str, None] = {}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise HostDied(f"the package {name} is not installed")
        found[str(Path(spec.origin).parent.parent)] = None
    return list(found)
