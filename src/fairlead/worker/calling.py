"""Calling a step: from bytes to bytes, with every way to fail turned into a value. The same in processes and threads."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.errors import InvalidRequest, StepNotLoaded
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason, read_reason
from fairlead.runbook.model import StepSpec
from fairlead.worker.command import CommandFailed, run_command
from fairlead.worker.frames import Call, Done, Failed, Setup
from fairlead.worker.plan import NOTHING, CarryUnreadable, read_carry
from fairlead.worker.reasons import bounded, describe, reason_of
from fairlead.worker.step import Step, StepFailed

#: Strict, so that the next step gets what this one returned: no NaN, no dates that come back as text.
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode
_decode = msgspec.json.Decoder().decode


class Calling:
    """All steps of a pipeline, loaded. `prepare` runs in the process of a command before the command does."""

    def __init__(self, setup: Setup, prepare: Callable[[], None] | None = None) -> None:
        """Raises `StepNotLoaded`."""
        self._setup = setup
        self._prepare = prepare
        if setup.base not in sys.path:
            sys.path.insert(0, setup.base)
        self._functions = [load_function(step) if step.run is not None else None for step in setup.steps]

    def __call__(self, call: Call) -> Done | Failed:
        began = time.perf_counter_ns()
        step = self._setup.steps[call.step]
        try:
            value = self._run(step, call)
        except Exception as error:
            return self._failed(step, call, error, began)
        except BaseException as error:
            # sys.exit() in a step ends the step and not what runs it.
            return self._failed(step, call, error, began)
        return Done(call.ticket, (time.perf_counter_ns() - began) // 1000, value)

    def _run(self, step: StepSpec, call: Call) -> bytes:
        try:
            item = _decode(call.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _Refused(FailureReason.SERIALIZATION_ERROR, f"expected the payload to be JSON ({type(error).__name__}: {error})") from None
        previous = self._setup.steps[call.step - 1].name if call.step else ""
        function = self._functions[call.step]
        if function is None:
            value = read_carry(self._setup.pipeline, call.carry).get(previous, NOTHING)
            return run_command(step, call, item, value, base=self._setup.base, prepare=self._prepare)
        returned = function(item, Step(step.name, self._setup.pipeline, previous, call))
        return b"" if returned is None else _dump(returned)

    def _failed(self, step: StepSpec, call: Call, error: BaseException, began: int) -> Failed:
        took_us = (time.perf_counter_ns() - began) // 1000
        if isinstance(error, CommandFailed):
            return Failed(call.ticket, took_us, error.reason, bounded(f"step {step.name!r}: {error.text}"))
        if isinstance(error, (_Refused, CarryUnreadable)):
            return Failed(call.ticket, took_us, FailureReason.SERIALIZATION_ERROR, bounded(f"step {step.name!r}: {error}"))
        if isinstance(error, StepFailed):
            return _said(call.ticket, took_us, step.name, error)
        text = describe(step.name, error, ours=__file__)
        return Failed(call.ticket, took_us, reason_of(type(error), self._setup.reasons), text, spent=isinstance(error, MemoryError))


class _Refused(Exception):
    def __init__(self, reason: FailureReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def _dump(returned: object) -> bytes:
    try:
        return _encode(returned).encode()
    except (TypeError, ValueError, RecursionError) as error:
        what = f"expected a step to return something JSON can hold, or nothing, got {type(returned).__name__} ({error})"
        raise _Refused(FailureReason.SERIALIZATION_ERROR, what) from None


def _said(ticket: int, took_us: int, step: str, failure: StepFailed) -> Failed:
    """What a step says about its failure counts where it makes sense; where not, the text says so, and the policy decides."""
    notes, retry_in_ms = [], None
    try:
        reason = read_reason(failure.reason)
    except InvalidRequest as wrong:
        reason = FailureReason.HANDLER_EXCEPTION
        notes.append(str(wrong))
    if failure.retry_in is not None and not failure.dead:
        try:
            retry_in_ms = to_ms(failure.retry_in, "retry_in")
        except InvalidRequest as wrong:
            notes.append(str(wrong))
    elif failure.retry_in is not None:
        notes.append("retry_in was given with dead=True, which won")
    said = f"step {step!r}: {failure.message or 'failed'}"
    return Failed(ticket, took_us, reason, bounded("\n".join([said, *notes])), retry_in_ms, bool(failure.dead))


def load_function(step: StepSpec) -> Callable[[Any, Step], object]:
    """A function of item and step, whatever the author's takes. Raises `StepNotLoaded`."""
    assert step.run is not None
    module_name, colon, path = step.run.partition(":")
    if not colon or not module_name or not path:
        raise StepNotLoaded(step.name, step.run, "that is not of the form module:function")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except BaseException as error:
        raise StepNotLoaded(step.name, step.run, f"it cannot be imported ({type(error).__name__}: {error})") from None
    if not callable(found):
        raise StepNotLoaded(step.name, step.run, f"that is a {type(found).__name__}, and cannot be called")
    return _adapted(step, found)


def _adapted(step: StepSpec, function: Any) -> Callable[[Any, Step], object]:
    takes = _positional(function)
    if takes == 0:
        raise StepNotLoaded(step.name, step.run or "", "it takes no argument; a step takes the item, and perhaps a fairlead.Step")
    if inspect.iscoroutinefunction(function):
        return lambda item, context: asyncio.run(function(item, context) if takes > 1 else function(item))
    if takes == 1:
        return lambda item, context: function(item)
    return function  # type: ignore[no-any-return]


def _positional(function: Any) -> int:
    """How many of item and step it takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # some written in C do not say
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 2
    positional = [parameter for parameter in parameters if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    if len(required) > 2:
        return 0
    return 2 if len(required) == 2 or any(parameter.name in ("step", "context") for parameter in positional[1:2]) else min(1, len(positional))
