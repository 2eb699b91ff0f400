"""What is stored of a staged chunk beside its `StagedChunk`: its messages, checked once, in parts of the size of a
chunk of messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.model.checks import CheckedMessage
from fairlead.model.staging import Death


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """`messages` without their payloads, whose sizes are `sizes`. The payloads are in pages under the number of the
    part, where they stay when it is published; `inline` has the payloads of a part that fits in one page.
    `deaths` has one for all messages, one for each, or none.
    """

    messages: list[CheckedMessage]
    sizes: list[int]
    inline: Sequence[bytes] | None
    deaths: list[Death]

    def death(self, at: int) -> Death:
        return self.deaths[at if len(self.deaths) > 1 else 0]
