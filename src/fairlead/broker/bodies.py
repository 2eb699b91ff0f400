"""A bounded cache of recent messages, so that one claimed soon after its enqueue is not read back."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.message import Message

#: What a cached message costs beside its bytes, measured.
_OVERHEAD = 400


class BodyCache:
    """Takes what fits and refuses the rest: in a queue the oldest are wanted first, so nothing is evicted for
    a newcomer.

    Used under the engine lock.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._messages: dict[bytes, Message] = {}

    def add(self, messages: Iterable[Message]) -> None:
        used, limit, held = self._used, self._limit, self._messages
        for message in messages:
            used += len(message.payload) + len(message.headers) + _OVERHEAD
            if used > limit:
                used -= len(message.payload) + len(message.headers) + _OVERHEAD
                break
            held[message.id] = message
        self._used = used

    def find(self, message_id: bytes) -> Message | None:
        return self._messages.get(message_id)

    def drop(self, ids: Iterable[bytes]) -> None:
        used, pop = self._used, self._messages.pop
        for message_id in ids:
            message = pop(message_id, None)
            if message is not None:
                used -= len(message.payload) + len(message.headers) + _OVERHEAD
        self._used = used

    def clear(self) -> None:
        self._messages.clear()
        self._used = 0
