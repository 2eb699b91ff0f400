"""`staging.*` as one caller may use them.

A staged write belongs to the queues it writes to, not to the key that made it: were its token a key's own, a new key would publish
again what was published. To those who may not write to its queues it is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.broker.broker import Broker
from fairlead.errors import InvalidRequest, StagedChunkMissing
from fairlead.model.access import Right
from fairlead.model.durations import Duration
from fairlead.model.message import NewMessage
from fairlead.model.staging import Dead, PublishResult, StagedWrite, StageResult

if TYPE_CHECKING:
    from fairlead.server.guard import GuardedBroker


class GuardedStaging:
    """What is staged as dead takes the right to quarantine; all else the right to produce. To publish takes either."""

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
        if not self._is_own(token):
            raise InvalidRequest("token", "one that nobody else writes with", token)
        return self._staging.stage(token, chunk, queue, messages, ttl=ttl, skip_invalid=skip_invalid, dead=dead)

    def publish(self, token: str, chunks: Sequence[str]) -> PublishResult:
        if not self._is_own(token):
            raise StagedChunkMissing(token, str(chunks[0]) if isinstance(chunks, Sequence) and chunks else "")
        return self._staging.publish(token, chunks)

    def discard(self, token: str) -> int:
        queues = self._staging.queues_of(token)
        if not queues or not self._is_own(token):
            return 0
        with self._guard.writes_down("staging.discard", queues[0], token=token) as entry:
            dropped = entry.count = self._staging.discard(token)
        return dropped

    def list(self) -> list[StagedWrite]:
        self._guard.grants()
        return [write for write in self._staging.list() if any(map(self._guard.sees, write.queues))]

    def _is_own(self, token: str) -> bool:
        """May the caller write to all queues of that write? To one that has none yet, or none any longer, anybody may."""
        self._guard.grants()
        return all(
            self._guard.may(Right.PRODUCE, queue) or self._guard.may(Right.QUARANTINE, queue) for queue in self._staging.queues_of(token)
        )
