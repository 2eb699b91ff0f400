"""A slot in a process of its own, which may be killed, run out of memory or crash, and harms nobody else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
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
from fairlead.worker.batches import Work
from fairlead.worker.command import signal_name
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
    take_frames,
)
from fairlead.worker.reasons import cut_middle
from fairlead.worker.slots import CallAnswered, SlotDied, SlotEvent, StepsNotLoaded

_PIECE = 1 << 18
_PIPE_BYTES = 1 << 20
_TICKETS = 1 << 32
_MAX_CRASH_BYTES = 4000

_decode = msgspec.msgpack.Decoder(FromChild).decode


class ProcessSlot:
    """Made, used and closed by one thread, which must live as long as the slot: the process dies with it."""

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
        self._tickets = 0
        self._out = bytearray(frame(setup))
        self._in = bytearray()
        self._writing = False
        self._gone = False
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
                # Where the system allows it, a batch of calls is written in one go.
                fcntl.fcntl(self._calls, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            fds = (calls_in, self._tickets_in, results_out, self._crash.fileno())
            self._process = subprocess.Popen(
                # -P: a `select.py` among the steps is no reason not to start.
                [sys.executable, "-P", "-m", "fairlead.worker.child", str(os.getpid()), *map(str, fds)],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,
            )
        except BaseException:
            # The pool will try again, and may be short of descriptors already.
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

    def hand(self, works: Sequence[Work]) -> None:
        if not self.pending:
            self.since = time.monotonic()
        first = self._tickets
        calls = [work.call((first + at) % _TICKETS) for at, work in enumerate(works)]
        self._tickets = (first + len(works)) % _TICKETS
        self.pending.extend(works)
        self._out += frame(calls)
        # Tickets after the calls: whoever takes one, has its call on the way.
        self._write()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._tickets_out, struct.pack(f"<{len(calls)}I", *[call.ticket for call in calls]))

    def accept(self, work: Work) -> bool:
        """It was taken off when its answer was read, so that a death a moment later is not blamed on it; it
        always counts.
        """
        return True

    def unbegun(self) -> int:
        left = array("i", [0])
        fcntl.ioctl(self._tickets_in, termios.FIONREAD, left)
        return min(len(self.pending), left[0] // TICKET.size)

    def recall(self) -> list[Work]:
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while ticket := os.read(self._tickets_in, TICKET.size * 4096):
                taken += len(ticket) // TICKET.size
        found = [self.pending.pop() for _ in range(taken)]
        found.reverse()
        return found

    def read(self) -> None:
        """Whatever it has written; called when there is something to read."""
        try:
            piece = os.read(self._results, _PIECE)
        except BlockingIOError:
            return
        if not piece:
            self._end("")
            return
        self._in += piece
        self._hear()

    def check(self) -> None:
        """A child of the step's own may hold the pipe open after its death."""
        if not self._gone and self._process.poll() is not None:
            self.read()
            if not self._gone:
                self._end("")

    def kill(self, how: str, reason: FailureReason = FailureReason.POISON_MESSAGE) -> None:
        self.reason = reason
        self._kill_group()
        self._end(how)

    def close(self) -> None:
        """It ends by itself when nobody can give it tickets any longer; if it does not, it is killed."""
        if self._gone:
            return
        self._let_go()
        if not self.ready:
            self._kill_group()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._kill_group()
            self._process.wait()
        self._crash.close()

    def _hear(self) -> None:
        for raw in take_frames(self._in):
            try:
                result = _decode(raw)
            except msgspec.MsgspecError:
                self.kill("it answered with something that is no answer")
                return
            if isinstance(result, ChildReady):
                if result.error:
                    self._post(StepsNotLoaded(self, result.step, result.error))
                else:
                    self.ready, self.since = True, time.monotonic()
            elif not self._answered(result):
                return

    def _answered(self, result: CallDone | CallFailed | BatchDone) -> bool:
        if not self.pending or self.pending[0].ticket != result.ticket:
            self.kill("it answered a call that it was not given")
            return False
        work = self.pending.popleft()
        self.since = time.monotonic()
        if isinstance(result, CallFailed) and result.spent:
            self.retiring = True
        self._post(CallAnswered(self, work, result))
        return True

    def _write(self) -> None:
        if self._gone:
            return  # its death was heard a moment ago, on the other pipe
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._out:
                del self._out[: os.write(self._calls, self._out)]
        wants = bool(self._out)
        if wants and not self._writing:
            self._selector.register(self._calls, selectors.EVENT_WRITE, self._write)
        elif self._writing and not wants:
            self._selector.unregister(self._calls)
        self._writing = wants

    def _end(self, how: str) -> None:
        """Its process is dead or dying: sort out what was begun."""
        if self._gone:
            return
        code = self._reap()
        # What it still wrote before it died counts: those calls are over.
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._results, _PIECE):
                self._in += piece
        self._gone = True
        self._hear()
        others = self.recall()
        begun = self.pending.popleft() if self.pending else None
        others = [*self.pending, *others]
        self.pending.clear()
        text = how or _how(code)
        crash = self._crash_text()
        self._let_go()
        self._crash.close()
        self._post(SlotDied(self, begun, others, f"{text}\n\n{crash}" if crash else text))

    def _reap(self) -> int:
        try:
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            # It closed its pipe, and goes on; whatever it does now, nobody hears of it.
            self._kill_group()
            return self._process.wait()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _crash_text(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            self._crash.seek(0)
            return cut_middle(
                self._crash.read(64 * 1024).decode("utf-8", "replace").strip(), _MAX_CRASH_BYTES
            )
        return ""

    def _let_go(self) -> None:
        self._gone = True
        self._selector.unregister(self._results)
        if self._writing:
            self._selector.unregister(self._calls)
            self._writing = False
        for fd in (self._calls, self._results, self._tickets_in, self._tickets_out):
            os.close(fd)


def _how(code: int) -> str:
    if code < 0:
        return f"its process was killed by {signal_name(-code)}"
    return f"its process ended with exit code {code} in the middle of the step"
