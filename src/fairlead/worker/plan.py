"""Which step of a pipeline is next: the same rules for every engine, apart from running steps.

The carry of a message is the name of each confirmed step with the value that the step returned. Progress bits
repeat this for people and policies. Names decide and not positions, because a pipeline may be edited between
two attempts.
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
    """The stored form. Values stay encoded until a step reads them."""

    pipeline: str
    steps: dict[str, msgspec.Raw]


class CarryUnreadable(Exception):
    """The carry of a message was not written by a pipeline, so its confirmed steps are unknown."""


class CarryTooLarge(Exception):
    """The values that the steps of one message returned exceed the limit of a carry."""


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A pipeline with the progress bit of each step. `max_rows`: the largest batch size of its steps."""

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
        """The position of the first step that is not confirmed; the number of steps if all are."""
        for index, step in enumerate(self.steps):
            if step.name not in done:
                return index
        return len(self.steps)

    def is_whole(self, done: ConfirmedSteps, last: str) -> bool:
        """Whether all steps are confirmed once `last` is."""
        return all(step.name == last or step.name in done for step in self.steps)

    def progress(self, done: ConfirmedSteps) -> int:
        return sum(mask for step, mask in zip(self.steps, self.masks, strict=True) if step.name in done)


def bits_of(pipeline: PipelineSpec) -> dict[str, int]:
    """The progress mask of each step name: the recorded one, else the lowest free bit, 0 when none is free."""
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
    """The confirmed steps of this pipeline; none if another pipeline wrote the carry. Raises
    `CarryUnreadable`.
    """
    if not carry:
        return {}
    try:
        found = _decode(carry)
    except msgspec.MsgspecError as error:
        text = f"expected the carry to be what a pipeline stores, got something else ({error})"
        raise CarryUnreadable(text) from None
    if found.pipeline != pipeline:
        return {}
    return {name: bytes(value) for name, value in found.steps.items()}


def dump_carry(pipeline: str, done: ConfirmedSteps) -> bytes:
    """Raises `CarryTooLarge`."""
    carry = _encode(Carry(pipeline, {name: msgspec.Raw(value) for name, value in done.items()}))
    if len(carry) > MAX_CARRY_BYTES:
        sizes = ", ".join(f"{name} {len(value)}" for name, value in done.items())
        raise CarryTooLarge(
            f"expected what the steps return to take at most {MAX_CARRY_BYTES} bytes as JSON, got {len(carry)} ({sizes})"
        )
    return carry
