"""The main program of a step process: load the steps, then take a ticket, call, answer, until the worker is
gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import select
import signal
import sys
from collections import deque

import msgspec

from fairlead.errors import StepNotLoaded
from fairlead.processes.lifetime import die_with_parent
from fairlead.processes.pipes import take_frames, write_all
from fairlead.worker.protocol import TICKET, BatchCall, CallFailed, ChildReady, PipelineSetup, StepCall, frame
from fairlead.worker.step_output import print_to_stderr
from fairlead.worker.step_runner import StepRunner

_READ_BYTES = 1 << 18


def main() -> None:
    parent, calls_fd, tickets_fd, results_fd, crash_fd = map(int, sys.argv[1:6])
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    # A service manager may signal all processes at once, and only the worker decides when its steps end.
    # Handlers and not SIG_IGN, which commands would inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)
    faulthandler.enable(crash_fd)
    print_to_stderr()
    inbox = Inbox(calls_fd)
    setup = msgspec.msgpack.decode(inbox.next_frame(), type=PipelineSetup)
    os.chdir(setup.base)
    try:
        # Commands die with this process, as it dies with the worker.
        run_step = StepRunner(setup, die_with_parent)
    except StepNotLoaded as error:
        os.write(results_fd, frame(ChildReady(error.step, error.what)))
        return
    limit_memory(setup.memory_limit_bytes)
    os.write(results_fd, frame(ChildReady()))
    tickets = Tickets(tickets_fd)
    while (ticket := tickets.take()) is not None:
        result = run_step(inbox.take(ticket))
        write_all(results_fd, frame(result))
        if isinstance(result, CallFailed) and result.spent:
            return


class Tickets:
    """The reading end of the tickets' pipe. The worker reads it too, to take tickets back, so a read must not
    block.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def take(self) -> int | None:
        """Wait for a ticket; None when the worker has closed the pipe."""
        while True:
            try:
                ticket = os.read(self._fd, TICKET.size)
            except BlockingIOError:
                self._poll.poll()
                continue
            return TICKET.unpack(ticket)[0] if ticket else None


class Inbox:
    """Calls in the order in which they came. A call whose ticket was passed over has been taken back."""

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
        """Ends the process when the worker has closed the pipe."""
        while not self._frames:
            piece = os.read(self._fd, _READ_BYTES)
            if not piece:
                os._exit(0)
            self._buffer += piece
            self._frames.extend(take_frames(self._buffer))
        return self._frames.popleft()


def limit_memory(limit_bytes: int | None) -> None:
    """Limit the address space. What is mapped now and not resident, mostly libraries, does not count."""
    if limit_bytes is None:
        return
    mapped = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as statm:
        size, resident = map(int, statm.read().split()[:2])
        mapped = (size - resident) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes + mapped, limit_bytes + mapped))


def _ignore(number: int, frame: object) -> None: ...


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the worker has closed its pipes
        main()
