"""`queue push`, `peek` and `drain`: putting messages in, looking at them, taking them out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from fairlead import NewMessage
from fairlead.cli.arguments import as_option, in_dead_letters
from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.filters import read_header
from fairlead.cli.from_table import from_verb
from fairlead.cli.global_options import wants_json, wrong_usage
from fairlead.cli.ids import find_message
from fairlead.cli.message_view import as_record, message_table
from fairlead.cli.output import clean, count_of, plain, print_note, short, show
from fairlead.cli.parameters import expand_parameters
from fairlead.cli.push import find_spec, item_of
from fairlead.cli.target import open_target
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.model.names import DEAD_LETTER_SUFFIX, dead_letter_name
from fairlead.model.views import MessageInfo
from fairlead.store.modes import open_private

_ONE_PAYLOAD = "expected the payload as an argument, - for standard input, or --file FILE"


def register(queue: typer.Typer) -> None:
    queue.command("push")(push)
    queue.command("quarantine")(quarantine)
    queue.command("peek")(peek)
    queue.command("drain")(drain)


def _read_payload(
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="The payload as text; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the payload from a file.")
    ] = None,
) -> bytes | UnsetType:
    if payload is not None and file is not None:
        wrong_usage(_ONE_PAYLOAD)
    # No more than it takes to be refused: a file may be larger than memory.
    if file is not None:
        with file.open("rb") as opened:
            return opened.read(MAX_PAYLOAD_BYTES + 1)
    if payload == "-":
        return sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)
    return UNSET if payload is None else payload.encode("utf-8", "surrogateescape")


def _read_headers(
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated."),
    ] = None,
) -> dict[str, str]:
    return dict(pair for text in header or () if (pair := read_header(text)) is not None)


@from_verb(
    "enqueue",
    params={
        "fairness_key": typer.Option("--key", metavar="KEY"),
        "throttle_keys": typer.Option("--throttle", metavar="KEY", help="Throttle key; may be repeated."),
        "stream": typer.Option(metavar="NAME"),
        "dedup_key": typer.Option("--dedup", metavar="KEY"),
    },
    readers={"payload": _read_payload, "headers": _read_headers},
)
def push(
    request: Any,
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="A field of the item, over the payload's; may be repeated."),
    ] = None,
) -> None:
    """Put one message into a queue, and print its id.

    For a queue that the runbook in force declares, the payload is a JSON object with the fields it asks for;
    its defaults fill in, and an item equal to one that is not done yet is that item.
    """
    queue = request.queue
    body = None if request.payload is UNSET else request.payload
    if body is None and not var:
        wrong_usage(_ONE_PAYLOAD)
    with open_target() as target:
        spec = find_spec(target, queue)
        if spec is None and var:
            wrong_usage(f"expected a queue of the runbook in force for --var; it declares no {queue!r}")
        known = None
        if spec is not None:
            body, own_key = item_of(spec, queue, body, var or ())
            dedup_key = own_key if request.dedup_key is None else request.dedup_key
            request = replace(request, payload=body, dedup_key=dedup_key)
            known = None if dedup_key is None else target.twin(queue, dedup_key)
        message_id = target.do(request)
    existing = {} if spec is None else {"existing": message_id == known}
    show({"id": message_id, "queue": queue, **existing}, message_id)
    if existing.get("existing"):
        print_note(f"existing: queue {queue!r} has an item with this data that is not done yet")


def _read_message(
    payload: bytes | UnsetType,
    headers: dict[str, str],
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Fairness key that it has when it is brought back.")
    ] = DEFAULT_KEY,
    stream: Annotated[
        str | None, typer.Option(metavar="NAME", help="Stream that it joins when it is brought back.")
    ] = None,
) -> list[NewMessage]:
    if payload is UNSET:
        wrong_usage(_ONE_PAYLOAD)
    return [NewMessage(payload, headers, key, stream=stream)]


@from_verb(
    "quarantine",
    params={
        "error": typer.Option("--because", metavar="TEXT"),
        "reason": as_option(),
    },
    readers={"messages": expand_parameters(payload=_read_payload, headers=_read_headers)(_read_message)},
)
def quarantine(request: Any) -> None:
    """Put one message straight into the dead letters of a queue, and print its id.

    For input that cannot be worked as it is. `queue retry` and `redrive` bring it into the queue.
    """
    source = request.queue.removesuffix(DEAD_LETTER_SUFFIX)
    with open_target() as target:
        (message_id,) = target.do(replace(request, queue=source))
    show({"id": message_id, "queue": dead_letter_name(source)}, message_id)


@from_verb(
    "peek",
    params={
        "where": typer.Option(metavar="ready|waiting|leased|dead|done", help="Which messages."),
        "after": typer.Option(metavar="ID"),
        "limit": typer.Option("--limit", "-n"),
    },
)
def peek(request: Any) -> None:
    """Look at messages without claiming them.

    Ready ones are listed key by key, those of one key in the order in which they go, and then those that wait
    behind others of their stream; claims take turns between keys. Waiting ones are listed in the order of
    their due times, dead and done ones in that of their end, leased ones by their ids.
    """
    where = request.where
    if where == "dead":
        request = replace(request, queue=in_dead_letters(request.queue), where="ready")
    with open_target() as target:
        if request.after is not None:
            request = replace(request, after=find_message(target, request.queue, request.after).id)
        found = target.do(request)
    nothing = f"nothing is {clean(where)} in queue {request.queue!r}"
    show([as_record(info) for info in found], message_table(found) if found else nothing)


@from_verb("drain", params={"limit": typer.Option("--limit", "-n")})
def drain(
    request: Any,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FILE", help="Append the messages to this file, one JSON object a line."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove what is ready, and print it in full."""
    queue = request.queue
    with open_target() as target:
        ready = min(target.stats(queue).ready, request.limit)
        confirm(f"remove {count_of(ready, 'ready message')} from queue {queue!r}", yes=yes)
        # Opened before anything is removed: what has been drained exists only here.
        out = None if to is None else open(to, "a", encoding="utf-8", opener=open_private)  # noqa: SIM115 - closed below
        found = target.do(request)
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
    print_note(f"drained {count_of(len(found), 'message')} of queue {queue!r}")


def _whole(found: list[MessageInfo]) -> str:
    """Payloads that are no text as JSON has them."""
    return "\n".join(
        f"{short(info.id)}  {clean(info.fairness_key)}  {clean(_text(info.payload))}" for info in found
    )


def _text(payload: bytes) -> str:
    shown = plain(payload)
    return shown if isinstance(shown, str) else json.dumps(shown)
