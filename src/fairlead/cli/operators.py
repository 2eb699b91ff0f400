"""`queue retry`, `drop`, `done`, `bury`, `hold`, `unhold`, `fail`, `prune`, `release-stream`: repair by id or
by filter.

By id, one that cannot be done is an error when it is the only one, and a line among the results when it is
one of many. By filter, the exact number is shown before anything is asked, and only messages that were shown
are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer
from rich.console import RenderableType

from fairlead import DeadFilter
from fairlead.cli.arguments import As, Ids, QueueName
from fairlead.cli.chosen import wrong_usage
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.filters import read_filter
from fairlead.cli.from_table import Command, add_commands, help_of
from fairlead.cli.ids import find_message, full_ids
from fairlead.cli.message_view import status_of_message
from fairlead.cli.output import clean, count_of, short, show
from fairlead.cli.queue_show import messages_of
from fairlead.cli.splice import splice
from fairlead.cli.target import Target, open_target
from fairlead.errors import InvalidRequest, MessageNotFound
from fairlead.model.names import dead_letter_name, is_dead_letter_name
from fairlead.model.views import OperatorResult
from fairlead.request import VERBS, Verb
from fairlead.verbs.operate import Operation

_LISTED = 20

Because = Annotated[
    str | None, typer.Option("--because", metavar="TEXT", help="The error text that is recorded.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]


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

    def command(
        queue: QueueName,
        ids: Ids = None,
        filter: DeadFilter | None = None,
        dry_run: DryRun = False,
        yes: Yes = False,
    ) -> None:
        _act(verb.name, queue, ids, filter, yes=yes, dry_run=dry_run)

    def recording_command(
        queue: QueueName,
        ids: Ids = None,
        because: Because = None,
        as_reason: As = None,
        filter: DeadFilter | None = None,
        dry_run: DryRun = False,
        yes: Yes = False,
    ) -> None:
        given = {"error": because, "reason": as_reason}
        details: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        _act(verb.name, queue, ids, filter, yes=yes, dry_run=dry_run, **details)

    chosen = recording_command if "reason" in verb.fields else command
    chosen.__name__, chosen.__doc__ = verb.name, help_of(verb)
    chosen.verb_name = verb.name  # type: ignore[union-attr]
    return splice(filter=read_filter)(chosen)


def _operation(verb: str) -> type[Operation[Any]]:
    request = VERBS[verb].request
    assert issubclass(request, Operation)
    return request


@splice(filter=read_filter)
def retry(
    queue: QueueName,
    ids: Ids = None,
    all_dead: Annotated[
        bool, typer.Option("--all-dead", help="Every dead letter: the same as --status dead.")
    ] = False,
    status: Annotated[
        str | None,
        typer.Option(
            "--status", metavar="dead|failed", help="All that are dead, or all that wait for a next try."
        ),
    ] = None,
    keep_count: Annotated[
        bool, typer.Option("--keep-count", help="Only messages that wait; their count of failures stays.")
    ] = False,
    filter: DeadFilter | None = None,
    dry_run: DryRun = False,
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
    if status is not None and ids:
        wrong_usage("expected ids, or --all-dead or --status, not both")
    if status is not None and filter is None:
        filter = DeadFilter()
    if status == "dead" and not is_dead_letter_name(queue):
        queue = dead_letter_name(queue)
    only = _failed_ids if status == "failed" else None
    _act("retry", queue, ids, filter, yes=yes, dry_run=dry_run, only=only, keep_count=keep_count)


def prune(
    queue: QueueName,
    older_than: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Only what has been dead or done for so long.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="However long.")] = False,
    dead: Annotated[bool, typer.Option("--dead", help="Only dead letters.")] = False,
    done: Annotated[bool, typer.Option("--done", help="Only completed messages that are kept.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Drop dead letters and completed messages for good, by how long they have been dead or done."""
    if (older_than is None) != everything:
        wrong_usage("expected --older-than DURATION, or --all for all of them")
    age = older_than or "0s"
    which: Literal["all", "done", "dead"] = "all" if dead == done else "dead" if dead else "done"
    over = {"all": "dead or done", "dead": "dead", "done": "done"}[which]
    with open_target() as target:
        told = target.prune(queue, older_than=age, which=which, dry_run=True)
        if dry_run or not told.changed:
            _report("drop", queue, told, dry_run=True)
            return
        confirm(
            f"drop {_number(told)} of queue {queue!r} for good"
            + (f", {over} for {age} or longer" if older_than else ""),
            yes=yes,
        )
        result = target.prune(queue, older_than=age, which=which)
    _report("drop", queue, result)


def _stream_released(asked: Any, released: bool) -> tuple[object, RenderableType]:
    stream = clean(asked.stream)
    said = f"nothing waits at the head of stream {stream!r}"
    if released:
        said = f"stream {stream!r} of queue {asked.queue!r} goes on"
    return {"queue": asked.queue, "stream": asked.stream, "released": released}, said


# What they have in common


def _act(
    verb: str,
    queue: str,
    ids: Sequence[str] | None,
    filter: DeadFilter | None,
    *,
    yes: bool,
    dry_run: bool,
    only: Callable[[Target, str], set[str]] | None = None,
    **details: Any,
) -> None:
    if bool(ids) == (filter is not None):
        wrong_usage(
            f"expected ids of messages, or options that say which, such as --reason; see: fairlead queue {verb} --help"
        )
    with open_target() as target:
        call: Callable[..., OperatorResult] = getattr(target, verb)
        if ids:
            result = _by_id(target, call, verb, queue, ids, yes=yes, dry_run=dry_run, details=details)
        else:
            result = _by_filter(
                target, call, verb, queue, filter, yes=yes, dry_run=dry_run, only=only, details=details
            )
    _report(verb, queue, result, dry_run=dry_run)


def _by_id(
    target: Target,
    call: Callable[..., OperatorResult],
    verb: str,
    queue: str,
    given: Sequence[str],
    *,
    yes: bool,
    dry_run: bool,
    details: Any,
) -> OperatorResult:
    ids: list[str]
    unclear: list[tuple[str, str]]
    if len(given) == 1:
        info = find_message(target, queue, given[0])
        ids, unclear = [info.id], []
        naming = f"message {short(info.id)} ({status_of_message(info)})"
    else:
        target.stats(queue)  # an unknown queue is one error, not one a message
        ids, unclear = full_ids(target, queue, given)
        naming = f"{count_of(len(ids), 'message')} ({', '.join(short(found) for found in ids[:_LISTED])}{', ...' if len(ids) > _LISTED else ''})"
    if _operation(verb).final and not dry_run and ids:
        confirm(f"{verb} {naming} of queue {queue!r} for good", yes=yes)
    result = _call_by_id(call, verb, queue, ids, dry_run=dry_run, **details) if ids else OperatorResult(())
    if len(given) == 1 and result.skipped:
        raise _refusal(target, verb, result.skipped[0])
    return OperatorResult(result.changed, (*result.skipped, *unclear), result.more)


def _call_by_id(
    call: Callable[..., OperatorResult], verb: str, queue: str, ids: Sequence[str], **details: Any
) -> OperatorResult:
    """`retry` raises for a single id that cannot be retried; the other verbs skip it. Here all skip it."""
    try:
        return call(queue, ids, **details)
    except MessageNotFound as unknown:
        return OperatorResult((), ((unknown.message_id, "not found in this queue"),))
    except InvalidRequest as refused:
        if refused.field != f"message {ids[0]}":
            raise
        return OperatorResult((), ((ids[0], f"{refused.got}, not {_operation(verb).applies_to}"),))


def _refusal(target: Target, verb: str, skipped: tuple[str, str]) -> InvalidRequest | MessageNotFound:
    message_id, why = skipped
    if why.startswith("not found"):
        return MessageNotFound(message_id)
    refusal = InvalidRequest(
        f"message {short(message_id)}",
        _operation(verb).applies_to,
        status_of_message(target.find(message_id)),
    )
    if not why.endswith(_operation(verb).applies_to):
        refusal.add_note(why)
    return refusal


def _by_filter(
    target: Target,
    call: Callable[..., OperatorResult],
    verb: str,
    queue: str,
    filter: DeadFilter | None,
    *,
    yes: bool,
    dry_run: bool,
    only: Callable[[Target, str], set[str]] | None,
    details: Any,
) -> OperatorResult:
    def selected() -> OperatorResult:
        told = call(queue, filter=filter, dry_run=True, **details)
        if only is None:
            return told
        wanted = only(target, queue)
        return OperatorResult(tuple(found for found in told.changed if found in wanted), (), told.more)

    told = selected()
    if dry_run or not told.changed:
        return told
    confirm(
        f"{verb} {_number(told)} of queue {queue!r}" + (" for good" if _operation(verb).final else ""),
        yes=yes,
    )
    # Someone may have taken a while to say yes: what no longer fits is left alone, and what fits since was
    # not agreed to.
    still = told.changed if yes else [found for found in selected().changed if found in set(told.changed)]
    result = _call_by_id(call, verb, queue, list(still), **details) if still else OperatorResult(())
    return OperatorResult(result.changed, result.skipped, told.more)


def _failed_ids(target: Target, queue: str) -> set[str]:
    return {info.id for info in messages_of(target, queue, "failed")}


def _number(told: OperatorResult) -> str:
    """The engine acts on at most 10,000 at a time, and says when there are more."""
    return count_of(len(told.changed), "message") + (", the first of more than that," if told.more else "")


def _report(verb: str, queue: str, result: OperatorResult, *, dry_run: bool = False) -> None:
    did = f"would be {_operation(verb).past}" if dry_run else _operation(verb).past
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
