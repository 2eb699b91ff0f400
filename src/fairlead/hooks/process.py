"""A hook host seen from the broker: start it, talk to it, know when it is stuck, kill it.

The watch over a stuck host is in real time, whatever clock the broker runs on: it is about a real process.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import mmap
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from fairlead.hooks.confine import Confinement
from fairlead.hooks.wire import (
    MAX_FRAME_BYTES,
    ConfigRequest,
    ConfigValue,
    FromHost,
    HostReady,
    HostSetup,
    ResultRows,
    ToHost,
    frame,
)

#: How long a starting host may take on a busy machine.
_START_SECONDS = 30.0
#: A host that neither answers nor computes is stopped or starved; it gets this many times the usual patience.
_IDLE_PATIENCE = 20
_READ_BYTES = 1 << 20
#: All the host inherits: some Pythons do not find their own library without it.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

# The two package objects stand in for the real ones, whose __init__ would import the whole broker.
_BOOT = """
import sys, types
for name, path in (("fairlead", sys.argv[3]), ("fairlead.hooks", sys.argv[4])):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [path]
sys.path.extend(sys.argv[5:])
from fairlead.hooks.host import main
main()
"""


class HostDied(Exception):
    """It ended by itself, was killed by someone else, or talks nonsense."""


class HostDoesNotStart(Exception):
    """Something is wrong with the installation or the machine, and not with a script."""


class HostStalled(Exception):
    """It computed for too long without a result, and was killed."""


class HostProcess:
    """One running host. Not thread-safe; `kill` may be called from any thread."""

    def __init__(self, setup: HostSetup, kill_after_ms: int) -> None:
        """Starts it without waiting; see `await_ready`. On Linux it dies with the calling *thread*."""
        self.loaded: dict[int, None] = {}
        #: What holds it, from the time it is ready.
        self.confinement = Confinement()
        self._patience = kill_after_ms / 1000
        self._decoder = msgspec.msgpack.Decoder(FromHost)
        self._buffer = bytearray()
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
        """Raises HostDied with the reason when it does not start."""
        watch = _StallWatch(self, patience=_START_SECONDS)
        try:
            self._write(self._first_frame, watch)
            ready = self._next(watch)
        except HostStalled:
            raise HostDied(f"it was not ready after {_START_SECONDS:.0f} s") from None
        if not isinstance(ready, HostReady) or ready.problem:
            self.kill()
            raise HostDied(ready.problem if isinstance(ready, HostReady) else "it spoke out of turn")
        self.confinement = ready.held

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def running_call(self) -> int:
        """Number of the call of this turn that was begun last, -1 if none was. Readable after its death."""
        return int(self._mark[0])

    def tell(self, message: ToHost) -> None:
        self._write(frame(message), _StallWatch(self))

    def turn(self, message: ToHost, config: dict[str, str]) -> Iterator[FromHost]:
        """Send a turn or a check and yield what comes back, the last frame included; the caller stops at it.

        Raises HostStalled or HostDied, after which the process is dead and what was yielded stands.
        """
        self._mark[0] = -1
        watch = _StallWatch(self)
        self._write(frame(message), watch)
        while True:
            answer = self._next(watch)
            if isinstance(answer, ConfigRequest):
                # No result, hence no progress: a script that only asks is as stuck as one that loops.
                self._write(frame(ConfigValue(config.get(answer.key))), watch)
                watch.look()
                continue
            if isinstance(answer, ResultRows) and answer.rows:
                watch.progress()
            yield answer

    def kill(self) -> None:
        """End the process and whatever it may have started. Returns when it is gone; may be repeated."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill and give back what the broker's side holds."""
        self.kill()
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._stdout.close()

    def cpu_seconds(self) -> float | None:
        """CPU time it has used, None where the system does not say."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2) if sys.platform == "linux" else None
        except OSError:
            return None

    def _next(self, watch: _StallWatch) -> FromHost:
        while True:
            message = self._buffered()
            if message is not None:
                return message
            if not self._readable.poll(watch.next_look_ms()):
                watch.look()
                continue
            try:
                data = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                self.kill()
                raise HostDied("it ended")
            self._buffer += data

    def _buffered(self) -> FromHost | None:
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        size = int.from_bytes(buffer[:4], "big")
        if size > MAX_FRAME_BYTES:
            self.kill()
            raise HostDied("it sent a frame without end")
        if len(buffer) < 4 + size:
            return None
        try:
            message: FromHost = self._decoder.decode(memoryview(buffer)[4 : 4 + size])
        except msgspec.MsgspecError:
            self.kill()
            raise HostDied("it sent a frame that makes no sense") from None
        del buffer[: 4 + size]
        return message

    def _write(self, data: bytes, watch: _StallWatch) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._write_fd, view) :]
            except BlockingIOError:
                if not self._writable.poll(watch.next_look_ms()):
                    watch.look()
            except (BrokenPipeError, OSError):
                self.kill()
                raise HostDied("it ended") from None


class _StallWatch:
    """Kills a host that goes on for `patience` seconds without progress.

    Time alone does not prove a loop: on a crowded machine a host may not get to run at all. So where the
    system tells its CPU time, it must also have used half of that time, or have been silent for many times as
    long.
    """

    def __init__(self, host: HostProcess, patience: float | None = None) -> None:
        self._host = host
        self._patience = host._patience if patience is None else patience
        self._mark = host.running_call
        self.progress()

    def progress(self) -> None:
        self._since = time.monotonic()
        self._cpu: float | None = None

    def next_look_ms(self) -> int:
        return max(1, int(self._patience * 250))

    def look(self) -> None:
        """Nothing came for a while. Raises HostStalled when it has been too long."""
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
    """A file descriptor of one page of memory that has no name anywhere."""
    if sys.platform == "linux":
        page = os.memfd_create("fairlead-hooks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile() as file:
            page = os.dup(file.fileno())
    os.ftruncate(page, mmap.PAGESIZE)
    if sys.platform == "linux":
        # Reading a page that somebody has cut off would kill the broker.
        fcntl.fcntl(page, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return page


def _search_path(*packages: str) -> list[str]:
    """Where the host finds the packages it needs; it looks nowhere else."""
    found: dict[str, None] = {}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise HostDied(f"the package {name} is not installed")
        found[str(Path(spec.origin).parent.parent)] = None
    return list(found)
