"""Reads files into a `Runbook`, or reports every mistake in them.

Read (three syntaxes -> one tree) -> merge (several files) -> check keys (`keys.py`) -> check the whole:
references, contradictions, files that hooks name, consequences of retry policies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    dump_runbook,
    full_name,
)
from fairlead.runbook.placeholders import placeholders
from fairlead.runbook.policies import short_options
from fairlead.runbook.progress_bits import with_progress_bits
from fairlead.runbook.source import Node, Problem, Problems, subpath, suggestion

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
    """Read files as one runbook. `project`, if given, replaces the project in the files.

    Raises `RunbookInvalid` with every mistake in every file.
    """
    problems = Problems()
    trees = [tree for file in files if (tree := _load(Path(file), problems)) is not None]
    return check_trees(trees, project=project, problems=problems)


def check_text(
    text: str, syntax: str, *, file: str = "runbook", project: str | None = None
) -> CheckedRunbook:
    """Read a runbook from text; `syntax` is toml, hcl or json. Files that it names are relative to `file`."""
    problems = Problems()
    tree = _parse(text, "." + syntax, file, problems)
    return check_trees([] if tree is None else [tree], project=project, problems=problems)


def _load(path: Path, problems: Problems) -> Node | None:
    if path.suffix not in SYNTAXES:
        problems.errors.append(
            Problem(str(path), None, "", f"expected a file whose name ends in {', '.join(SYNTAXES)}")
        )
        return None
    text = _read_file(path, _MAX_FILE_BYTES, Node(None, str(path)), "", problems)
    return None if text is None else _parse(text, path.suffix, str(path), problems)


def _parse(text: str, suffix: str, file: str, problems: Problems) -> Node | None:
    try:
        return SYNTAXES[suffix](text, file, problems)
    except RecursionError:
        problems.errors.append(Problem(file, None, "", "expected fewer levels of nested values"))
        return None


def _read_file(path: Path, most: int, at: Node, where: str, problems: Problems) -> str | None:
    try:
        if path.exists() and not path.is_file():
            problems.error(at, where, f"expected {path} to be a file, got a directory or device")
            return None
        size = path.stat().st_size
        raw = path.read_bytes() if size <= most else b""
    except (OSError, ValueError) as error:
        problems.error(at, where, f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
        return None
    if max(size, len(raw)) > most:
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
    """Merge the trees of several files. A name that two files define is an error, and so are two projects."""
    merged: dict[str, Node] = {}
    for tree in trees:
        if not isinstance(tree.value, dict):
            problems.error(tree, "", "expected a table with queue, pipeline and worker")
            continue
        for key, node in tree.value.items():
            if key in merged:
                _merge_key(key, merged[key], node, problems)
            elif isinstance(node.value, dict):
                merged[key] = Node(dict(node.value), node.file, node.line)
            else:
                merged[key] = node
    return Node(merged, trees[0].file if trees else "runbook", 1)


def _merge_key(key: str, first: Node, node: Node, problems: Problems) -> None:
    """Add the value of a key to its value in an earlier file. A file that is named twice counts once."""
    if first.file == node.file:
        return
    if key == "project" and first.value != node.value:
        problems.error(node, key, f"{node.value!r} contradicts {first.value!r} in {_place(first)}")
    if key not in _KINDS:
        return
    if not (isinstance(first.value, dict) and isinstance(node.value, dict)):
        problems.error(node, key, f"defined twice, first in {_place(first)}")
        return
    for name, part in node.value.items():
        earlier = first.value.setdefault(name, part)
        if earlier is not part and isinstance(earlier, Node):
            problems.error(part, subpath(key, name), f"defined twice, first in {_place(earlier)}")


def _place(node: Node) -> str:
    return node.file if node.line is None else f"{node.file}:{node.line}"


@dataclass
class _RunbookBuilder:
    """Builds a runbook from checked values, and makes the checks that need the whole runbook.

    `read` has None for each value that was already refused.
    """

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
        """Return the node of a path, or the deepest node above it that exists."""
        node = self.tree
        for key in keys:
            if not isinstance(node.value, dict) or key not in node.value:
                break
            node = node.value[key]
        return node

    def _queue(self, name: str, read: dict[str, Any], project: str | None) -> QueueSpec:
        is_external = read.get("type") == "external"
        self._check_name(name, full_name(project, name), is_external)
        if is_external:
            return QueueSpec(
                name,
                "external",
                list=read.get("list"),
                take=read.get("take"),
                poll_ms=read.get("poll"),
                dedupe=False,
            )
        self._check_defaults(name, read)
        return QueueSpec(
            name,
            "persisted",
            read.get("vars") or (),
            dict(sorted((read.get("defaults") or {}).items())),
            self._options(name, read),
            dedupe=read.get("dedup") != "none",
        )

    def _check_defaults(self, name: str, read: dict[str, Any]) -> None:
        path = subpath(subpath("queue", name), "defaults")
        declares_fields = "vars" in read
        for field in read.get("defaults") or ():
            where = self._node("queue", name, "defaults", field)
            if not declares_fields:
                self.problems.error(
                    where, subpath(path, field), "the field is not in vars; add the field to vars"
                )
            elif read["vars"] is not None and field not in read["vars"]:
                hint = suggestion(field, read["vars"])
                self.problems.error(where, subpath(path, field), f"the field is not in vars{hint}")

    def _check_name(self, name: str, in_engine: str, is_external: bool) -> None:
        """Check the name, and that the names of the queues that belong to the queue are valid too."""
        try:
            for suffix, whose in (
                (DEAD_LETTER_SUFFIX, "dead letters"),
                (TAKEN_SUFFIX, "items taken from an external queue"),
            ):
                if name.endswith(suffix):
                    raise InvalidRequest(
                        "", f"a name that does not end in {suffix!r}, which is reserved for {whose}", name
                    )
            check_queue_name(dead_letter_name(taken_name(in_engine) if is_external else in_engine))
        except InvalidRequest as error:
            self.problems.error(
                self._node("queue", name), subpath("queue", name), f"expected {error.expected}"
            )

    def _options(self, name: str, read: dict[str, Any]) -> dict[str, Any]:
        path = subpath("queue", name)
        given = {**_written_options(read), **self._scripts(name, read)}
        given.setdefault("retain_completed", _RETAINED)
        given.setdefault("retry", "immediate" if given.get("on_failure") else "none")
        try:
            config = read_queue_options(given, QueueConfig())
        except InvalidRequest as error:
            what = f"expected {error.expected}, got {error.got!r}"
            self.problems.error(self._node("queue", name), subpath(path, error.field), what)
            return {}
        self._lint(name, read, config)
        return short_options(config)

    def _scripts(self, name: str, read: dict[str, Any]) -> dict[str, str | None]:
        path = subpath(subpath("queue", name), "hooks")
        return {
            function: self._script(
                script, self._node("queue", name, "hooks", function), subpath(path, function)
            )
            for function, script in (read.get("hooks") or {}).items()
            if script is not None
        }

    def _script(self, given: str, at: Node, path: str) -> str | None:
        """Return a script, from a file unless the text is one: every script has a function or several lines."""
        if "function" in given or "\n" in given:
            if len(given.encode()) > MAX_SCRIPT_BYTES:
                self.problems.error(at, path, f"expected a script of at most {MAX_SCRIPT_BYTES} bytes")
            return given
        file = Path(os.path.dirname(at.file)) / given
        text = _read_file(file, MAX_SCRIPT_BYTES, at, path, self.problems)
        if text is not None and not text.strip():
            self.problems.error(at, path, f"expected {file} to hold a Lua script, the file is empty")
        return text

    def _lint(self, name: str, read: dict[str, Any], config: QueueConfig) -> None:
        """Warn of doubtful consequences of the policies that the runbook has for the queue."""
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
                what = f"expected each step only once, got {step_name!r} again"
                self.problems.error(at, subpath(path, "name"), what)
            self._check_command(at, path, step.get("command"))
            steps[step_name] = StepSpec(
                step_name,
                step.get("run"),
                step.get("command"),
                step.get("timeout"),
                step.get("stdin") or "json",
                dict(sorted((step.get("env") or {}).items())),
                bool(step.get("batch")),
                step.get("batch_size") or BATCH_SIZE,
            )
        return PipelineSpec(name, tuple(steps.values()))

    def _check_command(self, at: Node, path: str, command: Sequence[str] | None) -> None:
        if not command:
            return
        program = command[0]
        if placeholders(program):
            what = f"expected a fixed program, got {program!r}, which depends on the item"
            self.problems.error(at, subpath(path, "command"), what)
        if not program:
            self.problems.error(
                at, subpath(path, "command"), "expected the name of a program first, got nothing"
            )

    def _worker(self, name: str, read: dict[str, Any]) -> WorkerSpec | None:
        for key in ("queue", "pipeline"):
            wanted, known = read.get(key), list(self.read.get(key) or {})
            if wanted is not None and wanted not in known:
                what = unknown_reference(self._node("worker", name, key), key, known)
                self._worker_error(name, key, what)
        self._check_worker_options(name, read)
        if read.get("queue") is None or read.get("pipeline") is None:
            return None
        given = _given(read)
        memory_limit = given.pop("memory_limit", None)
        given["reasons"] = dict(sorted(_given(read.get("reasons")).items()))
        return WorkerSpec(name, **given, memory_limit_bytes=memory_limit)

    def _check_worker_options(self, name: str, read: dict[str, Any]) -> None:
        if read.get("isolate") == "thread" and read.get("memory_limit") is not None:
            what = 'only with isolate = "process": threads share their memory'
            self._worker_error(name, "memory_limit", what)
        queue_type = self._node("queue", str(read.get("queue")), "type").value
        if read.get("engine") == "spark" and queue_type == "external":
            self._worker_error(name, "engine", 'expected "local" for an external queue')

    def _worker_error(self, name: str, key: str, what: str) -> None:
        path = subpath(subpath("worker", name), key)
        self.problems.error(self._node("worker", name, key), path, what)

    def _check_placeholders(
        self, worker: WorkerSpec, queue: QueueSpec | None, pipeline: PipelineSpec | None
    ) -> None:
        """Refuse placeholders for fields that are not in `vars`; a queue without `vars` may have any field."""
        if queue is None or pipeline is None or not queue.vars:
            return
        for at, path, step in (self.read["pipeline"] or {}).get(pipeline.name) or ():
            for key, field in _placeholders(step):
                if field not in queue.vars:
                    hint = suggestion(field, queue.vars)
                    what = f"queue {queue.name!r} has no field {field!r} in vars{hint}"
                    escape = f"(write {{{{{field}}}}} for the word in braces)"
                    self.problems.error(at, subpath(path, key), f"{what} {escape}")


def _written_options(read: dict[str, Any]) -> dict[str, Any]:
    """The options of a queue that the runbook has, as `create_queue` takes them."""
    given = {key: value for key, value in _given(read).items() if key in OPTION_KEYS}
    for key in ("visibility_timeout", "ttl", "dead_retention", "retain_completed"):
        if key in given:
            given[key] = show_ms(given[key])
    breaker = _given(given.pop("failure_breaker", None))
    # A breaker with a missing or refused value has been reported.
    if len(breaker) == 3:
        times = {key: show_ms(breaker[key]) for key in ("within", "pause")}
        given["failure_breaker"] = {**breaker, **times}
    given["retry_on"] = _given(read.get("retry_on"))
    dedup = read.get("dedup", "live") or "live"
    if dedup != "none":
        given["dedup"] = show_ms(dedup) if isinstance(dedup, int) else dedup
    return given


def _given(table: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entries of a table that were not refused."""
    return {key: value for key, value in (table or {}).items() if value is not None}


def _placeholders(step: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that the command and the environment of a step use, each with the key where it stands."""
    for text in step.get("command") or ():
        for field in placeholders(text):
            yield "command", field
    for name, text in _given(step.get("env")).items():
        for field in placeholders(text):
            yield subpath("env", name), field
