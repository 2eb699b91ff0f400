"""The values of a runbook, whatever its syntax. Runbooks with the same meaning are equal.

Durations inside `options` are text in their shortest form, as `create_queue` reads them; all others are whole
milliseconds. Everything is plain data that survives a round trip through JSON, because the engine stores the
runbook in force, and workers read it without the file.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fairlead.errors import InvalidRequest

#: The bits of a message's progress with a fixed meaning; the other bits belong to the steps of its pipeline.
SEED_PROGRESS_BITS = (0, 1, 2, 15)
#: Progress is stored as a positive number of 64 bits with a sign.
PROGRESS_BITS = 63
#: The number of free bits.
MAX_STEPS = PROGRESS_BITS - len(SEED_PROGRESS_BITS)
#: Items in a call of a batch step: the default and the maximum.
BATCH_SIZE = 1000
MAX_BATCH_SIZE = 10_000


class QueueSpec(msgspec.Struct, frozen=True):
    """A queue. `options` has exactly what `create_queue` and `update_queue` take; hooks are Lua source, not
    file names.

    An external queue is kept by another system: it has `list`, `take` and perhaps `poll_ms`, and no options.
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
    """A step: either `run`, a Python callable as `module:function`, or `command`, an argument list that runs
    without a shell.

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
    """A pipeline. `bits` gives each step name its mask in a message's progress. Names of removed steps keep
    their masks, so that none is reused.
    """

    name: str
    steps: tuple[StepSpec, ...]
    bits: dict[str, int] = {}


class WorkerSpec(msgspec.Struct, frozen=True):
    """A worker. `queue` and `pipeline` are names of the runbook; `reasons` maps exception names to failure
    reasons.
    """

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
    """The name of a runbook's queue in the engine."""
    return f"{project}/{name}" if project else name


def external_queues(runbook: Runbook) -> frozenset[str]:
    """The full names of the external queues."""
    external = [queue.name for queue in runbook.queues.values() if queue.kind == "external"]
    return frozenset([full_name(runbook.project, name) for name in external])


def dump_runbook(runbook: Runbook) -> str:
    """Write a runbook as text, which the broker stores and workers read.

    Every field is written out, so that a default that changes later does not change the runbook in force.
    Equal runbooks give equal text.
    """
    return msgspec.json.encode(runbook, order="sorted").decode()


def load_runbook(text: str) -> Runbook:
    """Read the text of `dump_runbook`. Raises `InvalidRequest` for any other text."""
    try:
        return msgspec.json.decode(text, type=Runbook)
    except msgspec.MsgspecError as error:
        raise InvalidRequest("runbook", f"the text that dump_runbook wrote ({error})", text) from None


#: The options of the queue that holds taken items of an external queue: see
#: docs/decisions/0012-external-queues.md. A completed item is kept for longer than a list can still be used
#: that began before its completion.
TAKEN_OPTIONS: dict[str, Any] = {
    "dedup": "kept",
    "retain_completed": "5m",
    "retry": "none",
    "dead_retention": "7d",
    "visibility_timeout": "5m",
    "ordering": "none",
}
