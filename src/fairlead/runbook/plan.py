"""Compares a runbook with the state of a broker, as values. Pure: does not reach a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fairlead.model.names import is_dead_letter_name, taken_name
from fairlead.model.queue import QueueConfig, read_queue_options
from fairlead.model.views import QueueInfo
from fairlead.runbook.keys import OPTION_KEYS
from fairlead.runbook.model import TAKEN_OPTIONS, PipelineSpec, QueueSpec, Runbook, full_name
from fairlead.runbook.normal_form import pipeline_form, queue_form, worker_form
from fairlead.runbook.policies import options_of
from fairlead.runbook.progress_bits import with_progress_bits

Action = Literal["create", "change", "keep", "orphan", "remove"]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A changed field; None means that the field is absent."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One queue, pipeline or worker. `name` is the engine's name of a queue, else the runbook's name.

    The action `orphan` is for a queue of the engine that the runbook no longer defines: it stays unchanged.
    `remove` is for a pipeline, a worker or an external queue, which exist only in the runbook. `options` has
    exactly the options to send to the engine.
    """

    kind: Literal["queue", "pipeline", "worker"]
    name: str
    action: Action
    changes: tuple[FieldChange, ...] = ()
    options: dict[str, Any] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunbookPlan:
    """A plan. `runbook` is the runbook to store, in which steps have the progress bits that they had before."""

    runbook: Runbook
    entries: tuple[PlanEntry, ...]
    stored_changes: bool

    @property
    def nothing_to_do(self) -> bool:
        return not self.stored_changes and not self.of("create", "change", "remove")

    def of(self, *actions: Action) -> list[PlanEntry]:
        return [entry for entry in self.entries if entry.action in actions]


def make_plan(runbook: Runbook, queues: Sequence[QueueInfo], in_force: Runbook | None) -> RunbookPlan:
    """Compare a runbook with the queues of the engine, at least those of the project, and the stored runbook
    of the same project.
    """
    runbook = with_progress_bits(runbook, in_force)
    running = {info.name: info for info in queues if not is_dead_letter_name(info.name)}
    entries = [
        *(_queue_entry(runbook, queue, running, in_force) for _, queue in sorted(runbook.queues.items())),
        *_taken_queues(runbook, running),
        *_orphans(runbook, running, in_force),
        *_external_no_more(runbook, in_force),
        *_entries_of("pipeline", runbook.pipelines, in_force.pipelines if in_force else {}, _pipeline_fields),
        *_entries_of("worker", runbook.workers, in_force.workers if in_force else {}, worker_form),
    ]
    return RunbookPlan(runbook, tuple(entries), runbook != in_force)


def _queue_entry(
    runbook: Runbook, queue: QueueSpec, running: Mapping[str, QueueInfo], in_force: Runbook | None
) -> PlanEntry:
    name = full_name(runbook.project, queue.name)
    before = in_force.queues.get(queue.name) if in_force else None
    old_fields = _fields_beside_options(before) if before else {}
    spec_changes = tuple(_differences(old_fields, _fields_beside_options(queue)))
    if queue.kind == "external":
        return PlanEntry("queue", name, _action(before is not None, spec_changes), spec_changes)
    wanted = options_of(read_queue_options(queue.options, QueueConfig()))
    if name not in running:
        return PlanEntry("queue", name, "create", _new_fields(queue, wanted), queue.options)
    has = options_of(running[name].config)
    options = {option: value for option, value in wanted.items() if value != has[option]}
    old_options = {option: has[option] for option in options}
    changes = (*_differences(old_options, options), *spec_changes)
    return PlanEntry("queue", name, _action(True, changes), changes, options)


def _action(exists: bool, changes: Sequence[FieldChange]) -> Action:
    if not exists:
        return "create"
    return "change" if changes else "keep"


def _new_fields(queue: QueueSpec, wanted: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """The fields of a new queue, without options at their defaults that the runbook does not have."""
    default = options_of(QueueConfig())
    shown = {
        option: value
        for option, value in wanted.items()
        if option in queue.options or value != default[option]
    }
    return tuple(_differences({}, {**_fields_beside_options(queue), **shown}))


def _taken_queues(runbook: Runbook, running: Mapping[str, QueueInfo]) -> Iterator[PlanEntry]:
    """The queues for taken items of external queues, so that workers need not create them.

    An existing queue is kept, because an operator may have changed it.
    """
    for _, queue in sorted(runbook.queues.items()):
        if queue.kind == "external":
            name = taken_name(full_name(runbook.project, queue.name))
            if name in running:
                yield PlanEntry("queue", name, "keep")
            else:
                yield PlanEntry(
                    "queue", name, "create", tuple(_differences({}, TAKEN_OPTIONS)), TAKEN_OPTIONS
                )


def _fields_beside_options(queue: QueueSpec) -> dict[str, Any]:
    """The fields of a queue that only the runbook has; the engine does not know them."""
    form = queue_form(queue)
    found = {
        key: value for key, value in form.items() if key not in OPTION_KEYS and key not in ("hooks", "dedup")
    }
    return found if queue.dedupe or queue.kind == "external" else {**found, "dedup_by_data": False}


def _orphans(
    runbook: Runbook, running: Mapping[str, QueueInfo], in_force: Runbook | None
) -> Iterator[PlanEntry]:
    """The queues that the runbook does not define, in its project or from the runbook in force.

    Without a project, only queues of the runbook in force are known to belong to the runbook.
    """
    defined = {_engine_name(runbook, queue) for queue in runbook.queues.values()}
    ours = {full_name(runbook.project, name) for name in in_force.queues} if in_force else set()
    for name in sorted(running):
        in_project = bool(runbook.project) and name.startswith(f"{runbook.project}/")
        if name not in defined and (in_project or name in ours):
            yield PlanEntry("queue", name, "orphan", note=f"fairlead queue delete {name}")


def _engine_name(runbook: Runbook, queue: QueueSpec) -> str:
    """The engine's queue of a persisted queue, or the queue for taken items of an external one."""
    name = full_name(runbook.project, queue.name)
    return taken_name(name) if queue.kind == "external" else name


def _external_no_more(runbook: Runbook, in_force: Runbook | None) -> Iterator[PlanEntry]:
    for name, queue in sorted(in_force.queues.items() if in_force else ()):
        if queue.kind == "external" and name not in runbook.queues:
            yield PlanEntry("queue", full_name(runbook.project, name), "remove")


def _entries_of(
    kind: Any, wanted: Mapping[str, Any], before: Mapping[str, Any], fields: Any
) -> Iterator[PlanEntry]:
    for name, spec in sorted(wanted.items()):
        old_fields = fields(before[name]) if name in before else {}
        changes = tuple(_differences(old_fields, fields(spec)))
        yield PlanEntry(kind, name, _action(name in before, changes), changes)
    for name in sorted(set(before) - set(wanted)):
        yield PlanEntry(kind, name, "remove")


def _pipeline_fields(pipeline: PipelineSpec) -> dict[str, Any]:
    """The steps by name, so that a step inserted in front is not a change of all steps."""
    form = pipeline_form(pipeline)["steps"]
    steps = {step["name"]: {key: value for key, value in step.items() if key != "name"} for step in form}
    return {"steps": [step["name"] for step in form], "step": steps}


def _differences(old: Any, new: Any, path: str = "") -> Iterator[FieldChange]:
    """Compare field by field, down to values that are not tables."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        before, after = (value if isinstance(value, Mapping) else {} for value in (old, new))
        for key in [*after, *(key for key in before if key not in after)]:
            here = f"{path}.{key}" if path else str(key)
            yield from _differences(before.get(key), after.get(key), here)
    elif _plain(old) != _plain(new):
        yield FieldChange(path, _plain(old), _plain(new))


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
