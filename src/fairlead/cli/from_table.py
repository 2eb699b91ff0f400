"""Commands made from the table of verbs.

A `Command` names its verb and the view of the answer; `from_verb` is for a command that does more than make
one request. `fairlead do` (`do.py`) has a command for every verb, with one view for all answers.

A required field is an argument, the queue first; an optional field is an option. Help, bounds and defaults
come from the field, the help of the command from the docstring of the verb, errors from the engine.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import RenderableType

import fairlead.verbs  # noqa: F401 - fills the table
from fairlead.cli.arguments import check_reason, complete_queue, complete_reason, queue_in_project
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.output import show
from fairlead.cli.parameters import expand_parameters, keyword, with_parameters
from fairlead.cli.target import Target, open_target
from fairlead.cli.values import read_value
from fairlead.fields import Field, fields_of
from fairlead.model.failure import FailureReason
from fairlead.request import VERBS, Verb
from fairlead.wire.typed import is_json, is_text_list

#: Turns a request and its answer into the value of `-o json` and the text or table for people.
View = Callable[[Any, Any], tuple[object, RenderableType | Callable[[], RenderableType]]]

_METAVARS: dict[type, str] = {int: "N", float: "N"}
#: Sentences of a docstring that concern programs only.
_FOR_PROGRAMS = re.compile(r"\s*\b(?:Raises|Returns)\s[^.]*\.")


class Command(NamedTuple):
    name: str
    verb: str
    view: View
    #: Parameters of Typer by field, where the usual ones do not fit; the field supplies what they leave out.
    params: Mapping[str, Any] = {}
    #: Functions whose parameters replace a field, as in `expand_parameters`.
    readers: Mapping[str, Callable[..., Any]] = {}
    #: Describes what the command will do; the command then asks for confirmation.
    asks: Callable[[Target, Any], str] | None = None
    #: Whether the command creates a data directory that does not exist.
    creates: bool = False
    settings: dict[str, Any] | None = None


def add_group(app: typer.Typer, name: str, help: str, commands: Iterable[Command]) -> None:
    group = typer.Typer(no_args_is_help=True, help=help)
    add_commands(group, commands)
    app.add_typer(group, name=name)


def add_commands(group: typer.Typer, commands: Iterable[Command]) -> None:
    for command in commands:
        group.command(command.name, context_settings=command.settings)(make_command(command))


def make_command(command: Command) -> Callable[..., None]:
    asks = command.asks

    def run(request: Any, yes: Yes = False) -> None:
        with open_target(create=command.creates) as target:
            if asks is not None:
                confirm(asks(target, request), yes=yes)
            answer = target.do(request)
            if request.paged:
                answer = [one for page in answer for one in page]
        show(*command.view(request, answer))

    def run_at_once(request: Any) -> None:
        run(request)

    made = run_at_once if asks is None else run
    made.__name__ = command.name
    return from_verb(command.verb, params=command.params, readers=command.readers)(made)


def from_verb(
    name: str,
    *,
    params: Mapping[str, Any] = MappingProxyType({}),
    readers: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    without: Collection[str] = (),
    options: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command out of a function that takes a `request` of this verb, and options of its own.

    The fields of the verb replace the parameter `request`, except those in `without`; see `Command` for
    `params` and `readers`. A function without a docstring gets that of the verb. `options` names the option
    of a field where the option does not have the field's name.
    """
    verb = VERBS[name]
    fields = [field for field in _in_order(verb) if field.name not in without]

    def read(**given: Any) -> Any:
        return verb.request(**_values(verb, given))

    parameters = [
        _parameter(verb, field, params.get(field.name), has_reader=field.name in readers) for field in fields
    ]
    reader = expand_parameters(**readers)(with_parameters(read, parameters, name=name, doc=None))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        function.__doc__ = function.__doc__ or help_of(verb, options)
        function.verb_name = name  # type: ignore[attr-defined]
        return expand_parameters(request=reader)(function)

    return decorate


def _values(verb: Verb, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that were not given keep the default of the request."""
    fields = {field.name: field for field in fields_of(verb.request)}
    return {name: read_value(fields[name], typed) for name, typed in given.items() if typed is not None}


def _in_order(verb: Verb) -> list[Field]:
    """The queue is the first argument of every command."""
    return sorted(fields_of(verb.request), key=lambda field: field.name != verb.request.queue_field)


def _parameter(verb: Verb, field: Field, given: Any, *, has_reader: bool) -> inspect.Parameter:
    if has_reader:
        return keyword(field.name, Any)
    if given is None and field.name == verb.request.queue_field:
        info = typer.Argument if field.required else typer.Option
        given = info(metavar="QUEUE", callback=_queues_in_project, autocompletion=complete_queue)
    return parameter_of(field, given)


def parameter_of(field: Field, given: Any = None) -> inspect.Parameter:
    """Make the parameter of a field. `given` is an argument or option of Typer; the field supplies the rest."""
    info = given or _usual_parameter(field)
    info.help = info.help or field.description.replace("None:", "not given:")
    info.min, info.max = field.meta.ge, field.meta.le
    info.metavar = info.metavar or _metavar(field)
    return keyword(field.name, Annotated[_kind(field), info], _default(field))


def _usual_parameter(field: Field) -> Any:
    info = typer.Argument if field.required else typer.Option
    if FailureReason in field.kinds:
        return info(callback=check_reason, autocompletion=complete_reason)
    if field.default is False:
        # Without the negative form, which is the default.
        return typer.Option("--" + field.name.replace("_", "-"))
    if is_json(field):
        return info(help=f"{field.description} As JSON.".lstrip())
    return info()


def _default(field: Field) -> Any:
    if field.required:
        return inspect.Parameter.empty
    if is_text_list(field) or is_json(field):
        return None
    return field.default.word if isinstance(field.default, FailureReason) else field.default


def _queues_in_project(given: str | list[str] | None) -> Any:
    """Names inside JSON are full names."""
    if isinstance(given, list):
        return [name if name.startswith("[") else queue_in_project(name) for name in given]
    return queue_in_project(given)


def _metavar(field: Field) -> str | None:
    if field.is_duration:
        return "DURATION"
    if bool in field.kinds:
        return None
    name = field.name.upper()
    if is_json(field) and not field.required:
        return "JSON"
    if FailureReason in field.kinds:
        return "REASON"
    number = None if field.required else _METAVARS.get(field.kinds[0])
    return "|".join(field.choices) or number or name


def _kind(field: Field) -> Any:
    """The type as which Typer reads the value. The engine reads all but numbers and flags."""
    kind = next((kind for kind in (bool, int, float) if field.kinds == (kind,)), str)
    read_as = list[str] if is_text_list(field) else kind
    return read_as | None if _default(field) is None else read_as


def help_of(verb: Verb, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """The docstring of the verb, with fields replaced by the names of their arguments and options."""
    text = _FOR_PROGRAMS.sub("", inspect.getdoc(verb.request) or "")
    for field in fields_of(verb.request):
        option = options.get(field.name) or "--" + field.name.replace("_", "-")
        shown = field.name.upper() if field.required else option
        text = text.replace(f"`{field.name}`", shown)
    return text
