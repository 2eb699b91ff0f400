"""The two threads that call the broker for a worker, so that its loop never waits for an answer.

One thread claims. The other one settles, looks at the queue when leases are to be extended, and releases
streams. One thread cannot carry both: a claim waits up to a second for a message, and the claim of an
external queue runs commands, while outcomes must leave at once. More threads gain nothing: the calls of the
second one are short, and while the broker cannot be reached, extensions and stream releases cannot go
anywhere either. Between two attempts to settle, the thread reads the queue: a task of Spark learns from the
answer that another process has taken over its slice, also while the broker refuses to record outcomes.

The threads need nothing of the broker but `do(request)`, which blocks in process, over the network and in a
task of Spark alike; an asyncio client would serve only one of the three.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal, NamedTuple

from fairlead.errors import FairleadError, InvalidRequest, Unavailable
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Settlement, SettleResult
from fairlead.request import Answer, Request
from fairlead.surface import Doer
from fairlead.verbs.claim import Claim
from fairlead.verbs.operate import ReleaseStream
from fairlead.verbs.queues import ListQueues
from fairlead.verbs.settle import Settle
from fairlead.worker.items import WorkItem

_log = logging.getLogger("fairlead.worker")

#: A settle call takes further requests until it has this many items.
_MAX_SETTLE_ITEMS = 5000
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_MIN_HEARTBEAT_S = 0.02
_MAX_HEARTBEAT_S = 5.0
#: The heartbeat period while the queue's visibility timeout is not known.
_UNKNOWN_HEARTBEAT_S = 1.0

#: Why something is settled; decides what its result means for the message.
Purpose = Literal[
    "start", "late start", "progress", "complete", "fail", "release", "release rest", "extend", "extend rest"
]


class SettleRequest(NamedTuple):
    settlement: Settlement
    purpose: Purpose
    item: WorkItem


class ClaimRequest(NamedTuple):
    limit: int
    max_per_stream: int
    wait: str | None


class Settled(NamedTuple):
    """Requests with their results, in the same order."""

    requests: list[SettleRequest]
    results: list[SettleResult]


class ClaimAnswered(NamedTuple):
    deliveries: list[Delivery]


class HeartbeatDue(NamedTuple):
    """A third of the queue's visibility timeout has passed: leases must be extended."""


class BrokerFailed(NamedTuple):
    """A call failed for good; its thread has ended."""

    error: Exception


BrokerEvent = Settled | ClaimAnswered | HeartbeatDue | BrokerFailed


class BrokerThreads:
    """Calls `target` in two threads of its own, which also call `post` with each event.

    `Unavailable` is retried without end: giving up before the leases expire would repeat work. After `hurry`
    or `close` it ends the thread instead.
    """

    def __init__(self, target: Doer, queue: str, consumer: str, post: Callable[[BrokerEvent], None]) -> None:
        self._target = target
        self._queue = queue
        self._consumer = consumer
        self._post = post
        self._claims: SimpleQueue[ClaimRequest | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._unsettled: deque[list[SettleRequest]] = deque()
        self._streams: deque[str] = deque()
        #: The queue's ordering when it was last read; "" until then. The last one counts while the broker is
        #: away, so that a strict queue stays strict.
        self._ordering = ""
        self._hurry = threading.Event()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"fairlead-{name}", daemon=True)
            for name, work in (("settle", self._settle_all), ("claim", self._claim_all))
        ]
        for thread in self._threads:
            thread.start()

    def settle(self, requests: list[SettleRequest]) -> None:
        """Settle in one call, together with what else is waiting when the call before it has returned."""
        with self._changed:
            self._unsettled.append(requests)
            self._changed.notify()

    def claim(self, request: ClaimRequest) -> None:
        self._claims.put(request)

    def release_stream(self, stream: str) -> None:
        """Let later messages of the stream pass the one that waits at its head, unless the queue is strict."""
        with self._changed:
            self._streams.append(stream)
            self._changed.notify()

    def hurry(self) -> None:
        """Retry nothing from now on."""
        self._hurry.set()

    def close(self, timeout_s: float) -> None:
        """Settle what is waiting, once, and end the threads. A thread that takes longer is left behind."""
        self._hurry.set()
        self._claims.put(None)
        with self._changed:
            self._closed = True
            self._changed.notify()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._post(BrokerFailed(error))

    def _claim_all(self) -> None:
        while (asked := self._claims.get()) is not None:
            claim = Claim(
                self._queue,
                asked.limit,
                asked.wait,
                self._consumer,
                max_per_stream=asked.max_per_stream,
                started=False,
            )
            self._post(ClaimAnswered(self._retrying(claim)))

    def _settle_all(self) -> None:
        heartbeat_at = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work, max(0.0, heartbeat_at - time.monotonic()))
                requests = self._take_unsettled()
                streams = list(self._streams)
                self._streams.clear()
                if self._closed and not requests:
                    return
            if requests:
                settle = Settle([request.settlement for request in requests])
                self._post(Settled(requests, self._retrying(settle, self._try_read_queue)))
            for stream in streams:
                self._release_stream(stream)
            if time.monotonic() >= heartbeat_at and not self._closed:
                heartbeat_at = time.monotonic() + self._heartbeat()

    def _has_work(self) -> bool:
        return bool(self._unsettled or self._streams or self._closed)

    def _take_unsettled(self) -> list[SettleRequest]:
        found: list[SettleRequest] = []
        while self._unsettled and len(found) < _MAX_SETTLE_ITEMS:
            # What was given together stays together: a failure and the release of the run behind it.
            found += self._unsettled.popleft()
        return found

    def _release_stream(self, stream: str) -> None:
        try:
            if not self._ordering:
                self._read_queue()
            if self._ordering and self._ordering != "strict":
                self._target.do(ReleaseStream(self._queue, stream))
        except InvalidRequest:
            return  # no message of the stream is live any more
        except FairleadError as error:
            # The later messages wait for their turn, as they do without a worker that lets them pass.
            fields = {"queue": self._queue, "error": error.code}
            _log.warning("could not release a stream", extra={"fields": fields})

    def _heartbeat(self) -> float:
        """Post `HeartbeatDue`. Returns the seconds until the next one."""
        period_s = self._try_read_queue()
        self._post(HeartbeatDue())  # the leases must be extended even if the queue could not be read
        return period_s

    def _try_read_queue(self) -> float:
        with contextlib.suppress(FairleadError):
            return self._read_queue()
        return _UNKNOWN_HEARTBEAT_S

    def _read_queue(self) -> float:
        """Read the queue's ordering. Returns a third of its visibility timeout, which may change at any time."""
        for queue in self._target.do(ListQueues(self._queue)):
            if queue.name == self._queue:
                self._ordering = queue.config.ordering
                third_s = queue.config.visibility_timeout_ms / 3000
                return min(_MAX_HEARTBEAT_S, max(_MIN_HEARTBEAT_S, third_s))
        return _UNKNOWN_HEARTBEAT_S

    def _retrying(
        self, request: Request[Answer], between_attempts: Callable[[], object] = lambda: None
    ) -> Answer:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._target.do(request)
            except Unavailable as error:
                if self._hurry.is_set():
                    raise
                fields = {"verb": request.verb_name, "error": error.code}
                _log.warning("the broker cannot be reached, trying again", extra={"fields": fields})
                between_attempts()
                self._hurry.wait(pause_s)
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
