"""Signatures for Typer: options that several commands share are written once, as the parameters of a reader."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def expand_parameters(**readers: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace each named parameter of a command by the parameters of its reader.

    The command is called with the reader's result. `@expand_parameters(filter=read_filter)` on
    `def drop(queue, filter)` makes a command with the options of `read_filter`.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters: list[inspect.Parameter] = []
        for parameter in _parameters(command):
            reader = readers.get(parameter.name)
            parameters += [parameter] if reader is None else _parameters(reader)

        def expanded(**given: Any) -> Any:
            for name, reader in readers.items():
                given[name] = reader(**{part.name: given.pop(part.name) for part in _parameters(reader)})
            return command(**given)

        expanded.__dict__.update(command.__dict__)
        return with_parameters(expanded, parameters, name=command.__name__, doc=command.__doc__)

    return decorate


def with_parameters(command: F, parameters: Sequence[inspect.Parameter], *, name: str, doc: str | None) -> F:
    """Give a function the signature that Typer reads: its name, help and parameters."""
    command.__name__, command.__doc__ = name, doc
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in found]
