"""A step that is a command: an argument list, never a shell.

Fields of the item stand in its arguments as `{field}`. Each stays one argument whatever it contains, a
leading dash too: where the program would take that for an option, write `--` before it. Item and context also
come in the environment (`FAIRLEAD_ITEM_<field>`, `FAIRLEAD_STEP_*`), and the item as JSON on stdin. What it
prints on stdout is its value if it is JSON.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.limits import MAX_CARRY_BYTES
from fairlead.runbook.model import StepSpec
from fairlead.runbook.placeholders import fill
from fairlead.worker.protocol import StepCall
from fairlead.worker.reasons import bounded, cut_middle

#: What sysexits.h says about some codes; every other code but 0 is a `handler_exception`.
EXIT_REASONS = {
    65: FailureReason.VALIDATION_FAILURE,
    69: FailureReason.TRANSPORT_UNAVAILABLE,
    75: FailureReason.DEPENDENCY_FAILURE,
}

#: A longer field is not in the environment, where there is little room; it is on stdin.
_MAX_ENV_BYTES = 32 * 1024
_SHOWN_BYTES = 3000
_PIECE = 64 * 1024
#: How long output is waited for after the command has ended: something it left behind may hold the pipe open.
_AFTER_S = 0.2
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
    """The value it printed as JSON, or nothing. `prepare` runs in the new process before the command does."""
    assert step.command is not None
    fields = {name: as_text(field) for name, field in item.items()} if isinstance(item, dict) else {}
    try:
        argv = [fill(argument, fields) for argument in step.command]
        own = {name: fill(text, fields) for name, text in step.env.items()}
    except KeyError as missing:
        raise CommandFailed(
            FailureReason.VALIDATION_FAILURE,
            f"expected the item to have a field {missing.args[0]!r}, as the command does",
        ) from None
    environment = {**os.environ, **_environment(step, call, fields, value), **own}
    if any("\0" in text for text in (*argv, *environment.values())):
        raise CommandFailed(
            FailureReason.VALIDATION_FAILURE, "expected no NUL character in a field that a command is given"
        )
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=base,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=prepare,
            stdin=subprocess.PIPE if step.stdin == "json" else subprocess.DEVNULL,
        )
    except OSError as error:
        # Too long for the system is the item's fault; not found or not executable is ours.
        reason = FailureReason.VALIDATION_FAILURE if error.errno == 7 else FailureReason.DEPENDENCY_FAILURE
        raise CommandFailed(reason, f"{step.command[0]!r} could not be started: {error.strerror}") from None
    out = _attend(process, call.payload if step.stdin == "json" else b"", step.timeout_ms)
    if out.timed_out:
        raise CommandFailed(
            FailureReason.TIMEOUT_EXCEEDED,
            out.describe(f"{step.command[0]!r} took longer than {step.timeout_ms} ms and was killed"),
        )
    code = process.returncode
    if code < 0:
        raise CommandFailed(
            FailureReason.POISON_MESSAGE,
            out.describe(f"{step.command[0]!r} was killed by {signal_name(-code)}"),
        )
    if code:
        reason = EXIT_REASONS.get(code, FailureReason.HANDLER_EXCEPTION)
        raise CommandFailed(reason, out.describe(f"{step.command[0]!r} ended with exit code {code}"))
    return _value(out.stdout)


def as_text(field: object) -> str:
    """Text as it is, everything else as JSON; nothing for null."""
    if isinstance(field, str):
        return field
    return "" if field is None else msgspec.json.encode(field).decode()


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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


@dataclass
class _Kept:
    """The head of some output, as much as a value may have, and its last bytes."""

    head: bytearray
    tail: bytes = b""
    size: int = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        room = max(0, MAX_CARRY_BYTES + 1 - len(self.head))
        self.head += piece[:room]
        self.tail = (self.tail + piece[room:])[-_SHOWN_BYTES:]

    def text(self) -> str:
        whole = (
            bytes(self.head)
            if self.size == len(self.head)
            else bytes(self.head[:_SHOWN_BYTES]) + b"\n[...]\n" + self.tail
        )
        return cut_middle(whole.decode("utf-8", "replace").strip(), _SHOWN_BYTES)


@dataclass
class _Output:
    stdout: _Kept
    stderr: _Kept
    timed_out: bool = False

    def describe(self, what: str) -> str:
        parts = [what]
        parts += [
            f"{name}:\n{kept.text()}"
            for name, kept in (("stderr", self.stderr), ("stdout", self.stdout))
            if kept.size
        ]
        return bounded("\n\n".join(parts))


def _attend(process: subprocess.Popen[bytes], stdin: bytes, timeout_ms: int | None) -> _Output:
    """Feed it, listen to it, and kill it with everything in its process group when its time is over."""
    out = _Output(_Kept(bytearray()), _Kept(bytearray()))
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    selector = selectors.DefaultSelector()
    assert process.stdout is not None
    assert process.stderr is not None
    selector.register(process.stdout, selectors.EVENT_READ, out.stdout)
    selector.register(process.stderr, selectors.EVENT_READ, out.stderr)
    left = memoryview(stdin)
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
        selector.register(process.stdin, selectors.EVENT_WRITE, None)
    ended_at: float | None = None
    try:
        while selector.get_map() or ended_at is None:
            now = time.monotonic()
            if ended_at is None and process.poll() is not None:
                ended_at = now
            if ended_at is not None and now - ended_at > _AFTER_S:
                break
            if deadline is not None and now >= deadline and ended_at is None:
                out.timed_out = True
                kill_group(process)
                ended_at = now
            for key, _ in selector.select(0.02 if ended_at is None else 0.01):
                if key.data is None:
                    left = _feed(selector, key.fileobj, left)
                elif piece := os.read(key.fd, _PIECE):
                    key.data.add(piece)
                else:
                    selector.unregister(key.fileobj)
            if not selector.get_map() and ended_at is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
    finally:
        selector.close()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()
    return out


def _feed(selector: selectors.BaseSelector, pipe: Any, left: memoryview) -> memoryview:
    try:
        left = left[os.write(pipe.fileno(), left[:_PIECE]) :]
    except BlockingIOError:
        return left
    except OSError:
        left = left[:0]  # it does not want to read
    if not left:
        selector.unregister(pipe)
        with contextlib.suppress(OSError):
            pipe.close()
    return left


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The process and everything it has started that did not leave its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _value(stdout: _Kept) -> bytes:
    raw = bytes(stdout.head).strip()
    if not raw:
        return b""
    try:
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return b""
    if stdout.size > MAX_CARRY_BYTES:
        raise CommandFailed(
            FailureReason.SERIALIZATION_ERROR,
            f"expected a value of at most {MAX_CARRY_BYTES} bytes on stdout, got {stdout.size}",
        )
    return raw
