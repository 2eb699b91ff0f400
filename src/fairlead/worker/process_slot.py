"""A slot in a process of its own, which may crash, hang, exhaust memory or be killed without harm to others."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import struct
import subprocess
import sys
import tempfile
import termios
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from fairlead.model.failure import FailureReason
from fairlead.processes.lifetime import describe_exit, kill_group
from fairlead.processes.pipes import take_frames
from fairlead.worker.items import Work
from fairlead.worker.plan import PipelinePlan
from fairlead.worker.protocol import (
    TICKET,
    BatchDone,
    CallDone,
    CallFailed,
    ChildReady,
    FromChild,
    PipelineSetup,
    frame,
)
from fairlead.worker.reasons import cut_middle
from fairlead.worker.slots import CallAnswered, SlotDied, SlotEvent, StepsNotLoaded

_READ_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_TICKETS = 1 << 32
_MAX_CRASH_BYTES = 4000
_EXIT_WAIT_S = 1.0

_decode = msgspec.msgpack.Decoder(FromChild).decode


class ProcessSlot:
    """Made, used and closed by one thread, which must live as long as the slot: the process dies with the
    thread.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        setup: PipelineSetup,
        post: Callable[[SlotEvent], None],
        selector: selectors.BaseSelector,
    ) -> None:
        self.plan = plan
        self.ready = False
        self.retiring = False
        self.pending: deque[Work] = deque()
        self.since = time.monotonic()
        self.load_us = 0
        self.reason = FailureReason.POISON_MESSAGE
        self._post = post
        self._selector = selector
        self._next_ticket = 0
        self._out = bytearray(frame(setup))
        self._in = bytearray()
        self._is_writing = False
        self._is_gone = False
        self._crash = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the slot
        self._spawn()
        self._write()

    def _spawn(self) -> None:
        pipes: list[int] = []
        try:
            for _ in range(3):
                pipes += os.pipe()
            calls_in, self._calls, self._tickets_in, self._tickets_out, self._results, results_out = pipes
            for fd in (self._calls, self._results, self._tickets_in):
                os.set_blocking(fd, False)
            with contextlib.suppress(OSError, AttributeError):
                # A larger pipe takes a batch of calls in one write. Not every system allows it.
                fcntl.fcntl(self._calls, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            fds = (calls_in, self._tickets_in, results_out, self._crash.fileno())
            self._process = subprocess.Popen(
                # -P: the current directory may hold a `select.py` of the user's.
                [sys.executable, "-P", "-m", "fairlead.worker.child", str(os.getpid()), *map(str, fds)],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )
        except BaseException:
            # The pool tries again, and descriptors may be what is short.
            for fd in pipes:
                os.close(fd)
            self._crash.close()
            raise
        for fd in (calls_in, results_out):
            os.close(fd)
        self._selector.register(self._results, selectors.EVENT_READ, self.read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, works: Sequence[Work]) -> None:
        if not self.pending:
            self.since = time.monotonic()
        first = self._next_ticket
        calls = [work.call((first + at) % _TICKETS) for at, work in enumerate(works)]
        self._next_ticket = (first + len(works)) % _TICKETS
        self.pending.extend(works)
        self._out += frame(calls)
        # Calls before tickets: the call of a ticket that can be read is already on its way.
        self._write()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._tickets_out, struct.pack(f"<{len(calls)}I", *[call.ticket for call in calls]))

    def accept(self, work: Work) -> bool:
        """Always True: `read` has already removed the call, so that a later death is not blamed on it."""
        return True

    def unbegun(self) -> int:
        unread = array("i", [0])
        fcntl.ioctl(self._tickets_in, termios.FIONREAD, unread)
        return min(len(self.pending), unread[0] // TICKET.size)

    def recall(self) -> list[Work]:
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while tickets := os.read(self._tickets_in, TICKET.size * 4096):
                taken += len(tickets) // TICKET.size
        found = [self.pending.pop() for _ in range(taken)]
        found.reverse()
        return found

    def read(self) -> None:
        """Take in results. The selector calls this when there is something to read."""
        try:
            piece = os.read(self._results, _READ_BYTES)
        except BlockingIOError:
            return
        if not piece:
            self._end("")
            return
        self._in += piece
        self._take_results()

    def check(self) -> None:
        # A process that a step started may hold the pipe open, so its end does not show as end of file.
        if not self._is_gone and self._process.poll() is not None:
            self.read()
            if not self._is_gone:
                self._end("")

    def kill(self, how: str, reason: FailureReason = FailureReason.POISON_MESSAGE) -> None:
        self.reason = reason
        kill_group(self._process.pid)
        self._end(how)

    def close(self) -> None:
        """Close the pipes, which ends an idle process, and kill the process if it does not end."""
        if self._is_gone:
            return
        self._close_pipes()
        if not self.ready:
            kill_group(self._process.pid)
        self._await_exit()
        self._crash.close()

    def _take_results(self) -> None:
        for raw in take_frames(self._in):
            try:
                result = _decode(raw)
            except msgspec.MsgspecError:
                self.kill("its process sent something that is no answer")
                return
            if not isinstance(result, ChildReady):
                if not self._take_answer(result):
                    return
            elif result.error:
                self._post(StepsNotLoaded(self, result.step, result.error))
            else:
                self.ready, self.since = True, time.monotonic()

    def _take_answer(self, result: CallDone | CallFailed | BatchDone) -> bool:
        if not self.pending or self.pending[0].ticket != result.ticket:
            self.kill("its process answered a call that it was not given")
            return False
        work = self.pending.popleft()
        self.since = time.monotonic()
        if isinstance(result, CallFailed) and result.spent:
            self.retiring = True
        self._post(CallAnswered(self, work, result))
        return True

    def _write(self) -> None:
        if self._is_gone:
            return  # the end of the process was read from the other pipe a moment ago
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._out:
                del self._out[: os.write(self._calls, self._out)]
        must_write = bool(self._out)
        if must_write and not self._is_writing:
            self._selector.register(self._calls, selectors.EVENT_WRITE, self._write)
        elif self._is_writing and not must_write:
            self._selector.unregister(self._calls)
        self._is_writing = must_write

    def _end(self, how: str) -> None:
        """Sort the pending calls by whether they had begun, now that the process is dead or about to be."""
        if self._is_gone:
            return
        code = self._await_exit()
        # Results that were written before the death count.
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._results, _READ_BYTES):
                self._in += piece
        self._is_gone = True
        self._take_results()
        recalled = self.recall()
        begun = self.pending.popleft() if self.pending else None
        others = [*self.pending, *recalled]
        self.pending.clear()
        text = how or _describe_death(code)
        crash = self._crash_text()
        self._close_pipes()
        self._crash.close()
        self._post(SlotDied(self, begun, others, f"{text}\n\n{crash}" if crash else text))

    def _await_exit(self) -> int:
        try:
            return self._process.wait(_EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            # It closed its pipe and still runs; nothing that it does can be reported any more.
            kill_group(self._process.pid)
            return self._process.wait()

    def _crash_text(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._crash.seek(0)
            text = self._crash.read(64 * 1024).decode("utf-8", "replace")
            return cut_middle(text.strip(), _MAX_CRASH_BYTES)
        return ""

    def _close_pipes(self) -> None:
        self._is_gone = True
        self._selector.unregister(self._results)
        if self._is_writing:
            self._selector.unregister(self._calls)
            self._is_writing = False
        for fd in (self._calls, self._results, self._tickets_in, self._tickets_out):
            os.close(fd)


def _describe_death(code: int) -> str:
    text = f"its process {describe_exit(code)}"
    return text if code < 0 else f"{text} in the middle of the step"
