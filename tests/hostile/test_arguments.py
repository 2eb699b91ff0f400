"""Every field of every call, given every wrong value there is: a typed error, or what is right about it, and
never a broken invariant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import hiredis
import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import fairlead
from fairlead.errors import FairleadError
from fairlead.model.queue import QUEUE_OPTIONS
from fairlead.request import VERBS
from fairlead.testing.server import ServerProcess
from fairlead.verbs.browse import Browse
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersRead, ConsumersRecord
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.staging import StagingStage
from fairlead.wire.error_lines import read_error
from fairlead.wire.schemas import MESSAGES, SETTLEMENTS
from tests.doors.flight.raw import RawChannel
from tests.doors.resp.wire import Wire
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
#: Requests of the Flight door.
CALLS: dict[str, tuple[type, dict[str, Any]]] = {
    "enqueue_many": (EnqueueMany, {"queue": "q"}),
    "staging.stage": (StagingStage, {"token": "t", "chunk": "c", "queue": "q"}),
    "consumers.record": (ConsumersRecord, {"name": "q", "queue": "q", "number": 1}),
    "claim": (Claim, {"queue": "q"}),
    "read": (ConsumersRead, {"name": "q", "queue": "q", "number": 1}),
    "browse": (Browse, {"queue": "q"}),
}
ROWS = {
    "enqueue_many": pa.RecordBatch.from_pylist([{"payload": b"x"}], schema=MESSAGES),
    "staging.stage": pa.RecordBatch.from_pylist([{"payload": b"x"}], schema=MESSAGES),
    "consumers.record": pa.RecordBatch.from_pylist([], schema=SETTLEMENTS),
}
#: Its paths have their own test.
LEFT_OUT = {"checkpoint"}


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    connected = Wire(server.address)
    yield connected
    connected.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[fairlead.Client]:
    with fairlead.connect(server.address) as connected:
        yield connected


def ask(wire: Wire, verb: str, fields: bytes) -> FairleadError | None:
    """The refusal of a request whose fields are packed."""
    reply = wire.ask(f"FL.{verb.upper()}", fields)
    return read_error(str(reply)) if isinstance(reply, hiredis.ReplyError) else None


def is_packed(raw: bytes) -> bool:
    """Whether the door takes these bytes for a map; other bytes are a word."""
    return bool(raw) and (0x80 <= raw[0] <= 0x8F or raw[0] in (0xDE, 0xDF))


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


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - LEFT_OUT))
def test_no_wrong_argument_of_a_verb_is_more_than_refused(
    wire: Wire, client: fairlead.Client, verb: str
) -> None:
    names, right = parameters(verb)
    for name in names:
        if verb.startswith("consumers.") and "generation" in names:
            right["generation"] = take_claim(client)
        for value, wrong in wrong_fields(verb, name):
            refused = ask(wire, verb, encode({**right, **wrong}))
            assert refused is None or refused.code != "broken_invariant", (verb, wrong)
            assert refused is None or len(refused.message) < 4000, (verb, wrong)
            if refused is None and verb == "delete_queue":
                client.create_queue("q")
            if refused is None and verb == "create_queue":
                client.delete_queue(value if name == "name" else "q")
    for raw in NO_MAPS:
        refused = ask(wire, verb, raw)
        if is_packed(raw):
            assert refused is not None
            assert refused.code == "invalid_request", raw[:20]
        assert refused is None or refused.code != "broken_invariant", raw[:20]
    clean_up(wire, client)


def clean_up(wire: Wire, client: fairlead.Client) -> None:
    ask(wire, "create_queue", encode({"name": "q"}))
    ask(wire, "update_queue", encode(_AS_MADE))
    for key in client.config.list():
        client.config.delete(key)
    client.resume("q")
    for info in client.keys.list():
        client.keys.revoke(info.id)
    for consumer in client.consumers.list():
        client.consumers.drop(consumer.name, consumer.queue)
    for write in client.staging.list():
        client.staging.discard(write.token, write.queue)
    client.goodbye("")
    client.purge("q")


def take_claim(client: fairlead.Client) -> int:
    """A consumer `q` of the queue `q` with claim 1 in hand, as new; its generation."""
    with suppress(FairleadError):
        client.consumers.drop("q", "q")
    generation = client.consumers.register("q", "q").generation
    client.enqueue("q", b"x")
    assert client.consumers.claim("q", "q", generation, 1).count
    return generation


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
def test_a_checkpoint_to_nowhere_is_refused(wire: Wire, path: object) -> None:
    refused = ask(wire, "checkpoint", encode({"path": path}))
    assert refused is not None
    assert refused.code == "invalid_request"


@pytest.mark.parametrize("verb", CALLS)
def test_no_wrong_field_of_a_call_of_flight_is_more_than_refused(
    server: ServerProcess, wire: Wire, client: fairlead.Client, verb: str
) -> None:
    kind, right = CALLS[verb]
    rows = ROWS.get(verb)
    generation = {"generation": take_claim(client)} if "number" in right else {}
    with flight.connect(f"grpc://{server.addresses['flight']}") as connected:
        channel = RawChannel(connected, fuzz.channel_of(verb))

        def refusal(call: bytes) -> str | None:
            answer, _ = channel.call(call, rows)
            while not answer.done:
                answer, _ = channel.receive()
            return None if answer.error is None else answer.error.code

        for name in (*kind.__struct_fields__, "unknown", ""):  # type: ignore[attr-defined]
            for value in NASTY:
                code = refusal(fuzz.packed(verb, {**right, **generation, name: value}))
                assert code != "broken_invariant", (verb, name, value)
        for name in ("session", "number", "arrived", "verb", "fields", "payloads", "unknown", ""):
            for value in NASTY:
                code = refusal(fuzz.packed(verb, {**right, **generation}, {name: value}))
                assert code != "broken_invariant", (verb, name, value)
        for raw in NO_MAPS:
            if not raw and rows is None:
                # A frame with nothing in it is the end of a stream.
                continue
            assert refusal(raw) == "invalid_request", raw[:20]
    clean_up(wire, client)
