"""Every field of every call, given every wrong value there is: a typed error, or what is right about it, and
never a broken invariant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from fairlead.model.queue import QUEUE_OPTIONS
from fairlead.request import VERBS
from fairlead.testing.server import ServerProcess
from fairlead.verbs.browse import Browse
from fairlead.verbs.consumers import ConsumersRead
from fairlead.wire.calls import (
    Answer,
    ClaimCall,
    EnqueueCall,
    ExchangeCall,
    SettleCall,
)
from fairlead.wire.records import record_verbs
from fairlead.wire.rows import MessageRow
from fairlead.wire.schemas import CHANNELS, MESSAGES, SETTLEMENTS
from tests.doors.flight.raw import RawChannel, packed
from tests.hostile import fuzz
from tests.hostile.values import NASTY, NO_MAPS

encode = msgspec.msgpack.encode
ANY_ID = "01890000-0000-7000-8000-000000000000"
RIGHT: dict[str, Any] = {
    "name": "q",
    "queue": "q",
    "message_id": ANY_ID,
    "messages": [],
    "stream": "s",
    "intent_id": 1,
    "consumer": "c",
    "key": "k",
    "value": "v",
    "project": "",
    "text": "{}",
    "key_id": "a" * 12,
    "grants": ["produce:q"],
    "number": 1,
    "up_to": 0,
    "parts": ["p"],
    "token": "t",
    "chunk": "c",
    "chunks": ["c"],
}
CALLS: dict[str, tuple[type, dict[str, Any]]] = {
    "enqueue": (EnqueueCall, {"queues": [["nowhere", 1]], "rows": [[b"x"]]}),
    "settle": (SettleCall, {"rows": [[0, b"i" * 16, 1]]}),
    "claim": (ClaimCall, {"queue": "q"}),
    "exchange": (ExchangeCall, {}),
    "read": (ConsumersRead, {"name": "q", "number": 1}),
    "browse": (Browse, {"queue": "q"}),
}
#: Of these an empty batch goes with the call.
WITH_A_BATCH = ("exchange",)
COLUMNS = {"messages": MESSAGES, "items": SETTLEMENTS}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(f"grpc://{server.addresses['flight']}") as connected:
        yield connected


def ask(channel: RawChannel, verb: str, arguments: bytes) -> Answer:
    columns = VERBS[verb].request.columns
    empty = pa.RecordBatch.from_pylist([], schema=COLUMNS[columns]) if columns else None
    return channel.call(packed(verb, arguments), empty)[0]


def parameters(verb: str) -> tuple[list[str], dict[str, Any]]:
    """The names of all, and right values for those that must be given."""
    kind = VERBS[verb].request
    required = kind.__struct_fields__[: len(kind.__struct_fields__) - len(kind.__struct_defaults__)]
    return [*kind.__struct_fields__, "self", "only_if", "core", ""], {
        name: RIGHT[name] for name in required if name in RIGHT
    }


def wrong_fields(verb: str, name: str) -> Iterator[tuple[object, dict[str, Any]]]:
    """Each wrong value as that field and, where the field holds a queue's options, as each option."""
    for value in NASTY:
        yield value, {name: value}
        if name == "options" and name in VERBS[verb].fields:
            for option in [*QUEUE_OPTIONS, "core", "options", ""]:
                yield value, {name: {option: value}}


@pytest.mark.parametrize("verb", [verb for verb in record_verbs() if verb != "checkpoint"])
def test_no_wrong_argument_of_a_verb_is_more_than_refused(client: flight.FlightClient, verb: str) -> None:
    channel = RawChannel(client, "request")
    names, right = parameters(verb)
    for name in names:
        if verb.startswith("consumers.") and "generation" in names:
            right["generation"] = take_claim(client, channel)
        for value, wrong in wrong_fields(verb, name):
            answer = ask(channel, verb, encode({**right, **wrong}))
            assert answer.error is None or answer.error.code != "broken_invariant", (verb, wrong)
            assert answer.error is None or len(answer.error.message) < 4000, (verb, wrong)
            if answer.error is None and verb == "delete_queue":
                ask(channel, "create_queue", encode({"name": "q"}))
            if answer.error is None and verb == "create_queue":
                ask(channel, "delete_queue", encode({"name": value if name == "name" else "q"}))
    for raw in NO_MAPS:
        answer = ask(channel, verb, raw)
        assert answer.error is not None
        assert answer.error.code == "invalid_request", raw[:20]
    ask(channel, "create_queue", encode({"name": "q"}))
    ask(channel, "update_queue", encode(_AS_MADE))
    for key in channel.ask("config.list"):
        channel.ask("config.delete", key=key)
    ask(channel, "resume", encode({"name": "q"}))
    for key in channel.ask("keys.list"):
        channel.ask("keys.revoke", key_id=key.id)
    forget_bulk(channel)


def take_claim(client: flight.FlightClient, admin: RawChannel) -> int:
    """A consumer `q` of the queue `q` with claim 1 in hand, as new; its generation."""
    ask(admin, "consumers.drop", encode({"name": "q", "queue": "q"}))
    generation: int = admin.ask("consumers.register", name="q", queue="q").generation
    RawChannel(client, "enqueue").call(EnqueueCall([("q", 1)], rows=[MessageRow(b"x")]))
    assert admin.ask("consumers.claim", name="q", queue="q", generation=generation, number=1).count
    return generation


def forget_bulk(admin: RawChannel) -> None:
    for info in admin.ask("consumers.list"):
        admin.ask("consumers.drop", name=info.name, queue=info.queue)
    for write in admin.ask("staging.list"):
        admin.ask("staging.discard", token=write.token, queue=write.queue)
    admin.ask("purge", name="q")


#: Whatever an update_queue was let through with.
_AS_MADE = {
    "name": "q",
    "options": {"ordering": "release", "max_messages": 0, "max_bytes": 0, "visibility_timeout": "30s"},
}


@pytest.mark.parametrize(
    "path",
    [
        None,
        1,
        b"x",
        [],
        {},
        "",
        "\0",
        "a\0b",
        "/",
        "/dev/null",
        "/dev/null/x/y",
        "/proc/1/x",
        "x" * 5000,
        "/tmp/fairlead-was-here",
        "../here",
    ],
)
def test_a_checkpoint_to_nowhere_is_refused(client: flight.FlightClient, path: object) -> None:
    answer = ask(RawChannel(client, "request"), "checkpoint", encode({"path": path}))
    assert answer.error is not None
    assert answer.error.code == "invalid_request"


@pytest.mark.parametrize("verb", CALLS)
def test_no_wrong_field_of_a_call_is_more_than_refused(client: flight.FlightClient, verb: str) -> None:
    kind, right = CALLS[verb]
    channel, admin = RawChannel(client, verb), RawChannel(client, "request")
    empty = None if CHANNELS[verb][0] is None else pa.RecordBatch.from_pylist([], schema=CHANNELS[verb][0])
    if "number" in right:
        right = {**right, "generation": take_claim(client, admin)}
    for name in (*kind.__struct_fields__, "unknown", ""):  # type: ignore[attr-defined]
        for value in NASTY:
            if name == "wait_ms" and type(value) is int and value > 1:
                continue
            answer, _ = channel.call(
                fuzz.packed(verb, {**right, name: value}), empty if verb in WITH_A_BATCH else None
            )
            while not answer.done:
                answer, _ = channel.receive()
            assert answer.error is None or answer.error.code != "broken_invariant", (verb, name, value)
            if name == "queues" and verb == "enqueue":
                rows = sum(count for _, count in value) if answer.error is None else 1
                assert rows == 1 or not value, value
    for raw in NO_MAPS:
        if not raw and empty is None:
            # A frame with nothing in it is the end of a stream.
            continue
        answer, _ = channel.call(raw, empty)
        assert answer.error is not None
        assert answer.error.code == "invalid_request", raw[:20]
    forget_bulk(admin)
