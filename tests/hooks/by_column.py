"""For hooks of tests that decide about one message after the other."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.hooks import EnqueueDecision, OnEnqueueCall
from fairlead.model.message import unpack_headers


class AsksByColumn:
    """Its `on_enqueue` takes calls, as that of `Hooks`."""

    def on_enqueue_columns(
        self, queue_id: int, queue: str, headers: Sequence[bytes], payload_sizes: Sequence[int]
    ) -> list[EnqueueDecision]:
        columns = zip(headers, payload_sizes, strict=True)
        calls = [OnEnqueueCall(unpack_headers(packed), size) for packed, size in columns]
        return self.on_enqueue(queue_id, queue, calls)  # type: ignore[attr-defined,no-any-return]
