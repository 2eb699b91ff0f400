"""The context that a step gets beside its item, and the exceptions that say more than a failure."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.model.durations import Duration
from fairlead.model.ids import show_id
from fairlead.model.message import unpack_headers
from fairlead.worker.plan import read_carry
from fairlead.worker.protocol import BatchCall, StepCall


class Step:
    """The optional second argument of a step: `def charge(item, step): ...`.

    Read-only. `value` is what the previous step returned, `values` what all confirmed steps returned, by
    name; both were encoded as JSON and decoded again.
    """

    __slots__ = ("_call", "_values", "name", "pipeline", "previous")

    def __init__(self, name: str, pipeline: str, previous: str, call: StepCall) -> None:
        self.name = name
        self.pipeline = pipeline
        self.previous = previous
        self._call = call
        self._values: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """The id of the message. The same in every attempt, so usable as an idempotency key."""
        return show_id(self._call.raw_id)

    @property
    def queue(self) -> str:
        return self._call.queue

    @property
    def stream(self) -> str | None:
        return self._call.stream or None

    @property
    def headers(self) -> dict[str, str]:
        return unpack_headers(self._call.headers)

    @property
    def payload(self) -> bytes:
        """The payload as bytes; the item is its decoded JSON."""
        return self._call.payload

    @property
    def attempts(self) -> int:
        """Failed attempts before this one: 0 the first time."""
        return self._call.attempts

    @property
    def deliveries(self) -> int:
        return self._call.deliveries

    @property
    def enqueued_at(self) -> int:
        """Epoch milliseconds."""
        return self._call.enqueued_ms

    @property
    def value(self) -> Any:
        return self.values.get(self.previous)

    @property
    def values(self) -> dict[str, Any]:
        if self._values is None:
            self._values = {
                name: msgspec.json.decode(value)
                for name, value in read_carry(self.pipeline, self._call.carry).items()
            }
        return self._values

    def __repr__(self) -> str:
        # Without the item, which may be large or secret.
        return f"Step({self.name!r}, queue={self.queue!r}, id={self.id!r}, attempts={self.attempts})"


class BatchStep:
    """The optional second argument of a batch step: `def enrich(items, step): ...`.

    Read-only. `ids`, `streams`, `headers`, `attempts` and `values` are lists in the order of the rows.
    `values` is what the previous step returned.
    """

    __slots__ = ("_call", "name", "pipeline")

    def __init__(self, name: str, pipeline: str, call: BatchCall) -> None:
        self.name = name
        self.pipeline = pipeline
        self._call = call

    @property
    def queue(self) -> str:
        return self._call.queue

    @property
    def ids(self) -> list[str]:
        """The ids of the messages. The same in every attempt, so usable as idempotency keys."""
        return [show_id(raw_id) for raw_id in self._call.raw_ids]

    @property
    def streams(self) -> list[str | None]:
        return [stream or None for stream in self._call.streams]

    @property
    def headers(self) -> list[dict[str, str]]:
        return [unpack_headers(headers) for headers in self._call.headers]

    @property
    def attempts(self) -> list[int]:
        """Failed attempts before this one: 0 the first time."""
        return list(self._call.attempts)

    @property
    def values(self) -> list[Any]:
        return [msgspec.json.decode(value) for value in self._call.values] or [None] * len(self)

    def __len__(self) -> int:
        return len(self._call.raw_ids)

    def __repr__(self) -> str:
        return f"BatchStep({self.name!r}, queue={self.queue!r}, rows={len(self)})"


class Throttled(Exception):
    """Raise this in a step whose provider accepts no calls now.

    No consumer receives a message of the throttle key `key` for the time `retry_after`; then probes find out
    whether the provider works again. The message is delivered again, and no attempt is counted. `key` must be
    a throttle key of the message. Raised by a batch step, it applies to all rows of the call.
    """

    def __init__(self, message: str = "", *, retry_after: Duration, key: str) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.key = key


class StepFailed(Exception):
    """Raise this in a step to say what its failure means; a batch step may return one in place of a row.

    `retry_in` and `dead` override the queue's retry policy, but not its `max_attempts`. Without either, the
    policy for `reason` decides.
    """

    def __init__(
        self,
        message: str = "",
        *,
        reason: str = "handler_exception",
        retry_in: Duration | None = None,
        dead: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.retry_in = retry_in
        self.dead = dead
