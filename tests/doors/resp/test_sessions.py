"""Numbered requests at the door that speaks Redis: a repeat has no second effect."""

from __future__ import annotations

import pytest

from fairlead.server.resp.door import RespDoor
from fairlead.verbs.enqueue import Enqueue
from fairlead.wire.packed import decode_answer, encode_request
from tests.doors.resp.wire import Wire, code_of, wires


def test_a_repeated_command_of_a_session_gets_its_answer_again(wire: Wire, queue: str) -> None:
    wire.ask("FL.OPEN_SESSION", f"of {queue}")
    once = ("FL.ONCE", f"of {queue}", 1, 0, "FL.ENQUEUE", queue, "payload")
    first = wire.ask(*once)
    assert wire.ask(*once) == first
    assert wire.ask("FL.ONCE", f"of {queue}", 2, 1, "FL.ENQUEUE", queue, "payload") != first
    assert len(wire.ask("FL.CLAIM", queue, "LIMIT", 10)) == 2


def test_a_session_outlives_its_connection(door: RespDoor, queue: str) -> None:
    name, enqueue = f"of {queue}", Enqueue(queue, b"payload")
    ids = []
    with wires(door.address, 2) as (one, other):
        one.ask("FL.OPEN_SESSION", name)
        for each in (one, other):
            raw = each.ask("FL.ONCE", name, 1, 0, "FL.ENQUEUE", encode_request(enqueue))
            ids.append(decode_answer(enqueue, raw)[0])
        assert ids[0] == ids[1]
        claim = ("FL.ONCE", name, 2, 1, "FL.CLAIM", queue)
        assert one.ask(*claim) == other.ask(*claim)


def test_a_pipeline_of_a_session_is_answered_in_order_and_again(wire: Wire, queue: str) -> None:
    wire.ask("FL.OPEN_SESSION", f"of {queue}")
    commands = [("FL.ONCE", f"of {queue}", n, 0, "FL.ENQUEUE", queue, f"{n}") for n in range(1, 101)]
    before, again = ([wire.ask(*command) for command in commands] for _ in range(2))
    assert before == again
    assert len(set(before)) == 100


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("s",),
        ("s", 1, 0),
        ("s", 1, 0, "PING"),
        ("s", 1, 0, "FL.ONCE", "s", 1, 0, "FL.LIST"),
        ("s", "one", 0, "FL.ENQUEUE", "q", "p"),
        ("s", -1, 0, "FL.ENQUEUE", "q", "p"),
        ("s", "9" * 30, 0, "FL.ENQUEUE", "q", "p"),
        (b"\xff", 1, 0, "FL.ENQUEUE", "q", "p"),
        (b"\x94",),
        (b"\x94", b"\x80"),
        (b"\x94\xa1s\x01\x00\xa4PING", b"\x80"),
        (b"\x94\xa1s\x01\x00\xa7FL.ONCE", b"\x80"),
        (b"\x94\xa1s\xa11\x00\xa7FL.LIST", b"\x80"),
        (b"\x94\xa1\xff\x01\x00\xaaFL.ENQUEUE", b"\x80"),
        (b"\x94\xa1s\xff\x00\xaaFL.ENQUEUE", b"\x82\xa5queue\xa1q\xa7payload\xc4\x01p"),
        (b"\x94\xa1s\x01\x00\xaaFL.ENQUEUE", b"\x80", "more"),
    ],
)
def test_a_place_in_a_session_that_is_none_is_refused(
    wire: Wire, words: tuple[str | bytes | int, ...]
) -> None:
    assert code_of(wire.ask("FL.ONCE", *words)) == "INVALID_REQUEST"
    assert wire.ask("PING") == b"PONG"


def test_a_number_whose_answer_has_arrived_is_refused(wire: Wire, queue: str) -> None:
    wire.ask("FL.OPEN_SESSION", f"of {queue}")
    wire.ask("FL.ONCE", f"of {queue}", 1, 0, "FL.ENQUEUE", queue, "payload")
    wire.ask("FL.ONCE", f"of {queue}", 2, 1, "FL.ENQUEUE", queue, "payload")
    late = wire.ask("FL.ONCE", f"of {queue}", 1, 0, "FL.ENQUEUE", queue, "payload")
    assert code_of(late) == "REQUEST_EXPIRED"
    assert len(wire.ask("FL.CLAIM", queue, "LIMIT", 10)) == 2
