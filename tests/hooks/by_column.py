"""Lets a stand-in for `Hooks` decide about one message at a time."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.hooks import EnqueueDecision, OnEnqueueCall
from fairlead.model.message import unpack_headers


class AsksByColumn:
    """For a class whose `on_enqueue` takes calls, like that of `Hooks`."""

    def on_enqueue_columns(
        self, queue_id: int, queue: str, headers: Sequence[bytes], payload_sizes: Sequence[int]
    ) -> list[EnqueueDecision]:
        columns = zip(headers, payload_sizes, strict=True)
        calls = [OnEnqueueCall(unpack_headers(packed), size) for packed, size in columns]
        return self.on_enqueue(queue_id, queue, calls)  # type: ignore[attr-defined,no-any-return]
