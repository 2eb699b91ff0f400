"""What a durable consumer was told and what it said, kept as plainly as can be: the oracle of the law of
consumers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.model.delivery import Delivery

#: Part, message id, and the word: "complete", "fail", "dead", "release", "start".
Said = tuple[str, str, str]


@dataclass
class Holding:
    """What a consumer was told of the claim it has in hand."""

    number: int
    rows: list[tuple[str, bytes]]
    deliveries: list[Delivery]
    #: In the order recorded.
    said: list[Said] = field(default_factory=list)
    chosen: set[str] = field(default_factory=set)
    #: (slice, slices) in the order in which they were taken up.
    slices_begun: list[tuple[int, int]] = field(default_factory=list)
    #: The progress told of a message under this claim.
    progress: dict[str, int] = field(default_factory=dict)

    def outcomes(self) -> dict[str, str]:
        return {
            message_id: word
            for part, message_id, word in self.said
            if part in self.chosen | {""} and word != "start"
        }

    def begun(self) -> set[str]:
        """Started, and without an outcome that counts, said before or after."""
        return {message_id for _, message_id, word in self.said if word == "start"} - self.outcomes().keys()

    def left(self) -> list[str]:
        """What has no outcome, and has nobody before it in its stream that failed or was given back."""
        outcomes, stopped, left = self.outcomes(), set[str | None](), list[str]()
        for delivery in self.deliveries:
            word = outcomes.get(delivery.id)
            if word is None and (not delivery.stream or delivery.stream not in stopped):
                left.append(delivery.id)
            elif word in ("fail", "dead", "release"):
                stopped.add(delivery.stream)
        return left

    def had_begun(self, slice: int, slices: int) -> bool:
        """The same slice of the same cut; of any other cut, something overlaps it."""
        return (slice, slices) in self.slices_begun or any(cut != slices for _, cut in self.slices_begun)


@dataclass
class Consumer:
    generation: int
    seen_ms: int
    default_outcome: str
    last_closed: int = 0
    lost: int = 0
    stale: list[int] = field(default_factory=list)
    holding: Holding | None = None
    #: A claim was begun that nobody was told of.
    begun: bool = False


class Told:
    """Progress and carry of a message, as whoever claims it next must find them."""

    def __init__(self) -> None:
        self.progress = 0
        self.carry = b""

    def extend(self, holding: Holding, message_id: str, progress: int, carry: bytes | None) -> None:
        """Progress grows. One who tells less than was told in this claim before is behind the times."""
        before = holding.progress.get(message_id, 0)
        if progress and progress | before == before and progress != before:
            return
        holding.progress[message_id] = before | progress
        self.progress |= progress
        if carry is not None:
            self.carry = carry
