"""`queue show` and `queue inspect`: the messages of a queue, and everything about a queue or one message."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group, RenderableType

from fairlead.cli.arguments import QueueName
from fairlead.cli.global_options import wrong_usage
from fairlead.cli.ids import find_message
from fairlead.cli.message_view import STATUSES, as_record, message_page, message_table, status_of_message
from fairlead.cli.output import age, clean, count_of, pairs, plain, show, table, unless_piped, when
from fairlead.cli.target import Target, nearest, open_target
from fairlead.cli.throttles import closed_table
from fairlead.errors import QueueNotFound
from fairlead.model.durations import show_ms
from fairlead.model.names import dead_letter_name, is_dead_letter_name
from fairlead.model.policy import FailureBreaker, RetryPolicy
from fairlead.model.queue import DEAD_LETTER_OPTIONS, QueueConfig
from fairlead.model.views import MessageInfo, QueueInfo, QueueStats

_PAGE = 200
#: Where the messages of a status are to be found.
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


def show_messages(
    queue: QueueName,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status", "-s", metavar="STATUS", help="Only " + ", ".join(STATUSES) + "; may be repeated."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only messages of this fairness key that are not dead.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="Most messages of each status."),
    ] = 20,
) -> None:
    """List the messages of a queue by status, with how often each failed.

    pending: can be handed out. delayed, held: waiting. active: leased. failed: waiting for its next try.
    dead: in QUEUE.dlq. completed: done, and kept for as long as the queue's --retain-completed says.
    """
    wanted = [check_status(word) for word in status or STATUSES]
    with open_target() as target:
        stats = target.stats(queue)
        found = [
            info
            for word in STATUSES
            if word in wanted
            for info in islice(messages_of(target, queue, word, key), limit)
        ]
    summary = (
        f"{queue}: {stats.ready:,} pending, {stats.leased:,} active, {stats.done:,} completed, "
        f"{stats.waiting:,} waiting (failed, delayed or held), {stats.dead:,} dead"
    )
    if is_dead_letter_name(queue):
        summary = f"{queue}: {stats.dead:,} dead, {stats.leased:,} of them leased"
    total = (
        stats.ready
        + stats.leased
        + stats.waiting
        + stats.done
        + (0 if is_dead_letter_name(queue) else stats.dead)
    )
    parts: list[RenderableType] = [summary + (", paused" if stats.paused else "")]
    if found:
        parts.append(message_table(found))
    if status is None and key is None and len(found) < total:
        parts.append(f"{total - len(found):,} more; show them with --limit or --status")
    show(
        {"queue": queue, "stats": plain(stats), "messages": [as_record(info) for info in found]},
        Group(*parts),
    )


def check_status(word: str) -> str:
    if word not in STATUSES:
        near = nearest(word, list(STATUSES))
        wrong_usage(
            f"{word!r} is no status; "
            + (f"did you mean {near}?" if near else "one of " + ", ".join(STATUSES))
        )
    return word


def messages_of(target: Target, queue: str, status: str, key: str | None = None) -> Iterator[MessageInfo]:
    """All messages of a status, a page at a time. In a dead-letter queue every message is dead."""
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
        typer.Argument(metavar="ID", help="A message: full id, prefix, last characters, or stream:NAME."),
    ] = None,
    payload: Annotated[
        bool,
        typer.Option("--payload", help="Write the payload of the message, byte for byte, and nothing else."),
    ] = False,
) -> None:
    """Show everything about a queue, or about one of its messages."""
    if payload and message is None:
        wrong_usage("expected the ID of a message with --payload")
    with open_target() as target:
        if message is not None:
            info = find_message(target, queue, message)
            if payload:
                if missing := [part for part in info.hidden if part.startswith("payload")]:
                    typer.echo(
                        f"warning: this is not the payload as it was sent, {clean(', '.join(missing))} is not shown",
                        err=True,
                    )
                sys.stdout.buffer.write(info.payload)
            else:
                show(as_record(info), lambda: message_page(info))
            return
        found = find_queue(target, queue)
        stats = target.stats(queue, keys=True, key_limit=100)
    show({**plain(found), "stats": plain(stats)}, lambda: _queue_page(found, stats))


def find_queue(target: Target, name: str) -> QueueInfo:
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
    """Those that can be set on this queue: everything else about dead letters is set on their source."""
    options = described(info.config)
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
        *((name, value) for name, value in _own_options(info).items()),
    ]
    parts: list[RenderableType] = [pairs([(name, value) for name, value in rows if value != "-"])]
    if stats.keys and not is_dead_letter_name(info.name):
        keys = table(
            "key",
            "weight",
            "pending",
            "deficit",
            right=("weight", "pending", "deficit"),
            title="\nactive keys",
        )
        for key in stats.keys:
            keys.add_row(
                clean(key.key, most=unless_piped(60)),
                str(key.weight),
                f"{key.pending:,}{'+' if key.more else ''}",
                str(key.deficit),
            )
        parts.append(keys)
        if stats.active_keys > len(stats.keys):
            parts.append(f"{stats.active_keys - len(stats.keys):,} more keys")
    if stats.throttles:
        buckets = table(
            "throttle",
            "tokens",
            "rate/s",
            "burst",
            right=("tokens", "rate/s", "burst"),
            title="\nthrottles (of the whole broker)",
        )
        for bucket in stats.throttles:
            buckets.add_row(
                clean(bucket.key, most=unless_piped(60)),
                f"{bucket.tokens:.1f}",
                f"{bucket.rate:g}",
                f"{bucket.burst:g}",
            )
        parts.append(buckets)
    if stats.closed_throttles:
        parts.append(closed_table(stats.closed_throttles, title="\nclosed throttles (of the whole broker)"))
    for hook in stats.hooks:
        state = (
            f", breaker open until {when(hook.breaker_open_until_ms)}"
            if hook.breaker_open_until_ms is not None
            else ""
        )
        last = f"; last error: {clean(hook.last_error, most=unless_piped(200))}" if hook.last_error else ""
        parts.append(
            f"\n{hook.function}: {count_of(hook.calls, 'call')}, {hook.failures:,} failed, {hook.bypassed:,} bypassed{state}{last}"
        )
    return Group(*parts)


def options_text(config: QueueConfig) -> RenderableType:
    return "\n".join(f"  {name}: {value}" for name, value in described(config).items())


def described(config: QueueConfig) -> dict[str, str]:
    """Every option that is in force, by the name of its flag; what is off is left out."""
    found: dict[str, str] = {}
    for field, value in msgspec.structs.asdict(config).items():
        name = field.removesuffix("_ms").replace("_", "-")
        if field == "dedup_window_ms":
            found["dedup"] = show_ms(value) if value else "kept" if config.dedup_kept else "live"
        elif field == "dedup_kept":
            continue
        elif field in ("on_enqueue", "on_failure"):
            if value:
                found[name] = f"Lua, {count_of(len(value.splitlines()), 'line')}"
        elif isinstance(value, RetryPolicy):
            found[name] = policy_text(value)
        elif isinstance(value, FailureBreaker):
            if value.failures:
                found[name] = (
                    f"failures={value.failures},within={show_ms(value.window_ms)},pause={show_ms(value.pause_ms)}"
                )
        elif isinstance(value, dict):
            found.update({f"{name} {reason}": policy_text(policy) for reason, policy in value.items()})
        elif value not in (0, None, False, ""):
            found[name] = show_ms(value) if field.endswith("_ms") else str(value)
    return found


def policy_text(policy: RetryPolicy) -> str:
    """The short form that --retry reads."""
    fields: dict[str, Any] = {}
    if policy.kind == "fixed":
        fields["cooldown"] = show_ms(policy.base_ms)
    if policy.kind == "exponential":
        fields |= {
            "base": show_ms(policy.base_ms),
            "factor": f"{policy.factor:g}",
            "cap": show_ms(policy.cap_ms),
        }
    if policy.jitter != "none":
        fields["jitter"] = policy.jitter
    if policy.attempts is not None:
        fields["attempts"] = policy.attempts
    return ",".join([policy.kind, *(f"{name}={value}" for name, value in fields.items())])
