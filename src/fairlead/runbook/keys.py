"""The table of all keys of a runbook. The checker uses it; the schema for editors and the reference page
derive from it.
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
    value_schema,
)
from fairlead.runbook.model import BATCH_SIZE, MAX_BATCH_SIZE, MAX_STEPS
from fairlead.runbook.policies import Policy, policy_schema
from fairlead.runbook.source import Node, Problems, shown, subpath, suggestion

_MIB = 1 << 20
_COUNT = WholeNumber(0, 1 << 50)
_REASON = Choice(tuple(reason.word for reason in FailureReason))
_REASON_NAME = Text("a failure reason: " + ", ".join(_REASON.options), "|".join(_REASON.options))
_COMMAND = ListOf(
    Text("text without a NUL"),
    'a program and its arguments as a list, such as ["./mail.sh", "{customer}"]; runs without a shell',
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
        "failures": KeySpec(WholeNumber(1, 10_000), "number of failures of one reason", required=True),
        "within": KeySpec(Duration(low_ms=1), "time within which they are counted", required=True),
        "pause": KeySpec(Duration(low_ms=1), "how long further failures then wait", required=True),
    },
    'a table such as { failures = 50, within = "1m", pause = "5m" }',
)

HOOK_KEYS = {
    "on_enqueue": KeySpec(
        Text("a Lua file, or the text of a Lua script"),
        "assigns fairness key, weight, throttle keys and stream of a new item",
    ),
    "on_failure": KeySpec(
        Text("a Lua file, or the text of a Lua script"), "decides between a retry and a dead letter"
    ),
}

_ITEM_KEYS = {
    "vars": KeySpec(
        ListOf(FIELD, "a list of field names", unique=True),
        "fields that an item must have",
        "none: any fields",
    ),
    "defaults": KeySpec(
        MapOf(FIELD, JsonValue(), "a table of values by field"),
        "values of fields in `vars` for items without them",
        "none",
    ),
    "dedup": KeySpec(
        Dedup(),
        "when an item with equal data is the same item: while the first is live, also while it is retained, within a window, or never",
        '`"live"`',
    ),
}

#: The options of the engine's queues that a runbook names as the engine does.
OPTION_KEYS = {
    "retry": KeySpec(
        Policy(),
        "retry policy",
        '`"none"`: dead on the first failure; with a hook `on_failure`: `"immediate"`',
    ),
    "retry_in_stream": KeySpec(Policy(), "retry policy for items of a stream", "as `retry`"),
    "retry_on": KeySpec(
        MapOf(_REASON_NAME, Policy(), "a table of policies by failure reason"),
        "retry policy per failure reason, which takes precedence over `retry`",
        "none",
    ),
    "visibility_timeout": KeySpec(
        Duration(MIN_LEASE_MS, MAX_LEASE_MS),
        "how long a worker may hold an item without a heartbeat",
        '`"30s"`',
    ),
    "failure_breaker": KeySpec(
        _BREAKER, "after many failures of one reason, further ones wait longer", "off"
    ),
    "max_attempts": KeySpec(_COUNT, "dead on this failure, whatever a policy decides", "off"),
    "max_deliveries": KeySpec(_COUNT, "dead instead of being delivered more often", "off"),
    "max_messages": KeySpec(_COUNT, "maximum of items in the queue", "off"),
    "max_bytes": KeySpec(_COUNT, "maximum bytes of headers and payloads in the queue", "off"),
    "max_unsettled_per_consumer": KeySpec(_COUNT, "maximum of items that one worker holds", "off"),
    "max_unsettled_per_key": KeySpec(_COUNT, "maximum of leased items of one fairness key", "off"),
    "poison_after": KeySpec(_COUNT, "attempts from which a live item is reported as poison", "10"),
    "quantum": KeySpec(WholeNumber(1, 100_000), "items that a fairness key of weight 1 gets per turn", "1"),
    "ttl": KeySpec(Duration(), "time to live of an item that is not leased", "off"),
    "expired_to_dead": KeySpec(
        Flag(),
        "an item becomes a dead letter when its time to live ends, instead of being dropped",
        "`false`",
    ),
    "dead_retention": KeySpec(Duration(), "how long dead letters are kept", "no limit"),
    "retain_completed": KeySpec(
        Duration(), 'how long completed items are kept for inspection; `"0s"`: not at all', '`"12h"`'
    ),
    "ordering": KeySpec(
        Choice(("release", "strict", "none")),
        "order in streams: a released item may pass one that waits, or may not, or there is no order",
        '`"release"`',
    ),
}

_LIST = KeySpec(_COMMAND, "command that prints the items as a JSON array", required=True)
_TAKE = KeySpec(
    _COMMAND,
    "command that runs before the steps, with fields of the item as `{field}`; if it fails, the item is skipped",
    required=True,
)
_POLL = KeySpec(
    Duration(low_ms=100),
    "time between two runs of `list`",
    "`list` runs only when a worker starts or is woken",
)
_TYPE = KeySpec(
    Choice(("persisted", "external")),
    "`persisted`: fairlead keeps the items. `external`: another system keeps them; `list` and `take` reach it",
    '`"persisted"`',
)

_NOT_EXTERNAL = "only for persisted queues: another system decides about the items of an external queue"
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
        _COMMAND, "a program and its arguments, with fields of the item as `{field}`; runs without a shell"
    ),
    "timeout": KeySpec(
        Duration(low_ms=1),
        "after this time the step, or the call of a batch step, is stopped and fails",
        "none",
    ),
    "batch": KeySpec(
        Flag(), "the callable takes many items at a time, and reports an outcome for each", "`false`"
    ),
    "batch_size": KeySpec(
        WholeNumber(1, MAX_BATCH_SIZE),
        "maximum of items in a call, with `batch = true`",
        str(BATCH_SIZE),
    ),
    "stdin": KeySpec(
        Choice(("json", "none")), "standard input of a command: the item as JSON, or nothing", '`"json"`'
    ),
    "env": KeySpec(
        MapOf(_VARIABLE, Text("text"), "a table of texts by variable"),
        "additional environment variables of a command, with fields of the item as `{field}`",
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
    """A step: in a list with its name, or in a map under its name."""

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
                "expected batch = true beside batch_size, or neither",
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
        {"name": KeySpec(PART, "name of the step, unique in the pipeline", required=True), **_STEP_KEYS},
        only_with=_ONLY_WITH,
        because=_BECAUSE,
    )
)
_STEP = StepTable(TableOf(_STEP_KEYS, only_with=_ONLY_WITH, because=_BECAUSE))


@dataclass(frozen=True)
class PipelineTable:
    """Steps as a list, or as tables by name in the order of the file. Both are read into a list."""

    table: TableOf
    words: str = "a table with the steps of a pipeline"

    def read(self, node: Node, path: str, problems: Problems) -> Any:
        found = self.table.read(node, path, problems)
        if found is None:
            return None
        if ("steps" in found) == ("step" in found):
            what = "expected steps as a list"
            if "steps" in found:
                what = "expected steps as a list or step by name, not both"
            example = 'such as steps = [{ name = "parse", run = "shop.steps:parse" }]'
            problems.error(node, path, f"{what}, {example}")
            return None
        read = _listed_steps(node, path, found) if "steps" in found else _named_steps(node, path, found)
        if found.get("step") == {}:
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


_ReadStep = tuple[Node, str, dict[str, Any]]


def _listed_steps(node: Node, path: str, found: dict[str, Any]) -> list[_ReadStep]:
    nodes, here = node.value["steps"].value, subpath(path, "steps")
    steps = enumerate(found["steps"] or ())
    return [(nodes[index], subpath(here, index), step) for index, step in steps if step]


def _named_steps(node: Node, path: str, found: dict[str, Any]) -> list[_ReadStep]:
    nodes, here = node.value["step"].value, subpath(path, "step")
    steps = (found["step"] or {}).items()
    return [(nodes[name], subpath(here, name), {"name": name, **step}) for name, step in steps if step]


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
            "the steps in order, each with a `name`",
        ),
        "step": KeySpec(
            _StepMap(PART, _STEP, "a table of steps by name"),
            "the steps as tables by name, in the order of the file; in HCL as blocks",
        ),
    }
)

WORKER = TableOf(
    {
        "queue": KeySpec(
            Text("the name of a queue of the runbook"),
            "the queue whose items the worker processes",
            required=True,
        ),
        "pipeline": KeySpec(
            Text("the name of a pipeline of the runbook"),
            "the pipeline that runs on each item",
            required=True,
        ),
        "concurrency": KeySpec(WholeNumber(1, 1024), "items processed at a time", "1"),
        "engine": KeySpec(Choice(("local", "spark")), "where the steps run", '`"local"`'),
        "on_stream_failure": KeySpec(
            Choice(("wait", "continue")),
            "after a failure in a stream, later items wait for the failed one, or continue without it",
            '`"wait"`',
        ),
        "isolate": KeySpec(
            Choice(("process", "thread")),
            "steps run in processes, where a crash affects only its item, or in threads, which need less memory",
            '`"process"`',
        ),
        "memory_limit": KeySpec(Size(16 * _MIB), "maximum memory of one step process", "none"),
        "prefetch": KeySpec(
            WholeNumber(0, 10_000),
            "items claimed ahead of those in progress",
            "chosen by the worker",
        ),
        "reasons": KeySpec(
            MapOf(EXCEPTION, _REASON, "a table of failure reasons by exception name"),
            "failure reasons by exception, in addition to the built-in ones",
            "none",
        ),
    }
)


def _named(kind: Kind, what: str) -> MapOf:
    return MapOf(PART, kind, f"a table of {what} by name")


RUNBOOK = TableOf(
    {
        "$schema": KeySpec(Text(), "for editors; fairlead ignores the key"),
        "project": KeySpec(PART, "scope of all names: equal names in two projects are different", "none"),
        "queue": KeySpec(_named(QueueTable(), "queues"), "queues by name", "none"),
        "pipeline": KeySpec(_named(PipelineTable(PIPELINE), "pipelines"), "pipelines by name", "none"),
        "worker": KeySpec(_named(WORKER, "workers"), "workers by name", "none"),
    }
)


def unknown_reference(node: Node, kind: str, known: list[str]) -> str:
    return f"there is no {kind} {shown(node)} in the runbook{suggestion(str(node.value), known)}"


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def runbook_schema() -> dict[str, Any]:
    """The JSON Schema of runbooks, for editors.

    A schema cannot check that names refer to something, that files exist, or how long a duration may be;
    `runbook check` does.
    """
    return {
        "$schema": DIALECT,
        "title": "fairlead runbook",
        "description": "Queues, pipelines and workers. `fairlead runbook check` also checks what a schema cannot.",
        **RUNBOOK.schema(),
        "$defs": {"policy": policy_schema(), "value": value_schema()},
    }
