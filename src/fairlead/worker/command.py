"""A step that is a command: an argument list, never a shell.

`{field}` in an argument stands for that field of the item. Each argument stays one argument whatever the
field contains, also with a leading dash: where the program would take it for an option, write `--` before it.
The item and its context are also in the environment (`FAIRLEAD_ITEM_<field>`, `FAIRLEAD_STEP_*`), and the
item is JSON on stdin. If the command prints JSON on stdout, that is the value of the step.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping

import msgspec

from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_CARRY_BYTES
from fairlead.processes.lifetime import describe_exit
from fairlead.processes.run import Capture, Finished, KillReason, run
from fairlead.runbook.model import StepSpec
from fairlead.runbook.placeholders import fill
from fairlead.worker.protocol import StepCall
from fairlead.worker.reasons import bounded, cut_middle

#: Exit codes with a meaning in sysexits.h; every other code but 0 is a `handler_exception`.
EXIT_REASONS = {
    65: FailureReason.VALIDATION_FAILURE,
    69: FailureReason.TRANSPORT_UNAVAILABLE,
    75: FailureReason.DEPENDENCY_FAILURE,
}

#: A longer field is left out of the environment, where room is scarce; it is in the item on stdin.
_MAX_ENV_BYTES = 32 * 1024
_SHOWN_BYTES = 3000
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CommandFailed(Exception):
    def __init__(self, reason: FailureReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def run_command(
    step: StepSpec,
    call: StepCall,
    item: object,
    value: bytes,
    *,
    base: str,
    prepare: Callable[[], None] | None = None,
) -> bytes:
    """Run the command and return what it printed, if that is JSON, or nothing. Raises `CommandFailed`.

    `prepare` runs in the new process before the command does.
    """
    assert step.command is not None
    name = repr(step.command[0])
    arguments, environment = _filled_in(step, call, item, value)
    try:
        finished = run(
            arguments,
            cwd=base,
            env=environment,
            stdin=call.payload if step.stdin == "json" else None,
            keep_bytes=MAX_CARRY_BYTES + 1,
            timeout_s=None if step.timeout_ms is None else step.timeout_ms / 1000,
            prepare=prepare,
        )
    except OSError as error:
        # An argument list that is too long is the item's fault; a missing or non-executable program is not.
        is_too_long = error.errno == errno.E2BIG
        reason = FailureReason.VALIDATION_FAILURE if is_too_long else FailureReason.DEPENDENCY_FAILURE
        raise CommandFailed(reason, f"{name} could not be started: {error.strerror}") from None
    if finished.killed is KillReason.TOO_LONG:
        text = _describe(f"{name} took longer than {step.timeout_ms} ms and was killed", finished)
        raise CommandFailed(FailureReason.TIMEOUT_EXCEEDED, text)
    if finished.code:
        text = _describe(f"{name} {describe_exit(finished.code)}", finished)
        raise CommandFailed(_reason_of(finished.code), text)
    return _value(finished.stdout)


def as_text(field: object) -> str:
    """A text as it is, null as nothing, every other value as JSON."""
    if isinstance(field, str):
        return field
    return "" if field is None else msgspec.json.encode(field).decode()


def fields_of(item: object) -> dict[str, str]:
    """The fields of an item as texts; none for an item that is no JSON object."""
    return {name: as_text(field) for name, field in item.items()} if isinstance(item, dict) else {}


def _filled_in(
    step: StepSpec, call: StepCall, item: object, value: bytes
) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment."""
    assert step.command is not None
    fields = fields_of(item)
    try:
        arguments = [fill(argument, fields) for argument in step.command]
        own = {name: fill(text, fields) for name, text in step.env.items()}
    except KeyError as missing:
        text = f"expected the item to have a field {missing.args[0]!r}, as the command does"
        raise CommandFailed(FailureReason.VALIDATION_FAILURE, text) from None
    environment = {**os.environ, **_environment(step, call, fields, value), **own}
    if any("\0" in text for text in (*arguments, *environment.values())):
        text = "expected no NUL character in a field that a command is given"
        raise CommandFailed(FailureReason.VALIDATION_FAILURE, text)
    return arguments, environment


def _environment(step: StepSpec, call: StepCall, fields: Mapping[str, str], value: bytes) -> dict[str, str]:
    found = {
        "FAIRLEAD_STEP_NAME": step.name,
        "FAIRLEAD_STEP_QUEUE": call.queue,
        "FAIRLEAD_STEP_ID": show_id(call.raw_id),
        "FAIRLEAD_STEP_ATTEMPTS": str(call.attempts),
        "FAIRLEAD_STEP_STREAM": call.stream,
        "FAIRLEAD_STEP_VALUE": value.decode(),
    }
    found |= {f"FAIRLEAD_ITEM_{name}": text for name, text in fields.items() if _FIELD.fullmatch(name)}
    return {name: text for name, text in found.items() if len(text) <= _MAX_ENV_BYTES and "\0" not in text}


def _reason_of(code: int) -> FailureReason:
    if code < 0:
        return FailureReason.POISON_MESSAGE
    return EXIT_REASONS.get(code, FailureReason.HANDLER_EXCEPTION)


def _describe(what: str, finished: Finished) -> str:
    parts = [what]
    for name, output in (("stderr", finished.stderr), ("stdout", finished.stdout)):
        if output.size:
            parts.append(f"{name}:\n{_shown(output)}")
    return bounded("\n\n".join(parts))


def _shown(output: Capture) -> str:
    shown = bytes(output.head)
    if not output.is_complete:
        shown = shown[:_SHOWN_BYTES] + b"\n[...]\n" + output.tail
    return cut_middle(shown.decode("utf-8", "replace").strip(), _SHOWN_BYTES)


def _value(stdout: Capture) -> bytes:
    raw = bytes(stdout.head).strip()
    if not raw:
        return b""
    try:
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return b""
    if stdout.size > MAX_CARRY_BYTES:
        text = f"expected a value of at most {MAX_CARRY_BYTES} bytes on stdout, got {stdout.size}"
        raise CommandFailed(FailureReason.SERIALIZATION_ERROR, text)
    return raw
