"""The life of a step process: load the steps, take a ticket, call, answer, until the worker is gone."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import select
import signal
import sys
from collections import deque

import msgspec

from fairlead.errors import StepNotLoaded
from fairlead.worker.protocol import (
    TICKET,
    BatchCall,
    CallFailed,
    ChildReady,
    PipelineSetup,
    StepCall,
    frame,
    take_frames,
)
from fairlead.worker.step_output import print_to_stderr
from fairlead.worker.step_runner import StepRunner

_PR_SET_PDEATHSIG = 1
_PIECE = 1 << 18


def main() -> None:
    parent, calls_fd, tickets_fd, results_fd, crash_fd = map(int, sys.argv[1:6])
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    # Handlers and not SIG_IGN, which commands would inherit: a service manager may signal all processes at
    # once, and only the worker decides when its steps end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _not_mine)
    faulthandler.enable(crash_fd)
    print_to_stderr()
    inbox = Inbox(calls_fd)
    setup = msgspec.msgpack.decode(inbox.next_frame(), type=PipelineSetup)
    os.chdir(setup.base)
    try:
        call_step = StepRunner(setup, die_with_parent)
    except StepNotLoaded as error:
        os.write(results_fd, frame(ChildReady(error.step, error.what)))
        return
    limit_memory(setup.memory_limit_bytes)
    os.write(results_fd, frame(ChildReady()))
    tickets = Tickets(tickets_fd)
    while (ticket := tickets.take()) is not None:
        result = call_step(inbox.take(ticket))
        _write_all(results_fd, frame(result))
        if isinstance(result, CallFailed) and result.spent:
            return


class Tickets:
    """Shared with the worker, who takes tickets back; neither may block the other."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def take(self) -> int | None:
        """Waits for one; None when there will be none any more."""
        while True:
            try:
                ticket = os.read(self._fd, TICKET.size)
            except BlockingIOError:
                self._poll.poll()
                continue
            return TICKET.unpack(ticket)[0] if ticket else None


class Inbox:
    """Calls as they come, until their tickets are taken. One that was passed over has been taken back."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._calls: deque[StepCall | BatchCall] = deque()
        self._decode = msgspec.msgpack.Decoder(list[StepCall | BatchCall]).decode

    def take(self, ticket: int) -> StepCall | BatchCall:
        while True:
            while self._calls:
                call = self._calls.popleft()
                if call.ticket == ticket:
                    return call
            self._calls.extend(self._decode(self.next_frame()))

    def next_frame(self) -> bytes:
        while not self._frames:
            piece = os.read(self._fd, _PIECE)
            if not piece:
                os._exit(0)
            self._buffer += piece
            self._frames.extend(take_frames(self._buffer))
        return self._frames.popleft()


def die_with_parent() -> None:
    """On Linux, also when the worker is killed with no time to say so. Runs in the processes of commands too."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(limit_bytes: int | None) -> None:
    """Address space is what can be limited; what is mapped and not used, above all by libraries, is granted
    on top.
    """
    if limit_bytes is None:
        return
    mapped = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as statm:
        size, resident = map(int, statm.read().split()[:2])
        mapped = (size - resident) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes + mapped, limit_bytes + mapped))


def _not_mine(number: int, frame: object) -> None: ...


def _write_all(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the worker no longer listens
        main()
