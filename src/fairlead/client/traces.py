"""Traces of a client, for `connect(tracing=True)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from fairlead.model.delivery import Delivery
from fairlead.model.message import NewMessage

if TYPE_CHECKING:
    from fairlead.wire.tracing import Tracing


class Traces:
    """Does nothing without a `Tracing`."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self._tracing = tracing

    @property
    def are_on(self) -> bool:
        return self._tracing is not None

    def enqueuing(
        self, queue: str, messages: Sequence[NewMessage]
    ) -> AbstractContextManager[Sequence[NewMessage]]:
        """A span around an enqueue, and the messages with the span in their headers. An argument that is no
        list of messages stays unchanged, so that the later checks refuse it.
        """
        if self._tracing is None or not _are_messages(messages):
            return nullcontext(messages)
        return self._tracing.enqueue_span(queue, messages)

    def carried(
        self, enqueues: list[tuple[str, Sequence[NewMessage]]]
    ) -> list[tuple[str, Sequence[NewMessage]]]:
        """The messages of an exchange, by queue, with the current span in their headers."""
        tracing = self._tracing
        if tracing is None or not all(_are_messages(messages) for _, messages in enqueues):
            return enqueues
        return [
            (queue, [msgspec.structs.replace(one, headers=tracing.inject(one.headers)) for one in messages])
            for queue, messages in enqueues
        ]

    def processing(self, delivery: Delivery) -> AbstractContextManager[None]:
        return nullcontext() if self._tracing is None else self._tracing.process_span(delivery)


def _are_messages(messages: object) -> bool:
    return isinstance(messages, (list, tuple)) and all(
        isinstance(message, NewMessage) and isinstance(message.headers, (Mapping, type(None)))
        for message in messages
    )


def make_traces(tracing: bool) -> Traces:
    if not tracing:
        return Traces()
    from fairlead.wire.tracing import ambient

    return Traces(ambient())
