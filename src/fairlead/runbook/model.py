"""What a runbook says, whatever it was written in. Two runbooks that mean the same are equal.

Durations inside `options` are text in their shortest form, as `create_queue` reads them; everywhere else they
are whole milliseconds. Everything here is plain data and goes through JSON unharmed (`stored.py`), because
the runbook in force is kept by the engine and read by workers that never saw the file.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: Where the seed's own flags are; the other bits of a message's progress belong to the steps of its pipeline.
SEED_PROGRESS_BITS = (0, 1, 2, 15)
#: Progress is a positive number of 64 bits with a sign.
PROGRESS_BITS = 63
#: So many steps fit in beside those.
MAX_STEPS = PROGRESS_BITS - len(SEED_PROGRESS_BITS)
#: Items that a batch step takes at a time, unless it says otherwise, and at most.
BATCH_SIZE = 1000
MAX_BATCH_SIZE = 10_000


class QueueSpec(msgspec.Struct, frozen=True):
    """`options` is exactly what `create_queue` and `update_queue` take; hooks are in it as Lua source, not as
    file names.

    An external queue lives elsewhere: it has `list`, `take` and perhaps `poll_ms`, and no options.
    """

    name: str
    kind: Literal["persisted", "external"] = "persisted"
    vars: tuple[str, ...] = ()
    defaults: dict[str, Any] = {}
    options: dict[str, Any] = {}
    list: tuple[str, ...] | None = None
    take: tuple[str, ...] | None = None
    poll_ms: int | None = None
    dedupe: bool = True


class StepSpec(msgspec.Struct, frozen=True):
    """Either `run`, a Python callable as `module:function`, or `command`, an argument list that no shell ever
    sees.

    With `batch` the callable takes up to `batch_size` items at a time.
    """

    name: str
    run: str | None = None
    command: tuple[str, ...] | None = None
    timeout_ms: int | None = None
    stdin: Literal["json", "none"] = "json"
    env: dict[str, str] = {}
    batch: bool = False
    batch_size: int = BATCH_SIZE


class PipelineSpec(msgspec.Struct, frozen=True):
    """`bits` gives each step name its mask in a message's progress. Names of steps that are gone keep theirs,
    so that none is reused.
    """

    name: str
    steps: tuple[StepSpec, ...]
    bits: dict[str, int] = {}


class WorkerSpec(msgspec.Struct, frozen=True):
    """`queue` and `pipeline` are names within the runbook. `reasons` maps exception names to failure reasons."""

    name: str
    queue: str
    pipeline: str
    concurrency: int = 1
    engine: Literal["local", "spark"] = "local"
    on_stream_failure: Literal["wait", "continue"] = "wait"
    isolate: Literal["process", "thread"] = "process"
    memory_limit_bytes: int | None = None
    prefetch: int | None = None
    reasons: dict[str, str] = {}


class Runbook(msgspec.Struct, frozen=True):
    project: str | None = None
    queues: dict[str, QueueSpec] = {}
    pipelines: dict[str, PipelineSpec] = {}
    workers: dict[str, WorkerSpec] = {}


def full_name(project: str | None, name: str) -> str:
    """The name the engine knows a runbook's queue by."""
    return f"{project}/{name}" if project else name


def external_queues(runbook: Runbook) -> frozenset[str]:
    """The full names of its queues that live elsewhere."""
    external = [queue.name for queue in runbook.queues.values() if queue.kind == "external"]
    return frozenset([full_name(runbook.project, name) for name in external])
