"""`queue push`, `peek` and `drain`: putting messages in, looking at them, taking them out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fairlead import NewMessage
from fairlead.cli.arguments import As, QueueName
from fairlead.cli.chosen import wants_json, wrong_usage
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.filters import read_header
from fairlead.cli.ids import find_message
from fairlead.cli.message_view import as_record, message_table
from fairlead.cli.output import clean, count_of, plain, short, show, tell
from fairlead.cli.push import find_spec, item_of
from fairlead.cli.target import open_target
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.model.names import DEAD_LETTER_SUFFIX, dead_letter_name, is_dead_letter_name
from fairlead.model.views import MessageInfo
from fairlead.store.modes import open_private


def register(queue: typer.Typer) -> None:
    queue.command("push")(push)
    queue.command("quarantine")(quarantine)
    queue.command("peek")(peek)
    queue.command("drain")(drain)


def push(
    queue: QueueName,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="The payload as text; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the payload from a file.")
    ] = None,
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Fairness key: whom the message belongs to.")
    ] = DEFAULT_KEY,
    weight: Annotated[int, typer.Option(metavar="N", help="That key's share, 1 to 1000.")] = 1,
    throttle: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Throttle key; may be repeated.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option(metavar="NAME", help="Messages of one stream are worked in order.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Hand it out only after this time.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time to live, instead of the queue's.")
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(metavar="KEY", help="A second message with this key is the first one.")
    ] = None,
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="A field of the item, over the payload's; may be repeated."),
    ] = None,
) -> None:
    """Put one message into a queue, and print its id.

    For a queue that the runbook in force declares, the payload is a JSON object with the fields it asks for;
    its defaults fill in, and an item equal to one that is not done yet is that item.
    """
    headers = dict(pair for text in header or () if (pair := read_header(text)) is not None)
    body = None if payload is None and file is None and var else _read_payload(payload, file)
    with open_target() as target:
        spec = find_spec(target, queue)
        if spec is not None:
            body, own_key = item_of(spec, queue, body, var or ())
            dedup = own_key if dedup is None else dedup
        elif body is None or var:
            wrong_usage(f"expected a queue of the runbook in force for --var; it declares no {queue!r}")
        message = NewMessage(body, headers, key, weight, tuple(throttle or ()), stream, delay, dedup, ttl)
        known = None if spec is None or dedup is None else target.twin(queue, dedup)
        (message_id,) = target.enqueue_many(queue, [message])
    existing = {} if spec is None else {"existing": message_id == known}
    show({"id": message_id, "queue": queue, **existing}, message_id)
    if existing.get("existing"):
        tell(f"existing: queue {queue!r} has an item with this data that is not done yet")


def quarantine(
    queue: QueueName,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="The payload as text; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the payload from a file.")
    ] = None,
    because: Annotated[
        str, typer.Option("--because", metavar="TEXT", help="The error text that is recorded.")
    ] = "",
    as_reason: As = "unknown",
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Fairness key that it has when it is brought back.")
    ] = DEFAULT_KEY,
    stream: Annotated[
        str | None, typer.Option(metavar="NAME", help="Stream that it joins when it is brought back.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
    ] = None,
) -> None:
    """Put one message straight into the dead letters of a queue, and print its id.

    For input that cannot be worked as it is. `queue retry` and `redrive` bring it into the queue.
    """
    headers = dict(pair for text in header or () if (pair := read_header(text)) is not None)
    message = NewMessage(_read_payload(payload, file), headers, key, stream=stream)
    source = queue.removesuffix(DEAD_LETTER_SUFFIX)
    with open_target() as target:
        (message_id,) = target.quarantine(source, [message], reason=as_reason or "unknown", error=because)
    show({"id": message_id, "queue": dead_letter_name(source)}, message_id)


def _read_payload(payload: str | None, file: Path | None) -> bytes:
    if (payload is None) == (file is None):
        wrong_usage("expected the payload as an argument, - for standard input, or --file FILE")
    # No more than it takes to be refused: a file may be larger than memory.
    if file is not None:
        with file.open("rb") as opened:
            return opened.read(MAX_PAYLOAD_BYTES + 1)
    return (
        sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)
        if payload == "-"
        else (payload or "").encode("utf-8", "surrogateescape")
    )


def peek(
    queue: QueueName,
    where: Annotated[
        str, typer.Option(metavar="ready|waiting|leased|dead|done", help="Which messages.")
    ] = "ready",
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only messages of this fairness key.")
    ] = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Go on behind this message.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many at most.")
    ] = 10,
) -> None:
    """Look at messages without claiming them.

    Ready ones are listed key by key, those of one key in the order in which they go, and then those that wait
    behind others of their stream; claims take turns between keys. Waiting ones are listed in the order of
    their due times, dead and done ones in that of their end, leased ones by their ids.
    """
    if where == "dead" and not is_dead_letter_name(queue):
        queue = dead_letter_name(queue)
    with open_target() as target:
        behind = None if after is None else find_message(target, queue, after).id
        found = target.peek(
            queue, limit=limit, where="ready" if where == "dead" else where, key=key, after=behind
        )
    show(
        [as_record(info) for info in found],
        message_table(found) if found else f"nothing is {clean(where)} in queue {queue!r}",
    )


def drain(
    queue: QueueName,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=10_000, help="How many at most.")
    ] = 10_000,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FILE", help="Append the messages to this file, one JSON object a line."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove what is ready, and print it in full."""
    with open_target() as target:
        ready = min(target.stats(queue).ready, limit)
        confirm(f"remove {count_of(ready, 'ready message')} from queue {queue!r}", yes=yes)
        # Opened before anything is removed: what has been drained exists only here.
        out = None if to is None else open(to, "a", encoding="utf-8", opener=open_private)  # noqa: SIM115 - closed below
        found = target.drain(queue, limit=limit)
    if out is not None:
        with out:
            out.writelines(json.dumps(as_record(info), ensure_ascii=False) + "\n" for info in found)
        show(
            {"queue": queue, "drained": len(found), "file": str(to)},
            f"wrote {count_of(len(found), 'message')} of queue {queue!r} to {to}",
        )
        return
    if wants_json() or found:
        show([as_record(info) for info in found], lambda: _whole(found))
    tell(f"drained {count_of(len(found), 'message')} of queue {queue!r}")


def _whole(found: list[MessageInfo]) -> str:
    """Payloads that are no text as JSON has them."""
    return "\n".join(
        f"{short(info.id)}  {clean(info.fairness_key)}  {clean(_text(info.payload))}" for info in found
    )


def _text(payload: bytes) -> str:
    shown = plain(payload)
    return shown if isinstance(shown, str) else json.dumps(shown)
