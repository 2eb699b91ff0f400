"""`staging.*` as one caller may use them.

A staged write belongs to the queues it writes to, not to the key that made it: were its token a key's own, a new key would publish
again what was published. To those who may not write to its queues it is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fairlead.broker.broker import Broker
from fairlead.errors import Forbidden, InvalidRequest, StagedChunkMissing
from fairlead.model.access import Right
from fairlead.model.durations import Duration
from fairlead.model.message import NewMessage
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
        if not self._finds(token):
            raise InvalidRequest("token", "one that nobody else writes with", token)
        return self._staging.stage(token, chunk, queue, messages, ttl=ttl, skip_invalid=skip_invalid, dead=dead)

    def publish(self, token: str, chunks: Sequence[str]) -> PublishResult:
        if not self._finds(token):
            raise StagedChunkMissing(token, str(chunks[0]) if isinstance(chunks, Sequence) and chunks else "")
        return self._staging.publish(token, chunks)

    def discard(self, token: str) -> int:
        if not self._finds(token):
            return 0
        queues = [queue for queue, _ in self._staging.queues_of(token)]
        with self._guard.writes_down("staging.discard", queues[0] if queues else "", token=token) as entry:
            dropped = entry.count = self._staging.discard(token)
        return dropped

    def list(self) -> list[StagedWrite]:
        """Those of which one sees all queues."""
        self._guard.grants()
        return [write for write in self._staging.list() if all(map(self._guard.sees, write.queues))]

    def _finds(self, token: str) -> bool:
        """False when it goes to a queue that the caller does not see; `Forbidden` when it does, and may not write there."""
        self._guard.grants()
        places = self._staging.queues_of(token)
        if not all(self._guard.sees(queue) for queue, _ in places):
            return False
        for queue, dead in places:
            rights = {None: (Right.PRODUCE, Right.QUARANTINE), False: (Right.PRODUCE,), True: (Right.QUARANTINE,)}[dead]
            if not any(self._guard.may(right, queue) for right in rights):
                raise Forbidden(rights[0], queue)
        return True
