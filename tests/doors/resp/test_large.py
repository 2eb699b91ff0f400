"""Large commands and large answers: a thread reads and writes them, so that other connections go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead import Broker, Complete, Settings
from fairlead.server.resp import connection, door
from fairlead.server.resp.door import RespDoor
from fairlead.server.resp.parser import LARGE_BYTES
from fairlead.testing import open_in_memory
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Settle
from fairlead.wire.numbered import Numbered, pack_place
from fairlead.wire.packed import encode_request
from tests.doors.resp.conftest import opened
from tests.doors.resp.wire import PATIENCE_S, Wire, pack, packed

LARGE = b"".join(b"%07d\n" % n for n in range(LARGE_BYTES))[: 3 * LARGE_BYTES + 11]
SINGLES = 50


class Gate:
    """Stops whoever comes through until it is opened."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        self.reached, self.opened = threading.Event(), threading.Event()
        self.thread_id: int | None = None

    def __call__(self, *arguments: Any) -> Any:
        self.thread_id = threading.get_ident()
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        return self._wrapped(*arguments)


@contextmanager
def connections(running: RespDoor) -> Iterator[tuple[Wire, Wire]]:
    one, other = Wire(running.address), Wire(running.address)
    try:
        yield one, other
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "plain"])
def test_singles_are_served_while_a_large_enqueue_is_under_way(
    door: RespDoor, queue: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(door.turns.run_alone)
    monkeypatch.setattr(door.turns, "run_alone", gate)
    with connections(door) as (large, small):
        large.send(packed(Enqueue(queue, LARGE)) if is_packed else pack("FL.ENQUEUE", queue, LARGE))
        assert gate.reached.wait(PATIENCE_S)
        assert len({small.do(Enqueue(queue, b"small")) for _ in range(SINGLES)}) == SINGLES
        gate.opened.set()
        large.read()
        found = small.do(Claim(queue, 100))
        assert [one.payload for one in found] == [*[b"small"] * SINGLES, LARGE]


@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("is_in_memory", [True, False], ids=["from memory", "from the store"])
def test_singles_are_served_while_a_large_answer_is_read_and_written(
    is_packed: bool, is_in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_in_memory(settings=Settings(body_cache_bytes=4 * len(LARGE) if is_in_memory else 0))
    broker.create_queue("q")
    broker.create_queue("other")
    broker.enqueue("q", LARGE, headers={"a": "b"})
    gate = Gate(door.read_bodies)
    monkeypatch.setattr(door, "read_bodies", gate)
    with opened(broker) as running, connections(running) as (large, small):
        large.send(packed(Claim("q")) if is_packed else pack("FL.CLAIM", "q"))
        assert gate.reached.wait(PATIENCE_S)
        assert len({small.do(Enqueue("other", b"small")) for _ in range(SINGLES)}) == SINGLES
        gate.opened.set()
        reply = large.read()
        if not is_packed:
            fields = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
            assert fields[b"payload"] == LARGE
        assert LARGE in (reply if is_packed else fields[b"payload"])
        assert small.do(Claim("q")) == []


def test_answers_keep_their_order_behind_a_large_one(door: RespDoor, broker: Broker, queue: str) -> None:
    broker.enqueue(queue, LARGE)
    with connections(door) as (wire, _):
        wire.send(pack("FL.CLAIM", queue) + pack("PING", "behind") + pack("FL.CLAIM", queue))
        first, second, third = wire.read_many(3)
        assert LARGE in first[0]
        assert (second, third) == (b"behind", [])


def test_a_large_claim_among_the_requests_of_an_exchange(door: RespDoor, broker: Broker, queue: str) -> None:
    broker.enqueue(queue, LARGE)
    with connections(door) as (wire, _):
        ids, found = wire.do(Exchange([EnqueueMany(queue, []), Claim(queue)]))
        assert (ids, [one.payload for one in found]) == ([], [LARGE])
        assert wire.do(Settle([Complete(found[0])]))[0].ok


def test_a_large_command_in_a_session_takes_effect_once(door: RespDoor, broker: Broker, queue: str) -> None:
    with connections(door) as (wire, _):
        wire.ask("FL.OPEN_SESSION", f"s-{queue}")
        once = pack("FL.ONCE", f"s-{queue}", 1, 0, "FL.ENQUEUE", queue, LARGE)
        wire.send(once + once)
        first, again = wire.read_many(2)
        assert first == again
        place = pack_place(Numbered(session=f"s-{queue}", number=2, arrived=1), "FL.ENQUEUE")
        numbered = pack("FL.ONCE", place, encode_request(Enqueue(queue, LARGE)))
        wire.send(numbered + numbered)
        second, again = wire.read_many(2)
        assert second == again
        assert [one.payload for one in wire.do(Claim(queue, 10))] == [LARGE, LARGE]


@pytest.mark.parametrize(
    "words",
    [
        ("FL.ENQUEUE", "no such queue", LARGE),
        ("FL.ENQUEUE", "q", LARGE, "NO_SUCH_OPTION"),
        ("FL.ENQUEUE", b"\x81" + LARGE),
        ("FL.ONCE", LARGE, 1, 0, "FL.ENQUEUE", "q", "x"),
        ("FL.ONCE", "s", b"1" * len(LARGE), 0, "FL.ENQUEUE", "q", "x"),
        ("FL." + "x" * len(LARGE),),
        ("HELLO", 3, "AUTH", LARGE),
    ],
    ids=["queue", "option", "map", "session", "number", "name", "other"],
)
def test_a_large_command_that_is_wrong_is_refused_alone(wire: Wire, words: Any) -> None:
    assert isinstance(wire.ask(*words), Exception)
    assert wire.ask("PING") == b"PONG"


def test_a_large_argument_of_another_command_is_taken_whole(wire: Wire, queue: str) -> None:
    assert wire.ask("ECHO", LARGE) == LARGE
    wire.ask("XGROUP", "CREATE", queue, "g", "$")
    entry_id = wire.ask("XADD", queue, "*", "payload", LARGE)
    assert wire.ask("XREADGROUP", "GROUP", "g", "c", "STREAMS", queue, ">") == [
        [queue.encode(), [[entry_id, [b"payload", LARGE]]]]
    ]


def test_no_thread_but_those_of_the_pool_joins_a_large_argument(
    door: RespDoor, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(connection.join_words)
    gate.opened.set()
    monkeypatch.setattr(connection, "join_words", gate)
    with connections(door) as (wire, _):
        wire.do(Enqueue(queue, LARGE))
    assert gate.thread_id not in (None, door._event_loop.thread_id)


def test_a_large_name_of_a_session_is_not_taken_for_its_first_byte(wire: Wire, queue: str) -> None:
    wire.ask("FL.OPEN_SESSION", "0")
    assert LARGE.startswith(b"0")
    refused = wire.ask("FL.ONCE", LARGE, 1, 0, "FL.ENQUEUE", queue, "x")
    assert "INVALID" in str(refused)
