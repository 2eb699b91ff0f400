"""Options that several commands share, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Command = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])


def expand_parameters(**readers: Callable[..., Any]) -> Callable[[Command], Command]:
    """Put the parameters of a reader in the place of the parameter that is named for it; the command gets
    what the reader returns.

    `@expand_parameters(filter=read_filter)` on `def drop(queue, filter)` makes a command with the options of
    `read_filter`.
    """

    def decorate(command: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for parameter in _parameters(command):
            parameters += _parameters(readers[parameter.name]) if parameter.name in readers else [parameter]

        def spliced(**given: Any) -> Any:
            for name, reader in readers.items():
                given[name] = reader(**{part.name: given.pop(part.name) for part in _parameters(reader)})
            return command(**given)

        spliced.__dict__.update(command.__dict__)
        return with_parameters(spliced, parameters, name=command.__name__, doc=command.__doc__)

    return decorate


def with_parameters(command: F, parameters: Sequence[inspect.Parameter], *, name: str, doc: str | None) -> F:
    """The function as if it had been written with these parameters, which is what Typer reads."""
    command.__name__, command.__doc__ = name, doc
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in found]
