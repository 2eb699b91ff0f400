"""`staging.*` as one caller may use them.

A staged write belongs to its queue, not to the key that made it: if its token were the key's own, a new key
would publish again what was published. The rights on the queue are checked before anything is looked up, so
no answer depends on the writes of queues that the caller does not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.broker.broker import Broker
from fairlead.errors import Forbidden
from fairlead.model.access import Right
from fairlead.model.durations import Duration
from fairlead.model.message import NewMessage
from fairlead.model.names import check_queue_name
from fairlead.model.staging import Dead, PublishResult, StagedWrite, StageResult

if TYPE_CHECKING:
    from fairlead.server.guard import GuardedBroker


class GuardedStaging:
    """What is staged as dead letters takes the right to quarantine, all else the right to produce."""

    def __init__(self, guard: GuardedBroker, broker: Broker) -> None:
        self._guard = guard
        self._staging = broker.staging

    def stage(
        self,
        token: str,
        chunk: str,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        ttl: Duration = "1d",
        skip_invalid: bool = False,
        dead: Dead | Sequence[Dead] | None = None,
    ) -> StageResult:
        self._guard.need(Right.PRODUCE if dead is None else Right.QUARANTINE, queue)
        return self._staging.stage(
            token, chunk, queue, messages, ttl=ttl, skip_invalid=skip_invalid, dead=dead
        )

    def publish(self, token: str, queue: str, chunks: Sequence[str]) -> PublishResult:
        self._need(token, queue)
        return self._staging.publish(token, queue, chunks)

    def discard(self, token: str, queue: str) -> int:
        self._need(token, queue)
        with self._guard.writes_down("staging.discard", queue, token=token) as entry:
            dropped = entry.count = self._staging.discard(token, queue)
        return dropped

    def list(self) -> list[StagedWrite]:
        self._guard.grants()
        return self._staging.list_of(self._guard.sees)

    def _need(self, token: str, queue: str) -> None:
        """The right to write to the queue, and for each kind of message that the write has, the right to that
        kind.
        """
        check_queue_name(queue)
        if not (self._guard.may(Right.PRODUCE, queue) or self._guard.may(Right.QUARANTINE, queue)):
            raise Forbidden(Right.PRODUCE, queue)
        for dead in sorted(self._staging.kinds_of(token, queue)):
            self._guard.need(Right.QUARANTINE if dead else Right.PRODUCE, queue)
