"""The stored messages of a staged chunk, beside its `StagedChunk`: checked once, in parts of the size of a
chunk of messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.model.checks import MessageColumns
from fairlead.model.staging import Death
from fairlead.records.chunk import Columns


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """Messages by column, as they were given. Values that follow from the queue and the time are added at
    publication.

    `columns` has no ends of life and no dedup keys that live as long as their messages. The payloads are in
    pages under the number of the part, where they stay after the publication; `inline` has the payloads of a
    part that fits in one page. `deaths` has one entry for all messages, one for each, or none.
    """

    columns: Columns
    delays: list[int] | None
    dedup_keys: list[str] | None
    ttls: list[int] | None
    inline: Sequence[bytes] | None
    deaths: list[Death]

    @property
    def count(self) -> int:
        return len(self.columns.sizes)

    @property
    def sizes(self) -> Sequence[int]:
        return self.columns.sizes

    def given(self) -> MessageColumns:
        """The messages without their payloads."""
        columns, count = self.columns, self.count
        lane_at = bytes(count) if columns.lane_at is None else columns.lane_at
        keys = [lane[0] for lane in columns.lanes]
        throttle_keys = [lane[1:] for lane in columns.lanes]
        weights = columns.weights
        return MessageColumns(
            [b""] * count,
            [keys[at] for at in lane_at],
            [weights] * count if isinstance(weights, int) else weights,
            columns.headers,
            [throttle_keys[at] for at in lane_at] if any(throttle_keys) else None,
            columns.streams,
            self.delays,
            self.dedup_keys,
            self.ttls,
        )

    def death(self, at: int) -> Death:
        return self.deaths[at if len(self.deaths) > 1 else 0]
