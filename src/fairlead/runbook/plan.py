"""What applying a runbook would do: a comparison of values. Nothing here touches a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fairlead.model.names import is_dead_letter_name, taken_name
from fairlead.model.queue import QueueConfig, read_queue_options
from fairlead.model.views import QueueInfo
from fairlead.runbook.keys import OPTION_KEYS
from fairlead.runbook.model import PipelineSpec, QueueSpec, Runbook, full_name
from fairlead.runbook.normal_form import pipeline_form, queue_form, worker_form
from fairlead.runbook.policies import options_of
from fairlead.runbook.progress_bits import with_progress_bits
from fairlead.runbook.taken import TAKEN_OPTIONS

Action = Literal["create", "change", "keep", "orphan", "remove"]


@dataclass(frozen=True, slots=True)
class FieldChange:
    """None is "not there"."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One queue, pipeline or worker. `name` is the engine's for a queue, the runbook's for the others.

    `orphan` is a queue of the engine that is no longer defined: it is left as it is. `remove` is what only a
    runbook knows and goes with it: a pipeline, a worker, an external queue. `options` is what the engine has
    to be told, and only that.
    """

    kind: Literal["queue", "pipeline", "worker"]
    name: str
    action: Action
    changes: tuple[FieldChange, ...] = ()
    options: dict[str, Any] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunbookPlan:
    """`runbook` is the one to store: with the progress bits that steps had before."""

    runbook: Runbook
    entries: tuple[PlanEntry, ...]
    stored_changes: bool

    @property
    def nothing_to_do(self) -> bool:
        return not self.stored_changes and not self.of("create", "change", "remove")

    def of(self, *actions: Action) -> list[PlanEntry]:
        return [entry for entry in self.entries if entry.action in actions]


def make_plan(runbook: Runbook, queues: Sequence[QueueInfo], in_force: Runbook | None) -> RunbookPlan:
    """`queues` is what the engine has (of the project is enough), `in_force` the stored runbook of the same
    project.
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
    spec_changes = list(_differences(old_fields, _fields_beside_options(queue)))
    if queue.kind == "external":
        return PlanEntry(
            "queue",
            name,
            "create" if before is None else "change" if spec_changes else "keep",
            tuple(spec_changes),
        )
    wanted = options_of(read_queue_options(queue.options, QueueConfig()))
    if name not in running:
        default = options_of(QueueConfig())
        shown = {
            option: value
            for option, value in wanted.items()
            if option in queue.options or value != default[option]
        }
        made = _differences({}, {**_fields_beside_options(queue), **shown})
        return PlanEntry("queue", name, "create", tuple(made), queue.options)
    has = options_of(running[name].config)
    options = {option: value for option, value in wanted.items() if value != has[option]}
    changes = [*_differences({option: has[option] for option in options}, options), *spec_changes]
    return PlanEntry("queue", name, "change" if changes else "keep", tuple(changes), options)


def _taken_queues(runbook: Runbook, running: Mapping[str, QueueInfo]) -> Iterator[PlanEntry]:
    """Where the items of external queues go, so that workers need not make it. One that is there may have
    been changed by hand.
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
    """What the engine does not know of a queue: it is kept with the runbook alone."""
    form = queue_form(queue)
    found = {
        key: value for key, value in form.items() if key not in OPTION_KEYS and key not in ("hooks", "dedup")
    }
    return found if queue.dedupe or queue.kind == "external" else {**found, "dedup_by_data": False}


def _orphans(
    runbook: Runbook, running: Mapping[str, QueueInfo], in_force: Runbook | None
) -> Iterator[PlanEntry]:
    """In the project, or made by the runbook in force; of queues in no project only the latter are known to
    be ours.
    """
    defined = {
        full_name(runbook.project, queue.name)
        for queue in runbook.queues.values()
        if queue.kind == "persisted"
    }
    defined |= {
        taken_name(full_name(runbook.project, queue.name))
        for queue in runbook.queues.values()
        if queue.kind == "external"
    }
    once = {full_name(runbook.project, name) for name in in_force.queues} if in_force else set()
    for name in sorted(running):
        in_project = bool(runbook.project) and name.startswith(f"{runbook.project}/")
        if name not in defined and (in_project or name in once):
            yield PlanEntry("queue", name, "orphan", note=f"fairlead queue delete {name}")


def _external_no_more(runbook: Runbook, in_force: Runbook | None) -> Iterator[PlanEntry]:
    for name, queue in sorted(in_force.queues.items() if in_force else ()):
        if queue.kind == "external" and name not in runbook.queues:
            yield PlanEntry("queue", full_name(runbook.project, name), "remove")


def _entries_of(
    kind: Any, wanted: Mapping[str, Any], before: Mapping[str, Any], fields: Any
) -> Iterator[PlanEntry]:
    for name, spec in sorted(wanted.items()):
        changes = tuple(_differences(fields(before[name]) if name in before else {}, fields(spec)))
        yield PlanEntry(
            kind, name, "create" if name not in before else "change" if changes else "keep", changes
        )
    for name in sorted(set(before) - set(wanted)):
        yield PlanEntry(kind, name, "remove")


def _pipeline_fields(pipeline: PipelineSpec) -> dict[str, Any]:
    """By the names of the steps, so that one put in front does not look like a change of all."""
    form = pipeline_form(pipeline)["steps"]
    steps = {step["name"]: {key: value for key, value in step.items() if key != "name"} for step in form}
    return {"steps": [step["name"] for step in form], "step": steps}


def _differences(old: Any, new: Any, path: str = "") -> Iterator[FieldChange]:
    """Field by field, down to values that are no tables."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        before, after = (value if isinstance(value, Mapping) else {} for value in (old, new))
        for key in [*after, *(key for key in before if key not in after)]:
            yield from _differences(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    elif _plain(old) != _plain(new):
        yield FieldChange(path, _plain(old), _plain(new))


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
