"""Calling the steps of a pipeline, from bytes to bytes, in a process or a thread. Every failure becomes a
value.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec

from fairlead.runbook.model import StepSpec
from fairlead.worker import batch_calls, loading
from fairlead.worker.batch_calls import BatchStepFunction
from fairlead.worker.command import run_command
from fairlead.worker.loading import adapted, find_function
from fairlead.worker.outcomes import dump_value, failure_of, not_json
from fairlead.worker.plan import NOTHING, read_carry
from fairlead.worker.protocol import BatchCall, BatchDone, CallDone, CallFailed, PipelineSetup, StepCall
from fairlead.worker.step import Step

_OURS = (__file__, loading.__file__, batch_calls.__file__)

_decode = msgspec.json.Decoder().decode


class StepRunner:
    """The loaded steps of a pipeline. `prepare` runs in the process of a command before the command does."""

    def __init__(self, setup: PipelineSetup, prepare: Callable[[], None] | None = None) -> None:
        """Raises `StepNotLoaded`."""
        self._setup = setup
        self._prepare = prepare
        if setup.base not in sys.path:
            sys.path.insert(0, setup.base)
        self._functions = [
            adapted(step, find_function(step)) if step.run is not None and not step.batch else None
            for step in setup.steps
        ]
        self._batch_functions = {
            position: BatchStepFunction(step, setup)
            for position, step in enumerate(setup.steps)
            if step.batch
        }

    def __call__(self, call: StepCall | BatchCall) -> CallDone | CallFailed | BatchDone:
        began = time.perf_counter_ns()
        step = self._setup.steps[call.step]
        try:
            if isinstance(call, BatchCall):
                values, failed = self._batch_functions[call.step](call)
                return BatchDone(call.ticket, (time.perf_counter_ns() - began) // 1000, values, failed)
            value = self._run(step, call)
        except BaseException as error:
            # Also SystemExit: sys.exit() in a step ends the step and not its process.
            return self._failed(step, call, error, began)
        return CallDone(call.ticket, (time.perf_counter_ns() - began) // 1000, value)

    def _run(self, step: StepSpec, call: StepCall) -> bytes:
        try:
            item = _decode(call.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json(error) from None
        previous = self._setup.steps[call.step - 1].name if call.step else ""
        function = self._functions[call.step]
        if function is None:
            value = read_carry(self._setup.pipeline, call.carry).get(previous, NOTHING)
            return run_command(step, call, item, value, base=self._setup.base, prepare=self._prepare)
        return dump_value(function(item, Step(step.name, self._setup.pipeline, previous, call)))

    def _failed(
        self, step: StepSpec, call: StepCall | BatchCall, error: BaseException, began: int
    ) -> CallFailed:
        took_us = (time.perf_counter_ns() - began) // 1000
        return failure_of(
            error, step.name, self._setup.reasons, ticket=call.ticket, took_us=took_us, ours=_OURS
        )
