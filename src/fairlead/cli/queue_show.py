"""`queue show` lists the messages of a queue; `queue inspect` shows everything about a queue or one message."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from fairlead.cli.arguments import QueueName, check_word
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.ids import find_message
from fairlead.cli.message_view import STATUSES, as_record, message_page, message_table, status_of_message
from fairlead.cli.output import age, clean, count_of, pairs, plain, show, table, unless_piped, when
from fairlead.cli.target import Target, open_target
from fairlead.cli.throttles import closed_table
from fairlead.errors import QueueNotFound
from fairlead.model.names import dead_letter_name, is_dead_letter_name
from fairlead.model.queue import DEAD_LETTER_OPTIONS, QueueConfig
from fairlead.model.views import HookStats, MessageInfo, QueueInfo, QueueStats, ThrottleStats
from fairlead.runbook.policies import options_of

_PAGE = 200
#: Where the messages of a status are.
_WHERE = {
    "pending": "ready",
    "delayed": "waiting",
    "held": "waiting",
    "active": "leased",
    "failed": "waiting",
    "completed": "done",
}


def register(queue: typer.Typer) -> None:
    queue.command("show")(show_messages)
    queue.command("inspect")(inspect)


def _check_statuses(words: list[str] | None) -> list[str]:
    for word in words or ():
        check_word(word, STATUSES, "a status")
    return words or []


def show_messages(
    queue: QueueName,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            "-s",
            metavar="STATUS",
            help=f"Show only messages with this status: {', '.join(STATUSES)}; may be repeated.",
            callback=_check_statuses,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Show only messages of this fairness key, and no dead letters."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, max=10_000, help="Show at most N messages of each status."
        ),
    ] = 20,
) -> None:
    """List the messages of a queue by status, with the number of failures of each.

    pending: ready for delivery. delayed, held: waiting. active: leased. failed: waiting for the next attempt.
    dead: in QUEUE.dlq. completed: done, and kept for the time of the queue's option --retain-completed.
    """
    wanted = [word for word in STATUSES if not status or word in status]
    with open_target() as target:
        stats = target.stats(queue)
        found = [info for word in wanted for info in islice(messages_of(target, queue, word, key), limit)]
    hidden = 0 if status or key is not None else _total(queue, stats) - len(found)
    show(
        {"queue": queue, "stats": plain(stats), "messages": [as_record(info) for info in found]},
        Group(_summary(queue, stats), *_list_parts(found, hidden)),
    )


def _list_parts(found: list[MessageInfo], hidden: int) -> Iterator[RenderableType]:
    if found:
        yield message_table(found)
    if hidden > 0:
        yield f"{hidden:,} more; show them with --limit or --status"


def _total(queue: str, stats: QueueStats) -> int:
    total = stats.ready + stats.leased + stats.waiting + stats.done
    return total if is_dead_letter_name(queue) else total + stats.dead


def _summary(queue: str, stats: QueueStats) -> str:
    text = (
        f"{queue}: {stats.ready:,} pending, {stats.leased:,} active, {stats.done:,} completed, "
        f"{stats.waiting:,} waiting (failed, delayed or held), {stats.dead:,} dead"
    )
    if is_dead_letter_name(queue):
        text = f"{queue}: {stats.dead:,} dead, {stats.leased:,} of them leased"
    return f"{text}, paused" if stats.paused else text


def messages_of(target: Target, queue: str, status: str, key: str | None = None) -> Iterator[MessageInfo]:
    """Yield all messages of a status, page by page. In a dead-letter queue every message is dead."""
    if status == "dead":
        dead_letters = queue if is_dead_letter_name(queue) else dead_letter_name(queue)
        if key is None:
            for where in ("ready", "leased", "waiting"):
                yield from _pages(target, dead_letters, where, None)
    elif not is_dead_letter_name(queue):
        yield from (
            info for info in _pages(target, queue, _WHERE[status], key) if status_of_message(info) == status
        )


def _pages(target: Target, queue: str, where: str, key: str | None) -> Iterator[MessageInfo]:
    after: str | None = None
    while page := target.peek(queue, limit=_PAGE, where=where, key=key, after=after):
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].id


def inspect(
    queue: QueueName,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A message: full id, prefix, last characters, or stream:NAME for the first of a stream.",
        ),
    ] = None,
    payload: Annotated[
        bool,
        typer.Option("--payload", help="Print only the payload of the message, byte for byte."),
    ] = False,
) -> None:
    """Show everything about a queue, or about one of its messages."""
    if payload and message is None:
        wrong_usage("expected the ID of a message with --payload")
    with open_target() as target:
        if message is None:
            found = _load_queue(target, queue)
            stats = target.stats(queue, keys=True, key_limit=100)
            show({**plain(found), "stats": plain(stats)}, lambda: _queue_page(found, stats))
            return
        info = find_message(target, queue, message)
    if payload:
        _print_payload(info)
    else:
        show(as_record(info), lambda: message_page(info))


def _print_payload(info: MessageInfo) -> None:
    if redacted := [part for part in info.hidden if part.startswith("payload")]:
        typer.echo(
            f"warning: this is not the payload as it was sent, {clean(', '.join(redacted))} is not shown",
            err=True,
        )
    sys.stdout.buffer.write(info.payload)


def _load_queue(target: Target, name: str) -> QueueInfo:
    """Raises `QueueNotFound`."""
    for info in target.queues(name):
        if info.name == name:
            return info
    raise QueueNotFound(name)


def _counts_text(info: QueueInfo, stats: QueueStats) -> str:
    if is_dead_letter_name(info.name):
        return f"{stats.dead:,} dead, {stats.leased:,} of them leased"
    counts = f"{stats.ready:,} ready, {stats.waiting:,} waiting, {stats.leased:,} leased, {stats.dead:,} dead"
    return counts + (f", {stats.done:,} completed and kept" if stats.done else "")


def _own_options(info: QueueInfo) -> dict[str, str]:
    """The options that can be set on this queue. Most options of dead letters are set on their source."""
    options = describe_options(info.config)
    if not is_dead_letter_name(info.name):
        return options
    own = {name.replace("_", "-") for name in DEAD_LETTER_OPTIONS}
    return {name: value for name, value in options.items() if name in own}


def _queue_page(info: QueueInfo, stats: QueueStats) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = [
        ("queue", info.name),
        ("state", "paused" if info.paused else "open"),
        ("created", f"{when(info.created_at)}  ({age(info.created_at)})"),
        ("dead letters", info.dead_letter_queue or "-"),
        ("source", info.source or "-"),
        ("messages", f"{_counts_text(info, stats)}, {stats.bytes:,} bytes"),
        ("consumers", str(stats.consumers)),
        *_own_options(info).items(),
    ]
    parts: list[RenderableType] = [pairs([(name, value) for name, value in rows if value != "-"])]
    if stats.keys and not is_dead_letter_name(info.name):
        parts += _keys_part(stats)
    if stats.throttles:
        parts.append(_throttle_table(stats.throttles))
    if stats.closed_throttles:
        parts.append(closed_table(stats.closed_throttles, title="\nclosed throttles (of the whole broker)"))
    return Group(*parts, *map(_hook_text, stats.hooks))


def _keys_part(stats: QueueStats) -> list[RenderableType]:
    numbers = ("weight", "pending", "deficit")
    keys = table("key", *numbers, right=numbers, title="\nactive keys")
    for key in stats.keys:
        pending = f"{key.pending:,}{'+' if key.more else ''}"
        keys.add_row(clean(key.key, most=unless_piped(60)), str(key.weight), pending, str(key.deficit))
    hidden = stats.active_keys - len(stats.keys)
    return [keys, f"{hidden:,} more keys"] if hidden > 0 else [keys]


def _throttle_table(throttles: Sequence[ThrottleStats]) -> RenderableType:
    numbers = ("tokens", "rate/s", "burst")
    buckets = table("throttle", *numbers, right=numbers, title="\nthrottles (of the whole broker)")
    for bucket in throttles:
        name = clean(bucket.key, most=unless_piped(60))
        buckets.add_row(name, f"{bucket.tokens:.1f}", f"{bucket.rate:g}", f"{bucket.burst:g}")
    return buckets


def _hook_text(hook: HookStats) -> str:
    text = f"\n{hook.function}: {count_of(hook.calls, 'call')}, {hook.failures:,} failed, {hook.bypassed:,} bypassed"
    if hook.breaker_open_until_ms is not None:
        text += f", breaker open until {when(hook.breaker_open_until_ms)}"
    if hook.last_error:
        text += f"; last error: {clean(hook.last_error, most=unless_piped(200))}"
    return text


def options_text(config: QueueConfig) -> RenderableType:
    return "\n".join(f"  {name}: {value}" for name, value in describe_options(config).items())


def describe_options(config: QueueConfig) -> dict[str, str]:
    """Describe every option that is in force, by the name of its flag; options that are off are left out."""
    found: dict[str, str] = {}
    for option, value in options_of(config).items():
        name = option.replace("_", "-")
        if option in ("on_enqueue", "on_failure"):
            if value:
                found[name] = f"Lua, {count_of(len(value.splitlines()), 'line')}"
        elif option == "retry_on":
            found.update({f"{name} {reason}": _policy_text(policy) for reason, policy in value.items()})
        elif isinstance(value, dict) and "policy" in value:
            found[name] = _policy_text(value)
        elif isinstance(value, dict):
            found[name] = _fields_text(value)
        elif value not in (0, None, False, "0s"):
            found[name] = str(value)
    return found


def _policy_text(policy: dict[str, Any]) -> str:
    """The short form that --retry reads."""
    fields = {name: value for name, value in policy.items() if (name, value) != ("jitter", "none")}
    kind, attempts = fields.pop("policy"), fields.pop("attempts", None)
    if attempts is not None:
        fields["attempts"] = attempts
    return ",".join([kind, *([_fields_text(fields)] if fields else [])])


def _fields_text(fields: dict[str, Any]) -> str:
    return ",".join(f"{name}={_number_text(value)}" for name, value in fields.items())


def _number_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
