"""What is stored of a numbered claim beside its lease: what was said about its members. The consumer itself is a
`ConsumerRecord`.
"""

from __future__ import annotations

import msgspec

from fairlead.model.consumer import Recorded


class RecordedCall(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """What one call recorded; under a part it counts only if the part is chosen."""

    part: str
    recorded: list[Recorded]


class ChosenParts(msgspec.Struct, frozen=True, array_like=True, tag="parts"):
    """The parts whose outcomes count."""

    parts: list[str]
