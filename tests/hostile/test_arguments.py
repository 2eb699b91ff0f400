"""Every field of every call, given every wrong value there is: a typed error, or what is right about it, and
never a broken invariant.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from fairlead.model.queue import QUEUE_OPTIONS
from fairlead.server.access import Access
from fairlead.testing import open_in_memory
from fairlead.testing.server import ServerProcess
from fairlead.wire.calls import (
    Answer,
    BrowseCall,
    ClaimCall,
    EnqueueCall,
    ExchangeCall,
    NumberedCall,
    ReadCall,
    RecordCall,
    SettleCall,
    StageCall,
)
from fairlead.wire.rows import MessageRow
from fairlead.wire.schemas import ADMIN_CALL, CHANNELS
from fairlead.wire.views import ADMIN
from tests.doors.flight.raw import RawChannel
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
    "chunks": ["c"],
}
CALLS: dict[str, tuple[type, dict[str, Any]]] = {
    "enqueue": (EnqueueCall, {"queues": [["nowhere", 1]], "rows": [[b"x"]]}),
    "settle": (SettleCall, {"rows": [[0, b"i" * 16, 1]]}),
    "claim": (ClaimCall, {"queue": "q"}),
    "exchange": (ExchangeCall, {"consumer": "c"}),
    "claim_numbered": (NumberedCall, {"name": "q", "number": 1}),
    "read": (ReadCall, {"name": "q", "number": 1}),
    "record": (RecordCall, {"name": "q", "number": 1}),
    "stage": (StageCall, {"token": "t", "chunk": "c", "queue": "q"}),
    "browse": (BrowseCall, {"queue": "q"}),
}
#: Of these an empty batch goes with the call.
WITH_A_BATCH = ("exchange", "record", "stage")


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(f"grpc://{server.address}") as connected:
        yield connected


def ask(channel: RawChannel, verb: str, arguments: bytes) -> Answer:
    row = pa.RecordBatch.from_arrays(
        [pa.array([verb]), pa.array([arguments], pa.binary())], schema=ADMIN_CALL
    )
    return channel.call(b"", row)[0]


def parameters(verb: str) -> tuple[list[str], dict[str, Any]]:
    """The names of all, and right values for those that must be given."""
    with open_in_memory() as broker:
        found = [*inspect.signature(attrgetter(verb)(Access(broker).admit(None, ""))).parameters.values()]
    names = [one.name for one in found if one.kind is not one.VAR_KEYWORD]
    if len(names) < len(found):
        names += [*QUEUE_OPTIONS, "core", "options"]
    return [*names, "self", "only_if", ""], {
        one.name: RIGHT[one.name] for one in found if one.default is one.empty and one.name in RIGHT
    }


@pytest.mark.parametrize("verb", [verb for verb in ADMIN if verb != "checkpoint"])
def test_no_wrong_argument_of_an_admin_verb_is_more_than_refused(
    client: flight.FlightClient, verb: str
) -> None:
    channel = RawChannel(client, "admin")
    names, right = parameters(verb)
    for name in names:
        if verb.startswith("consumers.") and "generation" in names:
            right["generation"] = take_claim(client, channel)
        for value in NASTY:
            answer = ask(channel, verb, encode({**right, name: value}))
            assert answer.error is None or answer.error.code != "broken_invariant", (verb, name, value)
            assert answer.error is None or len(answer.error.message) < 4000, (verb, name, value)
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
    for key in channel.admin("config.list"):
        channel.admin("config.delete", key=key)
    ask(channel, "resume", encode({"name": "q"}))
    for key in channel.admin("keys.list"):
        channel.admin("keys.revoke", key_id=key.id)
    forget_bulk(channel)


def take_claim(client: flight.FlightClient, admin: RawChannel) -> int:
    """A consumer `q` of the queue `q` with claim 1 in hand, as new; its generation."""
    ask(admin, "consumers.drop", encode({"name": "q", "queue": "q"}))
    generation: int = admin.admin("consumers.register", name="q", queue="q").generation
    RawChannel(client, "enqueue").call(EnqueueCall([("q", 1)], rows=[MessageRow(b"x")]))
    answer, _ = RawChannel(client, "claim_numbered").call(NumberedCall("q", "q", generation, 1))
    assert answer.claimed is not None
    assert answer.claimed.count
    return generation


def forget_bulk(admin: RawChannel) -> None:
    for info in admin.admin("consumers.list"):
        admin.admin("consumers.drop", name=info.name, queue=info.queue)
    for write in admin.admin("staging.list"):
        admin.admin("staging.discard", token=write.token, queue=write.queue)
    admin.admin("purge", name="q")


#: Whatever an update_queue was let through with.
_AS_MADE = {
    "name": "q",
    "ordering": "release",
    "max_messages": 0,
    "max_bytes": 0,
    "visibility_timeout": "30s",
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
    answer = ask(RawChannel(client, "admin"), "checkpoint", encode({"path": path}))
    assert answer.error is not None
    assert answer.error.code == "invalid_request"


@pytest.mark.parametrize("verb", CALLS)
def test_no_wrong_field_of_a_call_is_more_than_refused(client: flight.FlightClient, verb: str) -> None:
    kind, right = CALLS[verb]
    channel, admin = RawChannel(client, verb), RawChannel(client, "admin")
    empty = None if CHANNELS[verb][0] is None else pa.RecordBatch.from_pylist([], schema=CHANNELS[verb][0])
    if "number" in right:
        right = {**right, "generation": take_claim(client, admin)}
    for name in (*kind.__struct_fields__, "unknown", ""):  # type: ignore[attr-defined]
        for value in NASTY:
            if name == "wait_ms" and type(value) is int and value > 1:
                continue
            answer, _ = channel.call(encode({**right, name: value}), empty if verb in WITH_A_BATCH else None)
            while not answer.done:
                answer, _ = channel.receive()
            assert answer.error is None or answer.error.code != "broken_invariant", (verb, name, value)
            if name == "queues" and verb == "enqueue":
                assert answer.error is not None or value == [["q", 1]] or not value, value
    for raw in NO_MAPS:
        if not raw and empty is None:
            # A frame with nothing in it is the end of a stream.
            continue
        answer, _ = channel.call(raw, empty)
        assert answer.error is not None
        assert answer.error.code == "invalid_request", raw[:20]
    forget_bulk(admin)
