"""The threads that talk to the broker for a worker, a verb each: settle, claim, look after leases, let a
stream by.

They wait, so that the loop never does. While one settle is under way, everything said meanwhile is gathered,
and goes together in the next.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from fairlead.errors import FairleadError, InvalidRequest, Unavailable
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Settlement, SettleResult
from fairlead.worker.items import Item

_log = logging.getLogger("fairlead.worker")

_MOST_AT_ONCE = 5000
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_SHORTEST_PERIOD_S = 0.02
_UNKNOWN_PERIOD_S = 1.0
_LONGEST_PERIOD_S = 5.0


class Target(Protocol):
    """What a worker needs of a `Broker` or a `Client`."""

    def claim(
        self, queue: str, *, limit: int, wait: str | None, consumer: str, max_per_stream: int, started: bool
    ) -> list[Delivery]: ...

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]: ...

    def queues(self, prefix: str = "") -> list[Any]: ...

    def stats(self, queue: str) -> Any: ...

    def release_stream(self, queue: str, stream: str) -> bool: ...

    def goodbye(self, consumer: str) -> int: ...


class Said(NamedTuple):
    """Something for the broker. `kind` says what its answer means for the item."""

    settlement: Settlement
    kind: str
    item: Item


class Told(NamedTuple):
    said: list[Said]
    results: list[SettleResult]


class Claimed(NamedTuple):
    deliveries: list[Delivery]


class QueueSeen(NamedTuple):
    """The queue was looked at; comes often enough to keep leases alive by."""


class Broken(NamedTuple):
    """There is no going on."""

    error: Exception


class Ask(NamedTuple):
    limit: int
    max_per_stream: int
    wait: str | None


class Voice:
    """`post` gets `Told`, `Claimed`, `QueueSeen` and `Broken`, in these threads."""

    def __init__(self, target: Target, queue: str, consumer: str, post: Callable[[Any], None]) -> None:
        self._target = target
        self._queue = queue
        self._consumer = consumer
        self._post = post
        self._line: SimpleQueue[list[Said] | None] = SimpleQueue()
        self._asks: SimpleQueue[Ask | None] = SimpleQueue()
        self._streams: SimpleQueue[str | None] = SimpleQueue()
        #: As it was last seen; "" until then. It stays so while the broker is away: a strict queue is strict
        #: meanwhile, too.
        self._ordering = ""
        self._hurry = threading.Event()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"fairlead-{name}", daemon=True)
            for name, work in (
                ("settle", self._settle_all),
                ("claim", self._claim_all),
                ("beat", self._beat),
                ("let-by", self._let_by_all),
            )
        ]
        for thread in self._threads:
            thread.start()

    def say(self, said: list[Said]) -> None:
        self._line.put(said)

    def ask(self, ask: Ask) -> None:
        self._asks.put(ask)

    def let_by(self, stream: str) -> None:
        """Those behind a message that waits may pass it, unless the queue is strict."""
        self._streams.put(stream)

    def hurry(self) -> None:
        """From now on nothing is tried again."""
        self._hurry.set()

    def close(self, patience_s: float) -> None:
        self._hurry.set()
        self._closed.set()
        for line in (self._line, self._asks, self._streams):
            line.put(None)
        ends = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._post(Broken(error))

    def _settle_all(self) -> None:
        while (said := self._line.get()) is not None:
            over = False
            while len(said) < _MOST_AT_ONCE:
                try:
                    more = self._line.get_nowait()
                except Empty:
                    break
                if more is None:
                    over = True
                    break
                said = said + more
            items = [one.settlement for one in said]
            self._post(Told(said, self._patiently(lambda items=items: self._target.settle(items), "settle")))  # type: ignore[misc]
            if over:
                return

    def _claim_all(self) -> None:
        while (ask := self._asks.get()) is not None:
            self._post(Claimed(self._patiently(lambda ask=ask: self._claim(ask), "claim")))  # type: ignore[misc]

    def _claim(self, ask: Ask) -> list[Delivery]:
        return self._target.claim(
            self._queue,
            limit=ask.limit,
            wait=ask.wait,
            consumer=self._consumer,
            max_per_stream=ask.max_per_stream,
            started=False,
        )

    def _let_by_all(self) -> None:
        while (stream := self._streams.get()) is not None:
            try:
                if not self._ordering:
                    self._look()
                if self._ordering and self._ordering != "strict":
                    self._target.release_stream(self._queue, stream)
            except InvalidRequest:
                # No message of the stream is live any more: there is nothing to let by.
                continue
            except FairleadError as error:
                # What is behind waits for its turn then, as it would without us.
                _log.warning(
                    "a stream could not be let by",
                    extra={"fields": {"queue": self._queue, "error": error.code}},
                )

    def _beat(self) -> None:
        """A third of a lease, as the queue gives it now; it may be changed at any time."""
        period_s = 0.0
        while not self._closed.wait(period_s):
            period_s = _UNKNOWN_PERIOD_S
            with contextlib.suppress(FairleadError):
                period_s = self._look()
            self._post(QueueSeen())

    def _look(self) -> float:
        """How long until the next beat."""
        for queue in self._target.queues(self._queue):
            if queue.name == self._queue:
                self._ordering = queue.config.ordering
                return float(
                    min(_LONGEST_PERIOD_S, max(_SHORTEST_PERIOD_S, queue.config.visibility_timeout_ms / 3000))
                )
        return _UNKNOWN_PERIOD_S

    def _patiently(self, call: Callable[[], Any], verb: str) -> Any:
        """What cannot be reached now may be there later; whoever holds leases must not give up before they
        are over.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except Unavailable as error:
                if self._hurry.is_set():
                    raise
                _log.warning(
                    "the broker cannot be reached, trying again",
                    extra={"fields": {"verb": verb, "error": error.code}},
                )
                self._hurry.wait(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
