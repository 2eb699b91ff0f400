"""From the name of a step's callable to something that can be called with item and step, whatever its
author's takes.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fairlead.errors import StepNotLoaded
from fairlead.runbook.model import StepSpec


def find_function(step: StepSpec) -> Any:
    """Raises `StepNotLoaded`."""
    assert step.run is not None
    module_name, colon, path = step.run.partition(":")
    if not colon or not module_name or not path:
        raise StepNotLoaded(step.name, step.run, "that is not of the form module:function")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except BaseException as error:
        raise StepNotLoaded(
            step.name, step.run, f"it cannot be imported ({type(error).__name__}: {error})"
        ) from None
    if not callable(found):
        raise StepNotLoaded(step.name, step.run, f"that is a {type(found).__name__}, and cannot be called")
    return found


def adapted(step: StepSpec, function: Any) -> Callable[[Any, Any], object]:
    """A function of two, the item or items and the step. Raises `StepNotLoaded`."""
    takes = _positional(function)
    if takes == 0:
        what = (
            "the items, and perhaps a fairlead.BatchStep"
            if step.batch
            else "the item, and perhaps a fairlead.Step"
        )
        raise StepNotLoaded(step.name, step.run or "", f"it takes no argument; a step takes {what}")
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
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    if len(required) > 2:
        return 0
    return (
        2
        if len(required) == 2 or any(parameter.name in ("step", "context") for parameter in positional[1:2])
        else min(1, len(positional))
    )
