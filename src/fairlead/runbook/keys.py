"""Every key a runbook may have, in one table: the checker reads by it, the schema for editors and the
reference page derive from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairlead.model.failure import FailureReason
from fairlead.model.limits import MAX_LEASE_MS, MIN_LEASE_MS
from fairlead.runbook.kinds import (
    EXCEPTION,
    FIELD,
    PART,
    CallablePath,
    Choice,
    Duration,
    Flag,
    JsonValue,
    KeySpec,
    Kind,
    ListOf,
    MapOf,
    Schema,
    Size,
    TableOf,
    Text,
    WholeNumber,
    refuse,
)
from fairlead.runbook.model import BATCH_SIZE, MAX_BATCH_SIZE, MAX_STEPS
from fairlead.runbook.policies import Policy
from fairlead.runbook.source import Node, Problems, shown, subpath, suggestion

_MIB = 1 << 20
_COUNT = WholeNumber(0, 1 << 50)
_REASON = Choice(tuple(reason.word for reason in FailureReason))
_REASON_NAME = Text("a failure reason: " + ", ".join(_REASON.options), "|".join(_REASON.options))
_COMMAND = ListOf(
    Text("text without a NUL"),
    'a program and its arguments as a list, such as ["./mail.sh", "{customer}"]; no shell reads it',
    at_least=1,
)
_VARIABLE = Text("the name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]*", 200)


_DEDUP_WORDS = ("live", "kept", "none")


@dataclass(frozen=True)
class Dedup:
    """Read into "none", "live", "kept" or milliseconds."""

    words: str = '"live", "kept", "none" or a window such as "5m"'

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if isinstance(node.value, str) and node.value in _DEDUP_WORDS:
            return node.value
        if not isinstance(node.value, str):
            return refuse(node, path, problems, self.words)
        return Duration(low_ms=1, words=self.words).read(node, path, problems)

    def schema(self) -> Schema:
        return {"anyOf": [{"enum": list(_DEDUP_WORDS)}, Duration().schema()]}


_BREAKER = TableOf(
    {
        "failures": KeySpec(WholeNumber(1, 10_000), "so many failures of one reason", required=True),
        "within": KeySpec(Duration(low_ms=1), "within this time", required=True),
        "pause": KeySpec(Duration(low_ms=1), "make more of them wait so long", required=True),
    },
    'a table such as { failures = 50, within = "1m", pause = "5m" }',
)

HOOK_KEYS = {
    "on_enqueue": KeySpec(
        Text("a Lua file, or the text of a Lua script"),
        "assigns key, weight, throttle keys and stream of a new item",
    ),
    "on_failure": KeySpec(
        Text("a Lua file, or the text of a Lua script"), "decides between retry and dead letter"
    ),
}

_ITEM_KEYS = {
    "vars": KeySpec(
        ListOf(FIELD, "a list of field names", unique=True), "fields an item must have", "none: anything goes"
    ),
    "defaults": KeySpec(
        MapOf(FIELD, JsonValue(), "a table of values by field"),
        "values of `vars` for items that come without them",
        "none",
    ),
    "dedup": KeySpec(
        Dedup(),
        "when equal data is one item: while the first is live, or still kept after it, within a window, or never",
        '`"live"`',
    ),
}

#: The options of the engine's queues that a runbook names as the engine does.
OPTION_KEYS = {
    "retry": KeySpec(
        Policy(),
        "what follows a failure",
        '`"none"`: the first failure kills; with a hook `on_failure`: `"immediate"`',
    ),
    "retry_in_stream": KeySpec(Policy(), "the policy for messages of a stream", "as `retry`"),
    "retry_on": KeySpec(
        MapOf(_REASON_NAME, Policy(), "a table of policies by failure reason"),
        "a policy per failure reason, before `retry`",
        "none",
    ),
    "visibility_timeout": KeySpec(
        Duration(MIN_LEASE_MS, MAX_LEASE_MS),
        "how long a worker holds an item without a sign of life",
        '`"30s"`',
    ),
    "failure_breaker": KeySpec(_BREAKER, "failures of one reason that pile up make more wait", "off"),
    "max_attempts": KeySpec(_COUNT, "hard ceiling: dead on this failure, whatever a policy says", "off"),
    "max_deliveries": KeySpec(_COUNT, "dead instead of one more delivery", "off"),
    "max_messages": KeySpec(_COUNT, "bound on items in the queue", "off"),
    "max_bytes": KeySpec(_COUNT, "bound on their bytes", "off"),
    "max_unsettled_per_consumer": KeySpec(_COUNT, "how many items one worker may hold", "off"),
    "max_unsettled_per_key": KeySpec(
        _COUNT, "how many items of one fairness key may be out at a time", "off"
    ),
    "poison_after": KeySpec(_COUNT, "attempts from which a live item is reported as poison", "10"),
    "quantum": KeySpec(WholeNumber(1, 100_000), "items a key of weight 1 gets per turn", "1"),
    "ttl": KeySpec(Duration(), "time to live of an item that nobody holds", "off"),
    "expired_to_dead": KeySpec(
        Flag(), "an item past its time to live becomes a dead letter instead of being dropped", "`false`"
    ),
    "dead_retention": KeySpec(Duration(), "how long a dead letter is kept", "for ever"),
    "retain_completed": KeySpec(
        Duration(), 'how long a completed item stays visible; `"0s"`: not at all', '`"12h"`'
    ),
    "ordering": KeySpec(Choice(("release", "strict", "none")), "how streams order", '`"release"`'),
}

_LIST = KeySpec(_COMMAND, "prints the items as a JSON array", required=True)
_TAKE = KeySpec(
    _COMMAND,
    "runs before an item is worked, with its fields as `{field}`; if it fails, the item is left alone",
    required=True,
)
_POLL = KeySpec(Duration(low_ms=100), "how often `list` runs", "only when a worker starts or is woken")
_TYPE = KeySpec(
    Choice(("persisted", "external")),
    "`persisted`: kept by fairlead. `external`: kept elsewhere, seen through `list` and `take`",
    '`"persisted"`',
)

_NOT_EXTERNAL = (
    "only for persisted queues: what becomes of the items of an external queue is decided where they live"
)
_NOT_PERSISTED = 'only for external queues; add type = "external", or remove it'
_HOOKS = KeySpec(
    TableOf(HOOK_KEYS, 'a table such as { on_enqueue = "hooks/orders.lua" }'),
    "Lua scripts of the queue",
    "none",
)
_PERSISTED_ONLY = {**_ITEM_KEYS, **OPTION_KEYS, "hooks": _HOOKS}
_EXTERNAL_ONLY = {"list": _LIST, "take": _TAKE, "poll": _POLL}
_SLIPS = {name: f"not here; write hooks = {{ {name} = ... }}" for name in HOOK_KEYS}

PERSISTED = TableOf(
    {"type": _TYPE, **_PERSISTED_ONLY}, elsewhere={**dict.fromkeys(_EXTERNAL_ONLY, _NOT_PERSISTED), **_SLIPS}
)
EXTERNAL = TableOf(
    {"type": _TYPE, **_EXTERNAL_ONLY}, elsewhere={**dict.fromkeys([*_PERSISTED_ONLY, *_SLIPS], _NOT_EXTERNAL)}
)


@dataclass(frozen=True)
class QueueTable:
    words: str = "a table with the keys of a queue"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        if not isinstance(node.value, dict):
            return refuse(node, path, problems, self.words)
        kind = node.value.get("type")
        return (EXTERNAL if kind is not None and kind.value == "external" else PERSISTED).read(
            node, path, problems
        )

    def schema(self) -> Schema:
        is_external = {"properties": {"type": {"const": "external"}}, "required": ["type"]}
        return {"type": "object", "if": is_external, "then": EXTERNAL.schema(), "else": PERSISTED.schema()}


_STEP_KEYS = {
    "run": KeySpec(CallablePath(), "a Python callable; either this or `command`"),
    "command": KeySpec(
        _COMMAND, "a program and its arguments, with fields of the item as `{field}`; no shell reads them"
    ),
    "timeout": KeySpec(
        Duration(low_ms=1), "after so long the step is stopped and has failed; for a batch: the call", "none"
    ),
    "batch": KeySpec(
        Flag(), "the callable takes many items at a time, and says how each of them fared", "`false`"
    ),
    "batch_size": KeySpec(
        WholeNumber(1, MAX_BATCH_SIZE),
        "how many items at a time at most, with `batch = true`",
        str(BATCH_SIZE),
    ),
    "stdin": KeySpec(
        Choice(("json", "none")), "what a command reads: the item as JSON, or nothing", '`"json"`'
    ),
    "env": KeySpec(
        MapOf(_VARIABLE, Text("text"), "a table of texts by variable"),
        "more environment for a command; fields as `{field}`",
        "none",
    ),
}
_ONLY_WITH = {"stdin": "command", "env": "command", "batch": "run", "batch_size": "batch"}
_BECAUSE = {
    "batch": "a command takes one item at a time",
    "batch_size": "batch = true makes it a step that takes many items at a time",
}


@dataclass(frozen=True)
class StepTable:
    """A step with its name inside, or under its name in a map."""

    table: TableOf
    words: str = "a table with the keys of a step"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        found = self.table.read(node, path, problems)
        if found is not None and ("run" in found) == ("command" in found):
            both = "run" in found
            problems.error(node, path, f"expected either run or command, got {'both' if both else 'neither'}")
        if found is not None and "batch_size" in found and found.get("batch") is False:
            problems.error(
                node.value["batch_size"],
                subpath(path, "batch_size"),
                "expected batch = true beside it, or neither of the two",
            )
        return found

    def schema(self) -> Schema:
        found = {**self.table.schema(), "oneOf": [{"required": ["run"]}, {"required": ["command"]}]}
        return {
            **found,
            "if": {"required": ["batch_size"]},
            "then": {"properties": {"batch": {"const": True}}},
        }


NAMED_STEP = StepTable(
    TableOf(
        {"name": KeySpec(PART, "its name, once in a pipeline", required=True), **_STEP_KEYS},
        only_with=_ONLY_WITH,
        because=_BECAUSE,
    )
)
_STEP = StepTable(TableOf(_STEP_KEYS, only_with=_ONLY_WITH, because=_BECAUSE))


@dataclass(frozen=True)
class PipelineTable:
    """Steps as a list, or as tables by name in the order they stand. Read into a list either way."""

    table: TableOf
    words: str = "a table with the steps of a pipeline"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        found = self.table.read(node, path, problems)
        if found is None:
            return None
        if ("steps" in found) == ("step" in found):
            wanted = (
                "expected steps as a list"
                if "steps" not in found
                else "expected steps as a list or step by name, not both"
            )
            problems.error(
                node, path, wanted + ', such as steps = [{ name = "parse", run = "shop.steps:parse" }]'
            )
            return None
        read: list[tuple[Node, str, dict[str, Any]]] = []
        if found.get("steps"):
            nodes, here = node.value["steps"].value, subpath(path, "steps")
            read = [
                (nodes[index], subpath(here, index), step)
                for index, step in enumerate(found["steps"])
                if step
            ]
        elif found.get("step"):
            nodes, here = node.value["step"].value, subpath(path, "step")
            read = [
                (nodes[name], subpath(here, name), {"name": name, **step})
                for name, step in found["step"].items()
                if step
            ]
        if "step" in found and found["step"] == {}:
            problems.error(node.value["step"], subpath(path, "step"), "expected at least one step")
        if len(read) > MAX_STEPS:
            problems.error(
                node,
                path,
                f"expected at most {MAX_STEPS} steps, one for each bit of a message's progress; got {len(read)}",
            )
        return read

    def schema(self) -> Schema:
        return {**self.table.schema(), "oneOf": [{"required": ["steps"]}, {"required": ["step"]}]}


class _Steps(ListOf):
    def schema(self) -> Schema:
        return {**super().schema(), "maxItems": MAX_STEPS}


class _StepMap(MapOf):
    def schema(self) -> Schema:
        return {**super().schema(), "minProperties": 1, "maxProperties": MAX_STEPS}


PIPELINE = TableOf(
    {
        "steps": KeySpec(
            _Steps(NAMED_STEP, "a list of at least one step, each a table", at_least=1),
            "its steps in order, each with a `name`",
        ),
        "step": KeySpec(
            _StepMap(PART, _STEP, "a table of steps by name"),
            "the same as tables by name, in the order they stand; in HCL as blocks",
        ),
    }
)

WORKER = TableOf(
    {
        "queue": KeySpec(Text("the name of a queue of the runbook"), "the queue it works", required=True),
        "pipeline": KeySpec(
            Text("the name of a pipeline of the runbook"), "what it does with each item", required=True
        ),
        "concurrency": KeySpec(WholeNumber(1, 1024), "how many items at a time", "1"),
        "engine": KeySpec(Choice(("local", "spark")), "where it runs", '`"local"`'),
        "on_stream_failure": KeySpec(
            Choice(("wait", "continue")),
            "after a failure in a stream: the rest waits for it, or goes on without it",
            '`"wait"`',
        ),
        "isolate": KeySpec(
            Choice(("process", "thread")),
            "where steps run: a crash of a process harms only its item, a thread is lighter",
            '`"process"`',
        ),
        "memory_limit": KeySpec(Size(16 * _MIB), "most memory of one step process", "none"),
        "prefetch": KeySpec(
            WholeNumber(0, 10_000),
            "how many items to hold ready beyond those in work",
            "chosen by the worker",
        ),
        "reasons": KeySpec(
            MapOf(EXCEPTION, _REASON, "a table of failure reasons by exception name"),
            "failure reasons by exception, beside the usual ones",
            "none",
        ),
    }
)


def _named(kind: Kind, what: str) -> MapOf:
    return MapOf(PART, kind, f"a table of {what} by name")


RUNBOOK = TableOf(
    {
        "$schema": KeySpec(Text(), "for editors; says nothing here"),
        "project": KeySpec(PART, "scope: equal names in two projects never mix", "none"),
        "queue": KeySpec(_named(QueueTable(), "queues"), "queues by name", "none"),
        "pipeline": KeySpec(_named(PipelineTable(PIPELINE), "pipelines"), "pipelines by name", "none"),
        "worker": KeySpec(_named(WORKER, "workers"), "workers by name", "none"),
    }
)


def unknown_reference(node: Node, kind: str, known: list[str]) -> str:
    return f"there is no {kind} {shown(node)} in the runbook{suggestion(str(node.value), known)}"
