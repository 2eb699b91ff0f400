"""Commands made from the table of verbs.

A `Command` is a line that names its verb and how the answer is shown; `from_verb` is for a command that does more
than make one request. `fairlead do` (`do.py`) has a command for every verb, with one view for all answers.

A required field is an argument, the queue first; an optional field is an option. Help, bounds and defaults
come from the field, the help of the command from the documentation of the verb, errors from the engine.
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
from fairlead.cli.arguments import check_reason, complete_queue, complete_reason, meant
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.output import show
from fairlead.cli.parameters import expand_parameters, with_parameters
from fairlead.cli.target import Target, open_target
from fairlead.cli.values import read_value
from fairlead.fields import Field, fields_of
from fairlead.model.failure import FailureReason
from fairlead.request import VERBS, Verb
from fairlead.wire.typed import is_json, is_text_list

#: What an answer to a request is shown as: the value of `-o json`, and the text or table for people.
View = Callable[[Any, Any], tuple[object, RenderableType | Callable[[], RenderableType]]]

_METAVARS: dict[type, str] = {int: "N", float: "N"}
#: What concerns programs only.
_FOR_PROGRAMS = re.compile(r"\s*\b(?:Raises|Returns)\s[^.]*\.")


class Command(NamedTuple):
    name: str
    verb: str
    view: View
    #: Parameters of Typer by field, where the usual ones do not fit; the field fills in what they leave open.
    params: Mapping[str, Any] = {}
    #: Functions whose parameters stand for a field, as in `splice`.
    readers: Mapping[str, Callable[..., Any]] = {}
    #: Completes the request from what the broker knows, or refuses it as wrong usage.
    find: Callable[[Target, Any], Any] | None = None
    #: Says what will be touched; a person is asked before it is.
    asks: Callable[[Target, Any], str] | None = None
    #: Whether a data directory is made where there is none.
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
            if command.find is not None:
                request = command.find(target, request)
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
    """A command out of a function that takes a `request` of this verb, and options that are its own.

    The fields of the verb, but for those it does `without`, stand in the place of `request`; see `Command`.
    A function without documentation has that of the verb; `options` says which option stands for a field where
    it is not the field's own name.
    """
    verb = VERBS[name]
    fields = [field for field in _in_order(verb) if field.name not in without]

    def read(**given: Any) -> Any:
        return verb.request(**_values(verb, given))

    parameters = [
        _parameter(verb, field, params.get(field.name), spliced=field.name in readers) for field in fields
    ]
    reader = expand_parameters(**readers)(with_parameters(read, parameters, name=name, doc=None))

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        function.__doc__ = function.__doc__ or help_of(verb, options)
        function.verb_name = name  # type: ignore[attr-defined]
        return expand_parameters(request=reader)(function)

    return decorate


def _values(verb: Verb, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that were not given are left to the request."""
    fields = {field.name: field for field in fields_of(verb.request)}
    return {name: read_value(fields[name], typed) for name, typed in given.items() if typed is not None}


def _in_order(verb: Verb) -> list[Field]:
    """The queue is the first argument of every command."""
    return sorted(fields_of(verb.request), key=lambda field: field.name != verb.request.queue_field)


def _parameter(verb: Verb, field: Field, given: Any, *, spliced: bool) -> inspect.Parameter:
    if spliced:
        return _keyword(field.name, Any, inspect.Parameter.empty)
    if given is None and field.name == verb.request.queue_field:
        info = typer.Argument if field.required else typer.Option
        given = info(metavar="QUEUE", callback=_meant, autocompletion=complete_queue)
    return parameter_of(field, given)


def parameter_of(field: Field, given: Any = None) -> inspect.Parameter:
    """`given` is an argument or option of Typer; the field fills in what it leaves open."""
    info = given or _usual_parameter(field)
    info.help = info.help or field.description.replace("None:", "not given:")
    info.min, info.max = field.meta.ge, field.meta.le
    info.metavar = info.metavar or _metavar(field)
    return _keyword(field.name, Annotated[_kind(field), info], _default(field))


def _usual_parameter(field: Field) -> Any:
    info = typer.Argument if field.required else typer.Option
    if FailureReason in field.kinds:
        return info(callback=check_reason, autocompletion=complete_reason)
    if field.default is False:
        # Without the opposite, which is the default.
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


def _meant(given: str | list[str] | None) -> Any:
    """Names inside JSON are taken as they are."""
    if isinstance(given, list):
        return [name if name.startswith("[") else meant(name) for name in given]
    return meant(given)


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
    """The type that Typer reads the value as; what is no number or flag is read by the engine."""
    kind = next((kind for kind in (bool, int, float) if field.kinds == (kind,)), str)
    read_as = list[str] if is_text_list(field) else kind
    return read_as | None if _default(field) is None else read_as


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def help_of(verb: Verb, options: Mapping[str, str] = MappingProxyType({})) -> str:
    """The documentation of the verb, with its fields by the names of their arguments and options."""
    text = _FOR_PROGRAMS.sub("", inspect.getdoc(verb.request) or "")
    for field in fields_of(verb.request):
        option = options.get(field.name) or "--" + field.name.replace("_", "-")
        shown = field.name.upper() if field.required else option
        text = text.replace(f"`{field.name}`", shown)
    return text
