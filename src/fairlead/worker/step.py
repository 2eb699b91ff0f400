"""What a step is given beside its item, and how it says more than an exception can."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.model.durations import Duration
from fairlead.model.ids import show_id
from fairlead.model.message import unpack_headers
from fairlead.worker.plan import read_carry
from fairlead.worker.protocol import BatchCall, StepCall


class Step:
    """The second argument of a step, for those that take one: `def charge(item, step): ...`.

    Read-only. `value` is what the step before returned, `values` what all confirmed steps returned, by name;
    both have been through JSON.
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
        """Of the message. The same in every try, so it makes a good idempotency key."""
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
        """The bytes of which the item is the JSON."""
        return self._call.payload

    @property
    def attempts(self) -> int:
        """Failed tries before this one: 0 the first time."""
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
        # No item: it may be large, and it may be secret.
        return f"Step({self.name!r}, queue={self.queue!r}, id={self.id!r}, attempts={self.attempts})"


class BatchStep:
    """The second argument of a batch step, for those that take one: `def enrich(items, step): ...`.

    Read-only. What it says of rows are lists, in the order of the rows. `values` is what the step before
    returned.
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
        """The same in every try, so they make good idempotency keys."""
        return [show_id(raw_id) for raw_id in self._call.raw_ids]

    @property
    def streams(self) -> list[str | None]:
        return [stream or None for stream in self._call.streams]

    @property
    def headers(self) -> list[dict[str, str]]:
        return [unpack_headers(headers) for headers in self._call.headers]

    @property
    def attempts(self) -> list[int]:
        """Failed tries before this one: 0 the first time."""
        return list(self._call.attempts)

    @property
    def values(self) -> list[Any]:
        return [msgspec.json.decode(value) for value in self._call.values] or [None] * len(self)

    def __len__(self) -> int:
        return len(self._call.raw_ids)

    def __repr__(self) -> str:
        return f"BatchStep({self.name!r}, queue={self.queue!r}, rows={len(self)})"


class Throttled(Exception):
    """Raised by a step whose provider takes no calls now: nobody gets a message of the throttle key `key` for the time
    `retry_after`, and then probes find out whether it does again. The message comes back, and no attempt is counted.

    `key` is one of the message's throttle keys. A batch step that raises it says so of all of its rows.
    """

    def __init__(self, message: str = "", *, retry_after: Duration, key: str) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.key = key


class StepFailed(Exception):
    """Raised by a step that knows what its failure means; a batch step returns one in the place of the row.

    `retry_in` and `dead` beat the queue's policy, but not its ceiling `max_attempts`. Without either, the
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
