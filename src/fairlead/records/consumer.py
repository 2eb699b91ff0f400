"""The stored outcomes of a numbered claim's members. The consumer itself is a `ConsumerRecord`, and its
members are in leases.
"""

from __future__ import annotations

import msgspec

from fairlead.model.consumer import Recorded


class RecordedCall(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """The outcomes of one call. Under a part, they count only if the part is chosen."""

    part: str
    recorded: list[Recorded]


class ChosenParts(msgspec.Struct, frozen=True, array_like=True, tag="parts"):
    """The parts whose outcomes count."""

    parts: list[str]
