"""Which step is next. The rules of a pipeline apart from running it; the same for every engine.

What is known about a message's steps is its carry: the name of each confirmed step with what it returned.
Progress bits say the same to people and policies. Names decide, because a pipeline may be edited between two
tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fairlead.model.limits import MAX_CARRY_BYTES
from fairlead.runbook.model import PROGRESS_BITS, SEED_PROGRESS_BITS, PipelineSpec, StepSpec

_BITS = [1 << bit for bit in range(PROGRESS_BITS) if bit not in SEED_PROGRESS_BITS]

NOTHING = b"null"

#: What each confirmed step returned, as JSON, by its name.
ConfirmedSteps = Mapping[str, bytes]


class Carry(msgspec.Struct, frozen=True):
    """As it is stored with the message. Values stay as they came: only the step that wants one reads it."""

    pipeline: str
    steps: dict[str, msgspec.Raw]


class CarryUnreadable(Exception):
    """The message says that steps of this pipeline are done, but not what they returned."""


class CarryTooLarge(Exception):
    """What the steps of one message return does not fit in what is kept with it."""


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A pipeline, ready to be asked about. `masks` has a bit of progress for each step; `max_rows` go into
    one call of some step.
    """

    name: str
    steps: tuple[StepSpec, ...]
    masks: tuple[int, ...]
    all_masks: int
    max_rows: int = 1

    @classmethod
    def of(cls, pipeline: PipelineSpec) -> PipelinePlan:
        bits = bits_of(pipeline)
        masks = tuple(bits[step.name] for step in pipeline.steps)
        max_rows = max((step.batch_size for step in pipeline.steps if step.batch), default=1)
        return cls(pipeline.name, pipeline.steps, masks, sum(masks), max_rows)

    def next_step(self, done: ConfirmedSteps) -> int:
        """The first step that is not confirmed; as many as there are when all of them are."""
        for index, step in enumerate(self.steps):
            if step.name not in done:
                return index
        return len(self.steps)

    def is_whole(self, done: ConfirmedSteps, last: str) -> bool:
        """Are all steps confirmed, once `last` is too?"""
        return all(step.name == last or step.name in done for step in self.steps)

    def progress(self, done: ConfirmedSteps) -> int:
        return sum(mask for step, mask in zip(self.steps, self.masks, strict=True) if step.name in done)


def bits_of(pipeline: PipelineSpec) -> dict[str, int]:
    """The masks given to step names, and for names that have none yet the lowest that are free; 0 when there
    is none left.
    """
    bits = {name: bit if bit in _BITS else 0 for name, bit in pipeline.bits.items()}
    taken = set(bits.values())
    free = (bit for bit in _BITS if bit not in taken)
    for step in pipeline.steps:
        if step.name not in bits:
            bits[step.name] = next(free, 0)
    return bits


_decode = msgspec.json.Decoder(Carry).decode
_encode = msgspec.json.Encoder().encode


def read_carry(pipeline: str, carry: bytes) -> dict[str, bytes]:
    """The steps of this pipeline that are confirmed. What another pipeline did is none of its business.

    Raises `CarryUnreadable` for something that no pipeline has written.
    """
    if not carry:
        return {}
    try:
        found = _decode(carry)
    except msgspec.MsgspecError as error:
        raise CarryUnreadable(
            f"expected its carry to be what a pipeline stores, got something else ({error})"
        ) from None
    return {name: bytes(value) for name, value in found.steps.items()} if found.pipeline == pipeline else {}


def dump_carry(pipeline: str, done: ConfirmedSteps) -> bytes:
    """Raises `CarryTooLarge`."""
    carry = _encode(Carry(pipeline, {name: msgspec.Raw(value) for name, value in done.items()}))
    if len(carry) > MAX_CARRY_BYTES:
        sizes = ", ".join(f"{name} {len(value)}" for name, value in done.items())
        raise CarryTooLarge(
            f"expected what the steps return to take at most {MAX_CARRY_BYTES} bytes as JSON, got {len(carry)} ({sizes})"
        )
    return carry
