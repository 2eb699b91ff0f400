"""`queue retry`, `drop`, `done`, `bury`, `hold`, `unhold`, `fail`, `prune`, `release-stream`: repair by id or
by filter.

By id, one that cannot be done is an error when it is the only one, and a line among the results when it is
one of many. By filter, the exact number is shown before anything is asked, and only messages that were shown
are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.console import RenderableType

from fairlead import DeadFilter
from fairlead.cli.arguments import as_option, ids_argument, in_dead_letters
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.filters import read_filter
from fairlead.cli.from_table import Command, add_commands, from_verb
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.ids import find_message, full_ids
from fairlead.cli.message_view import status_of_message
from fairlead.cli.output import clean, count_of, short, show
from fairlead.cli.queue_show import messages_of
from fairlead.cli.target import Target, open_target
from fairlead.errors import InvalidRequest, MessageNotFound
from fairlead.model.views import OperatorResult
from fairlead.request import VERBS, Verb
from fairlead.verbs.operate import Drop, Operation

_LISTED = 20
_ANY_AGE = "0s"
_OVER = {"all": "dead or done", "dead": "dead", "done": "done"}


def register(queue: typer.Typer) -> None:
    queue.command("retry")(retry)
    for verb in operations():
        if verb.name != "retry":
            queue.command(verb.name)(_command(verb))
    queue.command("prune")(prune)
    add_commands(queue, [Command("release-stream", "release_stream", _stream_released)])


def operations() -> list[Verb]:
    """The verbs of operators that select messages by id or filter."""
    return [
        verb
        for verb in VERBS.values()
        if issubclass(verb.request, Operation)
        and {"ids", "filter"} <= set(verb.fields)
        and verb.name != "redrive"
    ]


def _command(verb: Verb) -> Callable[..., None]:
    """A command with the fields of the verb, and its documentation as help."""

    def command(request: Any, yes: Yes = False) -> None:
        _act(request, yes=yes)

    command.__name__ = verb.name
    # The filter first: its options have the names of the two other fields.
    readers: dict[str, Callable[..., Any]] = {
        "filter": read_filter,
        "error": _read_because,
        "reason": _read_reason,
    }
    own = {name: reader for name, reader in readers.items() if name in verb.fields}
    options = {"reason": "--as", "error": "--because"}
    return from_verb(verb.name, params={"ids": ids_argument()}, readers=own, options=options)(command)


def _read_because(
    because: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The error text that is recorded.")
    ] = None,
) -> str | None:
    return because


def _read_reason(as_reason: Annotated[str | None, as_option()] = None) -> str | None:
    return as_reason


@from_verb("retry", params={"ids": ids_argument()}, readers={"filter": read_filter})
def retry(
    request: Any,
    all_dead: Annotated[
        bool, typer.Option("--all-dead", help="Every dead letter: the same as --status dead.")
    ] = False,
    status: Annotated[
        str | None,
        typer.Option(
            "--status", metavar="dead|failed", help="All that are dead, or all that wait for a next try."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Try messages again now that are dead or failed, each with a count of 0.

    Give ids, --all-dead, --status or a filter. For more than 10,000 dead letters, or at a rate, use: fairlead
    redrive.
    """
    if all_dead and status not in (None, "dead"):
        wrong_usage("expected --all-dead or --status failed, not both")
    status = "dead" if all_dead else status
    if status not in (None, "dead", "failed"):
        wrong_usage(f"expected --status to be dead or failed, got {status!r}")
    if status is not None and request.ids:
        wrong_usage("expected ids, or --all-dead or --status, not both")
    if status is not None:
        request = replace(request, filter=request.filter or DeadFilter())
    if status == "dead":
        request = replace(request, queue=in_dead_letters(request.queue))
    _act(request, yes=yes, only=_failed_ids if status == "failed" else None)


def _read_age(
    older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only what has been dead or done for so long.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="However long.")] = False,
) -> str:
    if (older_than is None) != everything:
        wrong_usage("expected --older-than DURATION, or --all for all of them")
    return older_than or _ANY_AGE


def _read_which(
    dead: Annotated[bool, typer.Option("--dead", help="Only dead letters.")] = False,
    done: Annotated[bool, typer.Option("--done", help="Only completed messages that are kept.")] = False,
) -> str:
    if dead == done:
        return "all"
    return "dead" if dead else "done"


@from_verb("prune", readers={"older_than": _read_age, "which": _read_which})
def prune(request: Any, yes: Yes = False) -> None:
    """Drop dead letters and completed messages for good, by how long they have been dead or done."""
    with open_target() as target:
        told = target.do(replace(request, dry_run=True))
        if request.dry_run or not told.changed:
            _report(Drop, request.queue, told, dry_run=True)
            return
        age = request.older_than
        lasting = "" if age == _ANY_AGE else f", {_OVER[request.which]} for {age} or longer"
        confirm(f"drop {_number(told)} of queue {request.queue!r} for good{lasting}", yes=yes)
        result = target.do(request)
    _report(Drop, request.queue, result)


def _stream_released(asked: Any, released: bool) -> tuple[object, RenderableType]:
    stream = clean(asked.stream)
    said = f"nothing waits at the head of stream {stream!r}"
    if released:
        said = f"stream {stream!r} of queue {asked.queue!r} goes on"
    return {"queue": asked.queue, "stream": asked.stream, "released": released}, said


# What they have in common


def _act(request: Any, *, yes: bool, only: Callable[[Target, str], set[str]] | None = None) -> None:
    if bool(request.ids) == (request.filter is not None):
        got = "both" if request.ids else "neither"
        wrong_usage(
            f"expected ids of messages, or options that select them, such as --reason; got {got};"
            f" see: fairlead queue {request.verb_name} --help"
        )
    with open_target() as target:
        if request.ids:
            result = _by_id(target, request, yes=yes)
        else:
            result = _by_filter(target, request, yes=yes, only=only)
    _report(type(request), request.queue, result, dry_run=request.dry_run)


def _by_id(target: Target, request: Any, *, yes: bool) -> OperatorResult:
    given, queue = request.ids, request.queue
    ids: list[str]
    unclear: list[tuple[str, str]]
    if len(given) == 1:
        info = find_message(target, queue, given[0])
        ids, unclear = [info.id], []
        naming = f"message {short(info.id)} ({status_of_message(info)})"
    else:
        target.stats(queue)  # an unknown queue is one error, not one a message
        ids, unclear = full_ids(target, queue, given)
        shown = ", ".join(short(found) for found in ids[:_LISTED]) + (", ..." if len(ids) > _LISTED else "")
        naming = f"{count_of(len(ids), 'message')} ({shown})"
    if request.final and not request.dry_run and ids:
        confirm(f"{request.act or request.verb_name} {naming} of queue {queue!r} for good", yes=yes)
    result = _do_by_id(target, request, ids)
    if len(given) == 1 and result.skipped:
        raise _refusal(target, request, result.skipped[0])
    return OperatorResult(result.changed, (*result.skipped, *unclear), result.more)


def _do_by_id(target: Target, request: Any, ids: Sequence[str]) -> OperatorResult:
    """`retry` raises for a single id that cannot be retried; the other verbs skip it. Here all skip it."""
    if not ids:
        return OperatorResult(())
    try:
        result: OperatorResult = target.do(replace(request, ids=list(ids), filter=None))
        return result
    except MessageNotFound as unknown:
        return OperatorResult((), ((unknown.message_id, "not found in this queue"),))
    except InvalidRequest as refused:
        if refused.field != f"message {ids[0]}":
            raise
        return OperatorResult((), ((ids[0], f"{refused.got}, not {request.applies_to}"),))


def _refusal(target: Target, request: Any, skipped: tuple[str, str]) -> InvalidRequest | MessageNotFound:
    message_id, why = skipped
    if why.startswith("not found"):
        return MessageNotFound(message_id)
    status = status_of_message(target.find(message_id))
    refusal = InvalidRequest(f"message {short(message_id)}", request.applies_to, status)
    if not why.endswith(request.applies_to):
        refusal.add_note(why)
    if request.verb_name == "retry":
        refusal.add_note(
            f"to set its failure count to 0: fairlead queue reset {request.queue} {short(message_id)}"
        )
    return refusal


def _by_filter(
    target: Target, request: Any, *, yes: bool, only: Callable[[Target, str], set[str]] | None
) -> OperatorResult:
    def selected() -> OperatorResult:
        told: OperatorResult = target.do(replace(request, ids=None, dry_run=True))
        if only is None:
            return told
        wanted = only(target, request.queue)
        return OperatorResult(tuple(found for found in told.changed if found in wanted), (), told.more)

    told = selected()
    if request.dry_run or not told.changed:
        return told
    for_good = " for good" if request.final else ""
    act = request.act or request.verb_name
    confirm(f"{act} {_number(told)} of queue {request.queue!r}{for_good}", yes=yes)
    # Someone may have taken a while to say yes: what no longer fits is left alone, and what fits since was
    # not agreed to.
    still = told.changed if yes else [found for found in selected().changed if found in set(told.changed)]
    result = _do_by_id(target, request, still)
    return OperatorResult(result.changed, result.skipped, told.more)


def _failed_ids(target: Target, queue: str) -> set[str]:
    return {info.id for info in messages_of(target, queue, "failed")}


def _number(told: OperatorResult) -> str:
    """The engine acts on at most 10,000 at a time, and says when there are more."""
    return count_of(len(told.changed), "message") + (", the first of more than that," if told.more else "")


def _report(kind: type[Operation[Any]], queue: str, result: OperatorResult, *, dry_run: bool = False) -> None:
    did = f"would be {kind.past}" if dry_run else kind.past
    lines = []
    if len(result.changed) <= _LISTED:
        lines += [f"{short(message_id)}  {did}" for message_id in result.changed]
    lines += [f"{_short(given)}  skipped: {clean(why)}" for given, why in result.skipped[:_LISTED]]
    if len(result.skipped) > _LISTED:
        lines.append(f"{len(result.skipped) - _LISTED:,} more skipped")
    lines.append(
        f"{count_of(len(result.changed), 'message')} of queue {queue!r} {did}"
        if result.changed
        else "nothing to do"
    )
    if result.more:
        lines.append("more match; run it again to go on")
    show(result, "\n".join(lines))


def _short(given: str) -> str:
    return short(given) if len(given) == 36 else clean(given)
