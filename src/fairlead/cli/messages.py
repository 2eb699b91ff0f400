"""`queue push`, `quarantine`, `peek` and `drain`: put messages into a queue, look at them, take them out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
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
from fairlead.cli.target import Target, open_target
from fairlead.errors import ExternalQueue, Forbidden, InvalidRequest, RunbookNotFound
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_PAYLOAD_BYTES
from fairlead.model.names import DEAD_LETTER_SUFFIX, dead_letter_name, taken_name
from fairlead.model.views import MessageInfo
from fairlead.runbook.items import make_item, read_variables
from fairlead.runbook.model import QueueSpec, load_runbook
from fairlead.store.modes import open_private

_ONE_PAYLOAD = "expected one payload: an argument, - for standard input, or --file FILE"


def register(queue: typer.Typer) -> None:
    queue.command("push")(push)
    queue.command("quarantine")(quarantine)
    queue.command("peek")(peek)
    queue.command("drain")(drain)


def _read_payload(
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="Payload as text; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the payload from a file.")
    ] = None,
) -> bytes | UnsetType:
    if payload is not None and file is not None:
        wrong_usage(_ONE_PAYLOAD)
    # One byte more than a payload may have is enough to refuse it; a file may be larger than memory.
    if file is not None:
        with file.open("rb") as opened:
            return opened.read(MAX_PAYLOAD_BYTES + 1)
    if payload == "-":
        return sys.stdin.buffer.read(MAX_PAYLOAD_BYTES + 1)
    return UNSET if payload is None else payload.encode("utf-8", "surrogateescape")


def _read_headers(
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Add a header; may be repeated."),
    ] = None,
) -> dict[str, str]:
    return dict(pair for text in header or () if (pair := read_header(text)) is not None)


@from_verb(
    "enqueue",
    params={
        "fairness_key": typer.Option("--key", metavar="KEY"),
        "throttle_keys": typer.Option(
            "--throttle", metavar="KEY", help="Add a throttle key; may be repeated."
        ),
        "stream": typer.Option(metavar="NAME"),
        "dedup_key": typer.Option("--dedup", metavar="KEY"),
    },
    readers={"payload": _read_payload, "headers": _read_headers},
)
def push(
    request: Any,
    var: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE", help="Set a field of the item, over the payload's; may be repeated."
        ),
    ] = None,
) -> None:
    """Put one message into a queue, and print its id.

    For a queue that the runbook in force declares, the payload is a JSON object with the fields that the
    runbook requires; its defaults supply missing fields. If an equal item is not done yet, the command prints
    its id.
    """
    queue = request.queue
    if request.payload is UNSET and not var:
        wrong_usage(_ONE_PAYLOAD)
    with open_target() as target:
        spec = _find_spec(target, queue)
        if spec is None:
            if var:
                wrong_usage(f"expected a queue of the runbook in force for --var; it declares no {queue!r}")
            message_id = target.do(request)
            show({"id": message_id, "queue": queue}, message_id)
            return
        request = _as_item(request, spec, var or ())
        known = None if request.dedup_key is None else target.twin(queue, request.dedup_key)
        message_id = target.do(request)
    show({"id": message_id, "queue": queue, "existing": message_id == known}, message_id)
    if message_id == known:
        print_note(f"existing: queue {queue!r} has an item with this data that is not done yet")


def _find_spec(target: Target, queue: str) -> QueueSpec | None:
    """Return the definition of a queue in the runbook in force, or None. Raises `ExternalQueue`."""
    project, _, name = queue.rpartition("/")
    try:
        spec = load_runbook(target.runbooks.get(project)).queues.get(name)
    except (RunbookNotFound, Forbidden, InvalidRequest):
        # The engine refuses a wrong name or a queue that the caller may not use.
        return None
    if spec is not None and spec.kind == "external":
        raise ExternalQueue(queue, taken_name(queue))
    return spec


def _as_item(request: Any, spec: QueueSpec, var: Sequence[str]) -> Any:
    """The request with the payload and the dedup key of an item. Raises `ItemInvalid`."""
    data = None if request.payload is UNSET else request.payload
    item = make_item(spec, request.queue, data, read_variables(request.queue, var))
    dedup_key = item.dedup_key if request.dedup_key is None else request.dedup_key
    return replace(request, payload=item.payload, dedup_key=dedup_key)


def _read_message(
    payload: bytes | UnsetType,
    headers: dict[str, str],
    key: Annotated[
        str, typer.Option(metavar="KEY", help="Fairness key of the message after a retry or redrive.")
    ] = DEFAULT_KEY,
    stream: Annotated[
        str | None, typer.Option(metavar="NAME", help="Stream of the message after a retry or redrive.")
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
    """Put one message directly into the dead-letter queue of a queue, and print its id.

    Use it for input that cannot be processed yet. `queue retry` and `redrive` return the message to the
    queue.
    """
    source = request.queue.removesuffix(DEAD_LETTER_SUFFIX)
    with open_target() as target:
        (message_id,) = target.do(replace(request, queue=source))
    show({"id": message_id, "queue": dead_letter_name(source)}, message_id)


@from_verb(
    "peek",
    params={
        "where": typer.Option(metavar="ready|waiting|leased|dead|done", help="Where the messages are."),
        "after": typer.Option(metavar="ID"),
        "limit": typer.Option("--limit", "-n"),
    },
)
def peek(request: Any) -> None:
    """Show messages without claiming them.

    Ready messages are listed key by key, each key in order of delivery, then those that are blocked by an
    earlier message of their stream; a claim takes turns between keys. Waiting messages are listed by due
    time, dead and done messages by the time of their end, leased messages by id.
    """
    where = request.where
    if where == "dead":
        request = replace(request, queue=in_dead_letters(request.queue), where="ready")
    with open_target() as target:
        if request.after is not None:
            request = replace(request, after=find_message(target, request.queue, request.after).id)
        found = target.do(request)
    nothing = f"queue {request.queue!r} has no {clean(where)} messages"
    show([as_record(info) for info in found], message_table(found) if found else nothing)


@from_verb("drain", params={"limit": typer.Option("--limit", "-n")})
def drain(
    request: Any,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FILE", help="Append the messages to this file, one JSON object per line."
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove ready messages, and print them in full."""
    queue = request.queue
    with open_target() as target:
        ready = min(target.stats(queue).ready, request.limit)
        confirm(f"remove {count_of(ready, 'ready message')} from queue {queue!r}", yes=yes)
        # Open the file before the messages are removed: after that, they exist only in this process.
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
    """One line a message; a payload that is not text has its JSON form."""
    return "\n".join(
        f"{short(info.id)}  {clean(info.fairness_key)}  {clean(_text(info.payload))}" for info in found
    )


def _text(payload: bytes) -> str:
    shown = plain(payload)
    return shown if isinstance(shown, str) else json.dumps(shown)
