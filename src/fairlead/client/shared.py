"""A connection that threads share: commands that come while others are under way are sent together, as the
next ones.

There is no thread in between. A thread that finds nothing under way becomes the leader: it sends its own
command and reads replies for all that wait. Commands of other threads are queued meanwhile. When the leader
has its reply, the next waiting thread leads, sends all queued commands with one system call, and so on. So a
lone thread has no overhead, and many threads share the cost.

A caller that gives up leaves its place in the line, and its reply is dropped. A connection that received
nothing for `timeout` while replies are due counts as dead, and every caller that waits for it gets an error.
Commands that were not sent are sent on the next connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from fairlead.client.connection import BlockingConnection, NoAnswerInTime
from fairlead.client.outage import ConnectionBroken
from fairlead.errors import FairleadError

#: The most bytes that are sent together. A server starts no more commands of a connection before it has
#: answered some.
_MAX_BYTES = 4 * 1024 * 1024
_MAX_COMMANDS = 500


class PendingCommand:
    """One command, and its reply or error."""

    __slots__ = ("_gate", "command", "ends_s", "error", "has_left", "is_over", "leads", "reply")

    def __init__(self, command: bytes, ends_s: float, *, leads: bool) -> None:
        self.command = command
        self.ends_s = ends_s
        self.reply: Any = None
        self.error: Exception | None = None
        self.is_over = False
        self.leads = leads
        #: The caller has given up.
        self.has_left = False
        if not leads:
            # A bare lock wakes a thread several times faster than an Event.
            self._gate = threading.Lock()
            self._gate.acquire()

    def wait(self) -> bool:
        """True when the command is over, or its thread must lead; False when the time was over before."""
        left_s = self.ends_s - time.monotonic()
        return self._gate.acquire(timeout=min(max(0.0, left_s), threading.TIMEOUT_MAX))

    def lead(self) -> None:
        self.leads = True
        self._gate.release()

    def finish(self, reply: Any, error: Exception | None = None) -> None:
        self.reply, self.error, self.is_over = reply, error, True
        if not self.leads and not self.has_left:
            self._gate.release()


class SharedConnection:
    """`connect` opens a connection within the given number of seconds."""

    def __init__(
        self,
        connect: Callable[[float], BlockingConnection],
        forget: Callable[[BlockingConnection], None],
        timeout_s: float,
    ) -> None:
        self._connect = connect
        self._forget = forget
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._queued: deque[PendingCommand] = deque()
        self._has_leader = False
        # Only the leader uses the following attributes.
        self._connection: BlockingConnection | None = None
        self._unanswered: deque[PendingCommand] = deque()
        self._sent_s = 0.0

    def call(self, command: bytes, within_s: float) -> Any:
        """The reply. Raises `ConnectionBroken` and the errors of `connect`."""
        return self.wait(self.queue(command, within_s))

    def queue(self, command: bytes, within_s: float) -> PendingCommand:
        """Queue a command behind the others; the caller must then `wait`."""
        ends_s = time.monotonic() + within_s
        with self._lock:
            pending = PendingCommand(command, ends_s, leads=not self._has_leader)
            self._queued.append(pending)
            self._has_leader = True
        return pending

    def close(self) -> None:
        """Close the connection, unless a thread is reading: that thread closes the connection itself."""
        with self._lock:
            if not self._has_leader:
                self._break("the client was closed")

    def wait(self, pending: PendingCommand) -> Any:
        try:
            if not pending.leads:
                self._wait_in_line(pending)
            if pending.leads:
                self._lead(pending)
        except BaseException:
            self._leave(pending)
            raise
        if pending.error is not None:
            raise pending.error
        return pending.reply

    def _wait_in_line(self, pending: PendingCommand) -> None:
        """Wait until the command is over, or its thread must lead."""
        if pending.wait() or pending.is_over:
            return
        was_sent = self._leave(pending)
        if not pending.is_over:
            raise NoAnswerInTime(sent=was_sent)

    def _leave(self, pending: PendingCommand) -> bool:
        """Give up the command. Returns whether it was sent."""
        with self._lock:
            was_queued = pending in self._queued
            if was_queued:
                self._queued.remove(pending)
            pending.has_left = True
            if pending.leads:
                # The leadership was handed to a caller that has left, so hand it on.
                self._hand_over(pending)
        return not was_queued

    # The leader

    def _lead(self, own: PendingCommand) -> None:
        try:
            while not own.is_over:
                if self._unanswered:
                    self._read(own)
                else:
                    self._send_queued(own)
        except FairleadError as refused:
            own.finish(None, refused)
        except BaseException:
            # Interrupted at an unknown point, so the connection is unusable.
            self._break("the thread that used the connection was interrupted")
            raise
        with self._lock:
            self._hand_over(own)

    def _send_queued(self, own: PendingCommand) -> None:
        try:
            connection = self._find_usable(own)
        except ConnectionBroken as broken:
            # The other queued commands would fail in the same way.
            for pending in self._take_queued(_MAX_COMMANDS):
                pending.finish(None, broken.for_another())
            return
        except FairleadError:
            with self._lock:
                self._queued.remove(own)
            raise
        now_s = time.monotonic()
        left_s = min(own.ends_s - now_s, self._timeout_s)
        # A leader with little time left must not begin what it cannot end: it sends its own command alone.
        taken = self._take_queued(_MAX_COMMANDS if left_s > self._timeout_s / 4 else 1)
        self._sent_s = now_s
        self._unanswered.extend(taken)
        try:
            data = taken[0].command if len(taken) == 1 else b"".join([one.command for one in taken])
            connection.send(data, left_s)
        except ConnectionBroken as broken:
            # The end of the last command was not sent, so that command was not carried out.
            self._unanswered.pop().finish(None, broken.for_another())
            self._break(str(broken))

    def _take_queued(self, most: int) -> list[PendingCommand]:
        taken: list[PendingCommand] = []
        size = 0
        with self._lock:
            while self._queued and len(taken) < most:
                size += len(self._queued[0].command)
                if taken and size > _MAX_BYTES:
                    break
                taken.append(self._queued.popleft())
        return taken

    def _find_usable(self, own: PendingCommand) -> BlockingConnection:
        if self._connection is not None and self._connection.is_stale():
            self._break("the server closed the connection")
        if self._connection is None:
            self._connection = self._connect(own.ends_s - time.monotonic())
        return self._connection

    def _read(self, own: PendingCommand) -> None:
        connection = self._connection
        assert connection is not None
        dead_s = max(self._sent_s, connection.heard_s) + self._timeout_s
        try:
            replies = connection.receive(min(own.ends_s, dead_s) - time.monotonic())
        except NoAnswerInTime as late:
            now_s = time.monotonic()
            if now_s >= dead_s:
                self._break(str(late))
            elif now_s >= own.ends_s:
                # The time of the leader's own command is over; the others may still be answered.
                own.has_left = True
                own.finish(None, late)
            return
        except ConnectionBroken as broken:
            self._break(str(broken))
            return
        for reply in replies:
            if not self._unanswered:
                self._break("the server answered what nobody asked")
                return
            self._unanswered.popleft().finish(reply)

    def _break(self, what: str) -> None:
        """Close the connection; every command that was sent fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._forget(connection)
        while self._unanswered:
            self._unanswered.popleft().finish(None, ConnectionBroken(what, sent=True))

    def _hand_over(self, leader: PendingCommand) -> None:
        """Make the first caller that waits for a reply the leader, else the first whose command is queued.
        Called under the lock.
        """
        leader.leads = False
        following = next((one for one in self._unanswered if not one.has_left), None)
        if following is None and self._queued:
            following = self._queued[0]
        if following is None:
            self._has_leader = False
        else:
            following.lead()
