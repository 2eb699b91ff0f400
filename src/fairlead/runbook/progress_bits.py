"""Assigns bits of a message's progress to the steps of a pipeline. A bit is never reused for another step.

With a reused bit, a message that was in progress before the pipeline changed would skip a step that never
ran.
"""

from __future__ import annotations

import msgspec

from fairlead.errors import RunbookInvalid
from fairlead.runbook.model import PROGRESS_BITS, SEED_PROGRESS_BITS, PipelineSpec, Runbook

_FREE = tuple(1 << bit for bit in range(PROGRESS_BITS) if bit not in SEED_PROGRESS_BITS)


def with_progress_bits(runbook: Runbook, in_force: Runbook | None = None) -> Runbook:
    """Give each step of a runbook a bit. Steps of the runbook in force keep theirs, also removed steps.

    Raises `RunbookInvalid` when a pipeline has had more step names than there are bits.
    """
    before = in_force.pipelines if in_force is not None else {}
    pipelines = {name: _assign(pipeline, before.get(name)) for name, pipeline in runbook.pipelines.items()}
    return msgspec.structs.replace(runbook, pipelines=pipelines)


def _assign(pipeline: PipelineSpec, before: PipelineSpec | None) -> PipelineSpec:
    bits = dict(before.bits) if before is not None else {}
    free = iter(mask for mask in _FREE if mask not in bits.values())
    for step in pipeline.steps:
        if step.name not in bits:
            mask = next(free, None)
            if mask is None:
                what = f"its steps have had {len(bits)} names, so no progress bit is left for {step.name!r}; give the pipeline a new name"
                raise RunbookInvalid([("runbook", None, f"pipeline.{pipeline.name}", what)])
            bits[step.name] = mask
    return msgspec.structs.replace(pipeline, bits=bits)
