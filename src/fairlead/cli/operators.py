"""`queue retry`, `drop`, `done`, `bury`, `hold`, `unhold`, `fail`, `prune`, `release-stream`: repair by id or
by filter.

A single id that does not apply is an error; among several ids it is a line of the result. With a filter, the
command shows the exact number before it asks, and changes only the messages that it counted.
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

_MAX_LISTED = 20
_ANY_AGE = "0s"
_STATES = {"all": "dead or done", "dead": "dead", "done": "done"}


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
    """Make a command with the fields of the verb, and with its docstring as help."""

    def command(request: Any, yes: Yes = False) -> None:
        _act(request, yes=yes)

    command.__name__ = verb.name
    # The filter comes first, because its options have the names of the two other fields.
    readers: dict[str, Callable[..., Any]] = {
        "filter": read_filter,
        "error": _read_because,
        "reason": _read_reason,
    }
    own = {name: reader for name, reader in readers.items() if name in verb.fields}
    options = {"reason": "--as", "error": "--because"}
    return from_verb(verb.name, params={"ids": ids_argument()}, readers=own, options=options)(command)


def _read_because(
    because: Annotated[str | None, typer.Option(metavar="TEXT", help="Error text to record.")] = None,
) -> str | None:
    return because


def _read_reason(as_reason: Annotated[str | None, as_option()] = None) -> str | None:
    return as_reason


@from_verb("retry", params={"ids": ids_argument()}, readers={"filter": read_filter})
def retry(
    request: Any,
    all_dead: Annotated[
        bool, typer.Option("--all-dead", help="Select every dead letter, as --status dead does.")
    ] = False,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="dead|failed",
            help="Select all dead letters, or all messages that wait for their next attempt.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Retry dead and failed messages now, each with a failure count of 0.

    Select them by id, --all-dead, --status or a filter. For more than 10,000 dead letters, or to limit the
    rate, use: fairlead redrive.
    """
    status = _status_to_retry(all_dead, status)
    if status is not None:
        if request.ids:
            wrong_usage("expected ids, or --all-dead or --status, not both")
        request = replace(request, filter=request.filter or DeadFilter())
    if status == "dead":
        request = replace(request, queue=in_dead_letters(request.queue))
    _act(request, yes=yes, only=_failed_ids if status == "failed" else None)


def _status_to_retry(all_dead: bool, status: str | None) -> str | None:
    if status not in (None, "dead", "failed"):
        wrong_usage(f"expected --status to be dead or failed, got {status!r}")
    if all_dead and status == "failed":
        wrong_usage("expected --all-dead or --status failed, not both")
    return "dead" if all_dead else status


def _read_age(
    older_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Select messages that have been dead or done for this long."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Select all dead and done messages, whatever their age.")
    ] = False,
) -> str:
    if (older_than is None) != everything:
        wrong_usage("expected --older-than DURATION, or --all for all of them")
    return older_than or _ANY_AGE


def _read_which(
    dead: Annotated[bool, typer.Option("--dead", help="Select only dead letters.")] = False,
    done: Annotated[bool, typer.Option("--done", help="Select only retained completed messages.")] = False,
) -> str:
    if dead == done:
        return "all"
    return "dead" if dead else "done"


@from_verb("prune", readers={"older_than": _read_age, "which": _read_which})
def prune(request: Any, yes: Yes = False) -> None:
    """Drop dead letters and retained completed messages for good, by age."""
    with open_target() as target:
        preview = target.do(replace(request, dry_run=True))
        if request.dry_run or not preview.changed:
            _report(Drop, request.queue, preview, dry_run=True)
            return
        age = request.older_than
        lasting = "" if age == _ANY_AGE else f", {_STATES[request.which]} for {age} or longer"
        confirm(f"drop {_number(preview)} of queue {request.queue!r} for good{lasting}", yes=yes)
        result = target.do(request)
    _report(Drop, request.queue, result)


def _stream_released(asked: Any, released: bool) -> tuple[object, RenderableType]:
    stream = clean(asked.stream)
    text = f"no message blocks stream {stream!r}"
    if released:
        text = f"stream {stream!r} of queue {asked.queue!r} continues"
    return {"queue": asked.queue, "stream": asked.stream, "released": released}, text


def _act(request: Any, *, yes: bool, only: Callable[[Target, str], set[str]] | None = None) -> None:
    if bool(request.ids) == (request.filter is not None):
        got = "both" if request.ids else "neither"
        wrong_usage(
            f"expected ids of messages, or options that select messages, such as --reason; got {got};"
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
        target.stats(queue)  # An unknown queue is one error, not one for each id.
        ids, unclear = full_ids(target, queue, given)
        listed = [short(found) for found in ids[:_MAX_LISTED]]
        if len(ids) > _MAX_LISTED:
            listed.append("...")
        naming = f"{count_of(len(ids), 'message')} ({', '.join(listed)})"
    if request.final and not request.dry_run and ids:
        confirm(f"{request.act or request.verb_name} {naming} of queue {queue!r} for good", yes=yes)
    result = _do_by_id(target, request, ids)
    if len(given) == 1 and result.skipped:
        raise _refusal(target, request, result.skipped[0])
    return OperatorResult(result.changed, (*result.skipped, *unclear), result.more)


def _do_by_id(target: Target, request: Any, ids: Sequence[str]) -> OperatorResult:
    """Run the verb. `retry` raises for a single id that it cannot retry; here every verb skips such an id."""
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
    def select() -> OperatorResult:
        found: OperatorResult = target.do(replace(request, ids=None, dry_run=True))
        if only is None:
            return found
        wanted = only(target, request.queue)
        return OperatorResult(tuple(each for each in found.changed if each in wanted), (), found.more)

    preview = select()
    if request.dry_run or not preview.changed:
        return preview
    for_good = " for good" if request.final else ""
    act = request.act or request.verb_name
    confirm(f"{act} {_number(preview)} of queue {request.queue!r}{for_good}", yes=yes)
    chosen = list(preview.changed)
    if not yes:
        # The answer may have taken a while: change only messages that were counted and that still fit.
        counted = set(chosen)
        chosen = [message_id for message_id in select().changed if message_id in counted]
    result = _do_by_id(target, request, chosen)
    return OperatorResult(result.changed, result.skipped, preview.more)


def _failed_ids(target: Target, queue: str) -> set[str]:
    return {info.id for info in messages_of(target, queue, "failed")}


def _number(preview: OperatorResult) -> str:
    """The engine changes at most 10,000 messages at a time, and reports whether more match."""
    number = count_of(len(preview.changed), "message")
    return f"{number}, the first of more than that," if preview.more else number


def _report(kind: type[Operation[Any]], queue: str, result: OperatorResult, *, dry_run: bool = False) -> None:
    did = f"would be {kind.past}" if dry_run else kind.past
    lines = []
    if len(result.changed) <= _MAX_LISTED:
        lines += [f"{short(message_id)}  {did}" for message_id in result.changed]
    lines += [f"{_short(given)}  skipped: {clean(why)}" for given, why in result.skipped[:_MAX_LISTED]]
    if len(result.skipped) > _MAX_LISTED:
        lines.append(f"{len(result.skipped) - _MAX_LISTED:,} more skipped")
    if result.changed:
        lines.append(f"{count_of(len(result.changed), 'message')} of queue {queue!r} {did}")
    else:
        lines.append("nothing to do")
    if result.more:
        lines.append("more messages match; run the command again to continue")
    show(result, "\n".join(lines))


def _short(given: str) -> str:
    return short(given) if len(given) == 36 else clean(given)
