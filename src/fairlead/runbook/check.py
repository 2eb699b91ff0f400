"""From files to a `Runbook`, or to everything that is wrong with them.

read (three syntaxes -> one tree) -> merge (several files) -> keys (`keys.py`) -> what only the whole can
tell: references, contradictions, files that hooks name, what retry policies imply.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.decide.policy_lint import lint_policy
from fairlead.errors import InvalidRequest, RunbookInvalid
from fairlead.model.durations import show_ms
from fairlead.model.limits import MAX_RUNBOOK_BYTES, MAX_SCRIPT_BYTES
from fairlead.model.names import (
    DEAD_LETTER_SUFFIX,
    TAKEN_SUFFIX,
    check_queue_name,
    dead_letter_name,
    taken_name,
)
from fairlead.model.queue import QueueConfig, read_queue_options
from fairlead.runbook.from_hcl import read_hcl
from fairlead.runbook.from_json import read_json
from fairlead.runbook.from_toml import read_toml
from fairlead.runbook.keys import OPTION_KEYS, RUNBOOK, unknown_reference
from fairlead.runbook.model import (
    BATCH_SIZE,
    PipelineSpec,
    QueueSpec,
    Runbook,
    StepSpec,
    WorkerSpec,
    full_name,
)
from fairlead.runbook.placeholders import placeholders
from fairlead.runbook.policies import short_options
from fairlead.runbook.progress_bits import with_progress_bits
from fairlead.runbook.source import Node, Problem, Problems, subpath, suggestion
from fairlead.runbook.stored import dump_runbook

SYNTAXES: dict[str, Callable[[str, str, Problems], Node | None]] = {
    ".toml": read_toml,
    ".hcl": read_hcl,
    ".json": read_json,
}
_KINDS = ("queue", "pipeline", "worker")
_MAX_FILE_BYTES = 1024 * 1024
_RETAINED = "12h"


@dataclass(frozen=True, slots=True)
class CheckedRunbook:
    runbook: Runbook
    warnings: tuple[Problem, ...]


def read_runbook(files: Sequence[Path | str], *, project: str | None = None) -> CheckedRunbook:
    """All files as one runbook. `project`, when given, stands above what they say.

    Raises `RunbookInvalid` with every mistake in every file.
    """
    problems = Problems()
    trees = [tree for file in files if (tree := _load(Path(file), problems)) is not None]
    return check_trees(trees, project=project, problems=problems)


def check_text(
    text: str, syntax: str, *, file: str = "runbook", project: str | None = None
) -> CheckedRunbook:
    """One runbook from text; `syntax` is toml, hcl or json. Files that it names are looked for beside `file`."""
    problems = Problems()
    tree = _parse(text, "." + syntax, file, problems)
    return check_trees([] if tree is None else [tree], project=project, problems=problems)


def _load(path: Path, problems: Problems) -> Node | None:
    if path.suffix not in SYNTAXES:
        problems.errors.append(
            Problem(str(path), None, "", f"expected a file that ends in {', '.join(SYNTAXES)}")
        )
        return None
    text = _read_file(path, _MAX_FILE_BYTES, Node(None, str(path)), "", problems)
    return None if text is None else _parse(text, path.suffix, str(path), problems)


def _parse(text: str, suffix: str, file: str, problems: Problems) -> Node | None:
    try:
        return SYNTAXES[suffix](text, file, problems)
    except RecursionError:
        problems.errors.append(Problem(file, None, "", "expected values that are not nested so deeply"))
        return None


def _read_file(path: Path, most: int, at: Node, where: str, problems: Problems) -> str | None:
    try:
        if path.exists() and not path.is_file():
            problems.error(at, where, f"expected {path} to be a file")
            return None
        raw = path.read_bytes() if path.stat().st_size <= most else b"\0" * (most + 1)
    except (OSError, ValueError) as error:
        problems.error(at, where, f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
        return None
    if len(raw) > most:
        problems.error(at, where, f"expected {path} to have at most {most} bytes")
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.error(at, where, f"expected {path} to be UTF-8; byte {error.start} is not")
        return None


def check_trees(trees: Sequence[Node], *, project: str | None, problems: Problems) -> CheckedRunbook:
    merged = _merge(trees, problems)
    if project is not None:
        merged.value["project"] = Node(project, "--project")
    read = RUNBOOK.read(merged, "", problems) or {}
    runbook = _RunbookBuilder(merged, read, problems).build()
    if problems.errors:
        found = list(dict.fromkeys(problems.errors))
        found.sort(key=lambda problem: (problem.file, problem.line or 0))
        raise RunbookInvalid(found)
    if len(dump_runbook(runbook).encode()) > MAX_RUNBOOK_BYTES:
        raise RunbookInvalid(
            [
                Problem(
                    merged.file,
                    None,
                    "",
                    f"expected a runbook of at most {MAX_RUNBOOK_BYTES} bytes, its hooks included",
                )
            ]
        )
    return CheckedRunbook(runbook, tuple(problems.warnings))


def _merge(trees: Sequence[Node], problems: Problems) -> Node:
    """One tree of all. A name that two files define is an error, wherever its definitions differ."""
    merged: dict[str, Node] = {}
    for tree in trees:
        if not isinstance(tree.value, dict):
            problems.error(tree, "", "expected a table with queue, pipeline and worker")
            continue
        for key, node in tree.value.items():
            first = merged.setdefault(
                key, Node(dict(node.value), node.file, node.line) if isinstance(node.value, dict) else node
            )
            if first.file == node.file:
                continue
            if key in _KINDS and isinstance(first.value, dict) and isinstance(node.value, dict):
                for name, part in node.value.items():
                    earlier = first.value.setdefault(name, part)
                    if earlier is not part and isinstance(earlier, Node):
                        problems.error(part, subpath(key, name), f"defined twice, first in {_place(earlier)}")
            elif key == "project" and first.value != node.value:
                problems.error(node, key, f"{node.value!r} contradicts {first.value!r} in {_place(first)}")
            elif key in _KINDS:
                problems.error(node, key, f"defined twice, first in {_place(first)}")
    return Node(merged, trees[0].file if trees else "runbook", 1)


def _place(node: Node) -> str:
    return node.file if node.line is None else f"{node.file}:{node.line}"


@dataclass
class _RunbookBuilder:
    """What only the whole can tell. `read` has None where a value was refused already."""

    tree: Node
    read: dict[str, Any]
    problems: Problems

    def build(self) -> Runbook:
        project = self.read.get("project")
        queues = {name: self._queue(name, read, project) for name, read in self._all("queue")}
        pipelines = {name: self._pipeline(name, read) for name, read in self._all("pipeline")}
        workers = {
            name: worker
            for name, read in self._all("worker")
            if (worker := self._worker(name, read)) is not None
        }
        for worker in workers.values():
            self._check_placeholders(worker, queues.get(worker.queue), pipelines.get(worker.pipeline))
        return with_progress_bits(Runbook(project, queues, pipelines, workers))

    def _all(self, kind: str) -> list[tuple[str, Any]]:
        return [(name, read) for name, read in (self.read.get(kind) or {}).items() if read is not None]

    def _node(self, *keys: str) -> Node:
        """The deepest node that is there."""
        node = self.tree
        for key in keys:
            if not isinstance(node.value, dict) or key not in node.value:
                break
            node = node.value[key]
        return node

    def _queue(self, name: str, read: dict[str, Any], project: str | None) -> QueueSpec:
        is_external = read.get("type") == "external"
        self._check_name(name, full_name(project, name), is_external)
        path = subpath("queue", name)
        if is_external:
            return QueueSpec(
                name,
                "external",
                list=read.get("list"),
                take=read.get("take"),
                poll_ms=read.get("poll"),
                dedupe=False,
            )
        vars_, defaults = read.get("vars") or (), read.get("defaults") or {}
        for field in defaults:
            if read.get("vars") is not None and field not in vars_:
                where = self._node("queue", name, "defaults", field)
                self.problems.error(
                    where,
                    subpath(subpath(path, "defaults"), field),
                    f"a default for what is not in vars{suggestion(field, vars_)}",
                )
            elif "vars" not in read:
                where = self._node("queue", name, "defaults", field)
                self.problems.error(
                    where,
                    subpath(subpath(path, "defaults"), field),
                    "a default for what is not in vars; name it there",
                )
        options = self._options(name, read)
        return QueueSpec(
            name,
            "persisted",
            vars_,
            dict(sorted(defaults.items())),
            options,
            dedupe=read.get("dedup") != "none",
        )

    def _check_name(self, name: str, in_engine: str, is_external: bool) -> None:
        """Room and no quarrel also for the queues that come with it."""
        try:
            for suffix, whose in (
                (DEAD_LETTER_SUFFIX, "dead letters"),
                (TAKEN_SUFFIX, "what is taken from an external queue"),
            ):
                if name.endswith(suffix):
                    raise InvalidRequest(
                        "", f"a name that does not end in {suffix!r}, which belongs to {whose}", name
                    )
            check_queue_name(dead_letter_name(taken_name(in_engine) if is_external else in_engine))
        except InvalidRequest as error:
            self.problems.error(
                self._node("queue", name), subpath("queue", name), f"expected {error.expected}"
            )

    def _options(self, name: str, read: dict[str, Any]) -> dict[str, Any]:
        at, path = self._node("queue", name), subpath("queue", name)
        given = {key: value for key, value in read.items() if key in OPTION_KEYS and value is not None}
        for key in ("visibility_timeout", "ttl", "dead_retention", "retain_completed"):
            if key in given:
                given[key] = show_ms(given[key])
        if "failure_breaker" in given:
            breaker = given["failure_breaker"]
            if None in breaker.values() or len(breaker) < 3:
                del given["failure_breaker"]
            else:
                given["failure_breaker"] = {
                    **breaker,
                    "within": show_ms(breaker["within"]),
                    "pause": show_ms(breaker["pause"]),
                }
        given["retry_on"] = {
            reason: policy for reason, policy in (read.get("retry_on") or {}).items() if policy is not None
        }
        dedup = read.get("dedup", "live")
        if dedup != "none":
            given["dedup"] = show_ms(dedup) if isinstance(dedup, int) else dedup or "live"
        given.setdefault("retain_completed", _RETAINED)
        for function, script in (read.get("hooks") or {}).items():
            if script is not None:
                given[function] = self._script(
                    script,
                    self._node("queue", name, "hooks", function),
                    subpath(subpath(path, "hooks"), function),
                )
        given.setdefault("retry", "immediate" if given.get("on_failure") else "none")
        try:
            config = read_queue_options(given, QueueConfig())
        except InvalidRequest as error:
            self.problems.error(
                at, subpath(path, error.field), f"expected {error.expected}, got {error.got!r}"
            )
            return {}
        self._lint(name, read, config)
        return short_options(config)

    def _script(self, given: str, at: Node, path: str) -> str | None:
        """A script is told from the name of a file as on the command line: by a call or a definition, or a
        line break.
        """
        if "function" in given or "\n" in given:
            if len(given.encode()) > MAX_SCRIPT_BYTES:
                self.problems.error(at, path, f"expected a script of at most {MAX_SCRIPT_BYTES} bytes")
            return given
        file = Path(os.path.dirname(at.file)) / given
        text = _read_file(file, MAX_SCRIPT_BYTES, at, path, self.problems)
        if text is not None and not text.strip():
            self.problems.error(at, path, f"expected {file} to hold a Lua script, got nothing")
        return text

    def _lint(self, name: str, read: dict[str, Any], config: QueueConfig) -> None:
        """What the policies that were written imply; a queue without any has the plain rule."""
        policies = {
            key: getattr(config, key) for key in ("retry", "retry_in_stream") if read.get(key) is not None
        }
        policies |= {subpath("retry_on", reason): policy for reason, policy in config.retry_on.items()}
        for key, policy in policies.items():
            for warning in lint_policy(policy, max_attempts=config.max_attempts).warnings:
                self.problems.warn(
                    self._node("queue", name, *key.split(".")), f"{subpath('queue', name)}.{key}", warning
                )

    def _pipeline(self, name: str, read: list[tuple[Node, str, dict[str, Any]]]) -> PipelineSpec:
        steps: dict[str, StepSpec] = {}
        for at, path, step in read:
            step_name = step.get("name")
            if step_name is None:
                continue
            if step_name in steps:
                self.problems.error(
                    at, subpath(path, "name"), f"expected each step only once, got {step_name!r} again"
                )
            command = step.get("command")
            if command and placeholders(command[0]):
                what = f"expected a program that is known beforehand, got {command[0]!r}, which an item would choose"
                self.problems.error(at, subpath(path, "command"), what)
            if command and not command[0]:
                self.problems.error(
                    at, subpath(path, "command"), "expected the name of a program first, got nothing"
                )
            env = dict(sorted((step.get("env") or {}).items()))
            batch, batch_size = bool(step.get("batch")), step.get("batch_size") or BATCH_SIZE
            steps[step_name] = StepSpec(
                step_name,
                step.get("run"),
                command,
                step.get("timeout"),
                step.get("stdin") or "json",
                env,
                batch,
                batch_size,
            )
        return PipelineSpec(name, tuple(steps.values()))

    def _worker(self, name: str, read: dict[str, Any]) -> WorkerSpec | None:
        path = subpath("worker", name)
        for key in ("queue", "pipeline"):
            wanted, known = read.get(key), list(self.read.get(key) or {})
            if wanted is not None and wanted not in known:
                at = self._node("worker", name, key)
                self.problems.error(at, subpath(path, key), unknown_reference(at, key, known))
        if read.get("isolate") == "thread" and read.get("memory_limit") is not None:
            at = self._node("worker", name, "memory_limit")
            self.problems.error(
                at, subpath(path, "memory_limit"), 'only with isolate = "process": threads share their memory'
            )
        queue = self._node("queue", str(read.get("queue")), "type").value
        if read.get("engine") == "spark" and queue == "external":
            self.problems.error(
                self._node("worker", name, "engine"),
                subpath(path, "engine"),
                'expected "local" for an external queue',
            )
        if read.get("queue") is None or read.get("pipeline") is None:
            return None
        chosen = {key: value for key, value in read.items() if value is not None and key != "memory_limit"}
        reasons = {
            exception: reason
            for exception, reason in sorted((read.get("reasons") or {}).items())
            if reason is not None
        }
        return WorkerSpec(name, **{**chosen, "reasons": reasons}, memory_limit_bytes=read.get("memory_limit"))

    def _check_placeholders(
        self, worker: WorkerSpec, queue: QueueSpec | None, pipeline: PipelineSpec | None
    ) -> None:
        """A queue that names its fields has no others for sure; one that names none may have any."""
        if queue is None or pipeline is None or not queue.vars:
            return
        for at, path, step in (self.read["pipeline"] or {}).get(pipeline.name) or ():
            texts = [("command", text) for text in step.get("command") or ()]
            texts += [
                (subpath("env", name), text)
                for name, text in (step.get("env") or {}).items()
                if text is not None
            ]
            for key, text in texts:
                for field in placeholders(text):
                    if field not in queue.vars:
                        what = f"queue {queue.name!r} has no field {field!r} in vars{suggestion(field, queue.vars)}"
                        self.problems.error(
                            at, subpath(path, key), f"{what} (write {{{{{field}}}}} for the word in braces)"
                        )
