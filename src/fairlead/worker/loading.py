"""From the name of a step's function to a function that takes item and step, whatever its author's takes."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fairlead.errors import StepNotLoaded
from fairlead.runbook.model import StepSpec

#: A second parameter of one of these names gets the step also where it has a default.
_STEP_NAMES = ("step", "context")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def find_function(step: StepSpec) -> Any:
    """Raises `StepNotLoaded`."""
    assert step.run is not None
    module_name, colon, path = step.run.partition(":")
    if not colon or not module_name or not path:
        raise StepNotLoaded(step.name, step.run, "expected the form module:function")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except BaseException as error:
        what = f"it cannot be imported ({type(error).__name__}: {error})"
        raise StepNotLoaded(step.name, step.run, what) from None
    if not callable(found):
        what = f"expected a function, got a {type(found).__name__}, which cannot be called"
        raise StepNotLoaded(step.name, step.run, what)
    return found


def adapted(step: StepSpec, function: Any) -> Callable[[Any, Any], object]:
    """A function of the item (or items) and the step; a coroutine function is run to its end. Raises
    `StepNotLoaded`.
    """
    takes = _arguments_taken(function)
    if takes == 0:
        accepted = "the items and optionally a fairlead.BatchStep"
        if not step.batch:
            accepted = "the item and optionally a fairlead.Step"
        what = f"expected a function that takes {accepted}; it takes no argument or more than these"
        raise StepNotLoaded(step.name, step.run or "", what)
    if inspect.iscoroutinefunction(function):
        if takes == 1:
            return lambda item, context: asyncio.run(function(item))
        return lambda item, context: asyncio.run(function(item, context))
    if takes == 1:
        return lambda item, context: function(item)
    return function  # type: ignore[no-any-return]


def _arguments_taken(function: Any) -> int:
    """How many of item and step the function takes: 0 if it cannot be called with either."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return 1  # some functions written in C have no signature
    if inspect.Parameter.VAR_POSITIONAL in {parameter.kind for parameter in parameters}:
        return 2
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    required = sum(parameter.default is parameter.empty for parameter in positional)
    if required > 2:
        return 0
    if required == 2 or _takes_step(positional):
        return 2
    return min(1, len(positional))


def _takes_step(positional: list[inspect.Parameter]) -> bool:
    return len(positional) > 1 and positional[1].name in _STEP_NAMES
