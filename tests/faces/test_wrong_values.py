"""A wrong value is refused in the same words in process and through the server, whatever the verb and the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead import Broker, NewMessage
from fairlead.errors import FairleadError
from fairlead.fields import fields_of
from fairlead.middleware.stack import Layers
from fairlead.model.access import EVERY_RIGHT
from fairlead.request import VERBS, Request
from fairlead.server.flight import FlightDoor
from fairlead.server.resp.door import RespDoor
from fairlead.testing import open_in_memory
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Goodbye, Settle
from tests.faces.doors import AioFace, RespFace

ANY_ID = "01890000-0000-7000-8000-000000000000"
RIGHT: dict[str, Any] = {
    "queue": "q",
    "name": "q",
    "key": "k",
    "duration": "1m",
    "value": "v",
    "number": 1,
    "up_to": 1,
    "items": [],
    "parts": ["p"],
    "stream": "s",
    "payload": b"x",
    "messages": [NewMessage(b"x")],
    "dedup_key": "d",
    "project": "",
    "text": "{}",
    "token": "t",
    "chunk": "c",
    "chunks": ["c"],
    "consumer": "c",
    "grants": ["produce:q"],
    "intent_id": 1,
    "message_id": ANY_ID,
    "ids": [ANY_ID],
    "requests": [],
    "session": "s",
}
WRONG: list[Any] = [None, True, 0, -1, math.nan, "", "a/b/c", b"", b"\xff", [], [None], {}, {"a": 1}, {1: 2}]
#: Written anywhere on the disk of the server; tests/hostile has its paths.
LEFT_OUT = {"checkpoint"}
#: Verbs that the asyncio client sends by itself, and those that have several ways to the server.
SENT_BY_AIO = {"enqueue", "enqueue_many", "settle"}


class Doors(NamedTuple):
    broker: Broker
    client: fairlead.Client
    aio: AioFace
    resp: RespFace


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    with ExitStack() as stack:
        broker = stack.enter_context(open_in_memory())
        layers = Layers(broker, keys=True)
        flight = FlightDoor(broker, "127.0.0.1:0", layers=layers)
        door = RespDoor(
            broker, "127.0.0.1:0", layers=layers, asks_for_keys=True, flight_address=lambda: flight.address
        )
        for one in (flight, door):
            one.start()
            stack.callback(one.stop)
            stack.callback(one.drain)
        stack.callback(broker.interrupt_waits)
        secret = broker.keys.create("all", EVERY_RIGHT).secret
        client = stack.enter_context(fairlead.connect(door.address, api_key=secret))
        aio = AioFace(door.address, secret)
        stack.callback(aio.close)
        face = RespFace(door.address, secret)
        stack.callback(face.close)
        yield Doors(broker, client, aio, face)


def words(do: Callable[[Request[Any]], Any], request: Request[Any]) -> tuple[str, str]:
    """The code and the text of the refusal; "" for a request that is carried out. Any other error is a defect."""
    try:
        answer = do(request)
        if request.paged:
            list(answer)
    except FairleadError as refused:
        return refused.code, refused.message
    return "", ""


#: A full id is looked up without its queue.
SHORT_ID = {"message_id": "0189"}
#: How these travel: a client may give them as well.
MAPS = {"filter", "options", "messages"}


def right_fields(verb: str, broker: Broker) -> dict[str, Any]:
    request = VERBS[verb].request
    given = RIGHT | (SHORT_ID if verb in ("find", "explain") else {})
    if "key_id" in request.__struct_fields__:
        given["key_id"] = broker.keys.create("k", ["produce:q"]).info.id
    if "generation" in request.__struct_fields__:
        given["generation"] = broker.consumers.register("q", "q").generation
    wanted = [field.name for field in fields_of(request) if field.required or field.name == "ids"]
    return {name: given[name] for name in wanted}


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - LEFT_OUT))
def test_a_wrong_value_is_refused_in_the_same_words_at_every_door(doors: Doors, verb: str) -> None:
    broker, kind = doors.broker, VERBS[verb].request
    if not any(queue.name == "q" for queue in broker.queues()):
        broker.create_queue("q")
    for field in kind.__struct_fields__:
        for value in WRONG:
            right = right_fields(verb, broker)
            if field == "filter":
                del right["ids"]
            if field in MAPS and isinstance(value, dict):
                continue
            request = kind(**right | {field: value})
            in_process = words(broker.do, request)
            if in_process[0] != "invalid_request":
                continue
            assert words(doors.client.do, request) == in_process, (field, value)
            assert words(doors.resp.do, request) == in_process, (field, value)
            if verb in SENT_BY_AIO:
                assert words(lambda one: AioFace.wait(doors.aio.client.do(one)), request) == in_process


@pytest.mark.parametrize("length", [243, 244, 256])
def test_with_a_key_names_of_consumers_and_tokens_may_be_as_long_as_without(
    doors: Doors, length: int
) -> None:
    broker, client = doors.broker, doors.client
    broker.create_queue(f"names-{length}")
    broker.enqueue_many(f"names-{length}", [NewMessage(b"x")] * 3)
    name = "x" * length
    first = client.claim(f"names-{length}", consumer=name, token=name)
    assert [one.id for one in client.claim(f"names-{length}", consumer=name, token=name)] == [first[0].id]
    other = name[:-1] + "y"
    assert len(client.claim(f"names-{length}", consumer=other, token=other)) == 1
    assert client.goodbye(name) == 1


def test_with_a_key_a_name_that_is_too_long_is_refused_by_its_own_length(doors: Doors) -> None:
    for request in (Claim("q", consumer="x" * 257), Claim("q", token="x" * 257), Goodbye("x" * 257)):
        assert words(doors.client.do, request) == words(doors.broker.do, request)
        assert "257" in words(doors.client.do, request)[1]


@pytest.mark.parametrize("queue", ["\ud800", "a\ud800"])
def test_a_queue_name_that_is_no_text_is_refused_by_the_client(doors: Doors, queue: str) -> None:
    for request in (Enqueue(queue, b"x"), EnqueueMany(queue, [NewMessage(b"x")])):
        assert words(doors.client.do, request) == words(doors.broker.do, request)
        assert words(doors.client.do, request)[0] == "invalid_request"


@pytest.mark.parametrize(
    "requests",
    [
        None,
        "",
        "ab",
        b"",
        {},
        [None],
        [Exchange([])],
        [Exchange([Enqueue("q", b"x")])],
        [Claim("q"), Claim("q")],
        [Settle(None)],  # type: ignore[arg-type]
        [Enqueue("q", 5)],  # type: ignore[arg-type]
        [Enqueue("q", b"x"), EnqueueMany("q", [None])],  # type: ignore[list-item]
        [Enqueue("q", b"x"), Claim("q", limit=0)],
        [Enqueue("q", b"x"), Claim("q", wait="1s")],
        [Enqueue("q", b"x"), Claim("q", token="t")],
        [Enqueue("q", b"x"), Claim("nowhere")],
        [Enqueue("q", b"x"), Enqueue("nowhere", b"x")],
    ],
    ids=repr,
)
def test_a_wrong_exchange_is_refused_in_the_same_words_and_changes_nothing(
    doors: Doors, requests: Any
) -> None:
    broker = doors.broker
    if not any(queue.name == "q" for queue in broker.queues()):
        broker.create_queue("q")
    before = broker.stats("q")
    refused = words(broker.do, Exchange(requests))
    assert refused[0] in ("invalid_request", "queue_not_found")
    assert words(doors.client.do, Exchange(requests)) == refused
    assert words(doors.resp.do, Exchange(requests)) == refused
    assert words(lambda one: AioFace.wait(doors.aio.client.do(one)), Exchange(requests)) == refused
    assert broker.stats("q") == before
