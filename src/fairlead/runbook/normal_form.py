"""Writes a runbook in its normal form: the keys of a runbook file, without defaults, values in their shortest
form.

The normal form reads back as the same runbook. Hooks are included as scripts, not as file names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.model.durations import show_ms
from fairlead.runbook.keys import HOOK_KEYS, OPTION_KEYS
from fairlead.runbook.model import BATCH_SIZE, PipelineSpec, QueueSpec, Runbook, StepSpec, WorkerSpec
from fairlead.runbook.policies import POLICY_KEYS

_BARE_KEY = re.compile(r"[A-Za-z0-9_\-]+")
_DEFAULT_WORKER = WorkerSpec("", "", "")


def normal_form(runbook: Runbook) -> dict[str, Any]:
    """Return the normal form as a tree of JSON values."""
    found: dict[str, Any] = {} if runbook.project is None else {"project": runbook.project}
    found["queue"] = {name: queue_form(queue) for name, queue in sorted(runbook.queues.items())}
    found["pipeline"] = {
        name: pipeline_form(pipeline) for name, pipeline in sorted(runbook.pipelines.items())
    }
    found["worker"] = {name: worker_form(worker) for name, worker in sorted(runbook.workers.items())}
    return {key: value for key, value in found.items() if value}


def queue_form(queue: QueueSpec) -> dict[str, Any]:
    if queue.kind == "external":
        return _external_form(queue)
    found: dict[str, Any] = {"type": queue.kind}
    if queue.vars:
        found["vars"] = list(queue.vars)
    if queue.defaults:
        found["defaults"] = queue.defaults
    options = queue.options if queue.dedupe else {**queue.options, "dedup": "none"}
    found |= {name: _in_order(name, options[name]) for name in (*OPTION_KEYS, "dedup") if name in options}
    if hooks := {name: queue.options[name] for name in HOOK_KEYS if queue.options.get(name)}:
        found["hooks"] = hooks
    return found


def _external_form(queue: QueueSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"type": queue.kind}
    if queue.list is not None:
        found["list"] = list(queue.list)
    if queue.take is not None:
        found["take"] = list(queue.take)
    if queue.poll_ms is not None:
        found["poll"] = show_ms(queue.poll_ms)
    return found


def _in_order(option: str, value: Any) -> Any:
    """The keys of a policy in their usual order; the stored form has them sorted."""
    if option == "retry_on":
        return {reason: _in_order("retry", policy) for reason, policy in value.items()}
    if not option.startswith("retry"):
        return value
    return {key: value[key] for key in POLICY_KEYS if key in value}


def pipeline_form(pipeline: PipelineSpec) -> dict[str, Any]:
    return {"steps": [_step_form(step) for step in pipeline.steps]}


def _step_form(step: StepSpec) -> dict[str, Any]:
    found: dict[str, Any] = {"name": step.name}
    if step.run is not None:
        found["run"] = step.run
    if step.batch:
        found["batch"] = True
        if step.batch_size != BATCH_SIZE:
            found["batch_size"] = step.batch_size
    if step.timeout_ms is not None:
        found["timeout"] = show_ms(step.timeout_ms)
    if step.command is not None:
        found["command"] = list(step.command)
        if step.stdin != "json":
            found["stdin"] = step.stdin
        if step.env:
            found["env"] = step.env
    return found


def worker_form(worker: WorkerSpec) -> dict[str, Any]:
    found: dict[str, Any] = {
        "queue": worker.queue,
        "pipeline": worker.pipeline,
        "concurrency": worker.concurrency,
        "engine": worker.engine,
    }
    for key in ("on_stream_failure", "isolate", "prefetch", "reasons"):
        if getattr(worker, key) != getattr(_DEFAULT_WORKER, key):
            found[key] = getattr(worker, key)
    if worker.memory_limit_bytes is not None:
        found["memory_limit"] = worker.memory_limit_bytes
    return found


def as_toml(form: Mapping[str, Any]) -> str:
    """Write the normal form as TOML: one table for each queue, pipeline and worker, one line for each step."""
    return "\n".join(_toml_lines(form)) + "\n"


def _toml_lines(form: Mapping[str, Any]) -> Iterator[str]:
    for key, value in form.items():
        if not isinstance(value, dict):
            yield f"{_key(key)} = {_value(value)}"
    for kind in ("queue", "pipeline", "worker"):
        for name, table in form.get(kind, {}).items():
            yield ""
            yield f"[{kind}.{_key(name)}]"
            for key, value in table.items():
                if key == "steps":
                    yield "steps = ["
                    yield from (f"  {_value(step)}," for step in value)
                    yield "]"
                elif key == "hooks":
                    yield from (f"hooks.{function} = {_script(script)}" for function, script in value.items())
                else:
                    yield f"{key} = {_value(value)}"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if value == {}:
        return "{}"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(part)}" for name, part in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def _text(value: str) -> str:
    """Write text with escapes for characters that a terminal would interpret or hide; the rest stays
    readable.
    """
    return "".join(
        char if char.isprintable() else _escape(ord(char)) for char in json.dumps(value, ensure_ascii=False)
    )


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _script(script: str) -> str:
    """Write a Lua script with its lines where a literal string of TOML can hold it, else as escaped text."""
    if (
        "\n" in script
        and "'''" not in script
        and all(char in "\n\t" or char.isprintable() for char in script)
        and not script.endswith("'")
    ):
        return f"'''\n{script}'''"
    return _text(script)
