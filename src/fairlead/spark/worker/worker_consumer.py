"""The durable consumer of a Spark worker, as its driver uses it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from fairlead.errors import Rejected, Unavailable
from fairlead.spark.heartbeats import start_heartbeats
from fairlead.spark.worker.slice_worker import retry_unavailable

if TYPE_CHECKING:
    from fairlead.model.consumer import CloseResult, ConsumerInfo, NumberedClaim
    from fairlead.surface import ConsumersGroup

_log = logging.getLogger("fairlead.spark")

T = TypeVar("T")


class WorkerConsumer:
    """Repeats its calls while the broker cannot be reached; once `is_stopping`, they raise `Unavailable`.

    After another run registered the same consumer, every call raises `StaleConsumer`.
    """

    def __init__(
        self, consumers: ConsumersGroup, name: str, queue: str, *, ttl: str, is_stopping: Callable[[], bool]
    ) -> None:
        self.name = name
        self.queue = queue
        #: The error of a heartbeat that the broker refused.
        self.refused: Rejected | None = None
        self._consumers = consumers
        self._ttl = ttl
        self._is_stopping = is_stopping
        self._info: ConsumerInfo | None = None
        #: A heartbeat between a registration and its answer would have a generation that is already stale.
        self._generation_lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def info(self) -> ConsumerInfo:
        assert self._info is not None
        return self._info

    def register(self) -> None:
        """Take the consumer over, with its open claim. Earlier generations are refused from now on."""
        with self._generation_lock:
            self._info = self._call(
                lambda: self._consumers.register(
                    self.name, self.queue, ttl=self._ttl, default_outcome="release"
                )
            )

    def refresh(self) -> None:
        """Read the consumer's state anew. Raises `StaleConsumer` if another run took it over."""
        self._info = self._call(self._heartbeat)

    def start_heartbeats(self) -> None:
        def send() -> None:
            with self._generation_lock:
                self._heartbeat()

        def refuse(refused: Rejected) -> None:
            self.refused = refused

        start_heartbeats(self.name, self._ttl, send, self._ended, refuse)

    def end(self) -> None:
        """Stop the heartbeats. The open claim stays for the next run."""
        self._ended.set()

    def claim(self, number: int, *, limit: int, wait: str | None, max_per_stream: int) -> NumberedClaim:
        return self._call(
            lambda: self._consumers.claim(
                self.name,
                self.queue,
                self.info.generation,
                number,
                limit=limit,
                wait=wait,
                max_per_stream=max_per_stream,
            )
        )

    def close(self, number: int) -> CloseResult:
        closed = self._call(
            lambda: self._consumers.close(self.name, self.queue, self.info.generation, number)
        )
        self._info = msgspec.structs.replace(self.info, open=0, last_closed=closed.last_closed)
        return closed

    def _heartbeat(self) -> ConsumerInfo:
        return self._consumers.heartbeat(self.name, self.queue, self.info.generation)

    def _call(self, call: Callable[[], T]) -> T:
        def warn(error: Unavailable) -> None:
            _log.warning(
                "the broker cannot be reached; the call is repeated",
                extra={"fields": {"consumer": self.name, "error": error.code}},
            )

        return retry_unavailable(call, lambda: not self._is_stopping(), warn)
