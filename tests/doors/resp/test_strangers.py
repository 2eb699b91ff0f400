"""What strangers may send: each ends his own connection at most, and nobody else's."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from fairlead import Broker, NewMessage
from fairlead.config import LimitSettings
from fairlead.server.limits import Limit
from fairlead.server.resp.door import RespDoor
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from tests.doors.resp.conftest import door_with
from tests.doors.resp.wire import Wire, code_of, pack, packed, wires
from tests.integration.world import wait_until


@pytest.mark.parametrize(
    "raw",
    [
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
        b"*1\r\n*1000000000\r\n",
        b"*1000000000\r\n",
        b"*%d\r\n" % 2**63,
        b"*1\r\n$%d\r\n" % 2**63,
        b"*1\r\n$-5\r\n",
        b"*1\r\n$999999999\r\n",
        b"*x\r\n",
        b"*1\r\n:5\r\n",
        b"*1\r\n$4\r\nPINGxx",
        b"*1" + b"1" * 100,
        b'PING "unbalanced\r\n',
        b"x" * 70_000,
    ],
)
def test_what_is_no_command_is_refused_and_closed(door: RespDoor, wire: Wire, raw: bytes) -> None:
    wire.send(pack("PING") + raw)
    assert wire.read() == b"PONG", "what was whole before it counts"
    assert code_of(wire.read()) in ("INVALID_REQUEST", "LIMIT_REACHED")
    assert wire.is_closed()


@pytest.mark.parametrize(
    "raw",
    [
        b"POST / HTTP/1.1\r\nHost: localhost:5554\r\nContent-Length: 18\r\n\r\nFL.ENQUEUE q 1\r\n",
        b"GET /queues HTTP/1.1\r\nHost: localhost\r\n\r\nPING\r\n",
    ],
)
def test_http_is_not_carried_out(wire: Wire, raw: bytes) -> None:
    wire.send(raw)
    assert wire.is_closed()
    assert b"PONG" not in wire.rest
    assert b"-8000-" not in wire.rest, "no id of a message"


def test_a_command_may_be_one_line_of_words(wire: Wire, queue: str) -> None:
    wire.send(
        b"\r\nPING\r\n"
        + b'ping "a b\\x41\\n"\n'
        + f"FL.ENQUEUE {queue} 'it\\'s' KEY k\r\n".encode()
        + b"*0\r\n"
    )
    assert wire.read_many(2) == [b"PONG", b"a bA\n"]
    assert len(wire.read()) == 36
    [delivery] = wire.do(Claim(queue))
    assert (delivery.payload, delivery.fairness_key) == (b"it's", "k")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["NOTHING"], "INVALID_REQUEST"),
        (["FL.NOTHING"], "INVALID_REQUEST"),
        ([""], "INVALID_REQUEST"),
        (["MULTI"], "INVALID_REQUEST"),
        (["SELECT", "1"], "INVALID_REQUEST"),
        (["HELLO", "4"], "INVALID_REQUEST"),
        (["HELLO", "3", "AUTH", "x"], "INVALID_REQUEST"),
        (["CLIENT"], "INVALID_REQUEST"),
        (["CLIENT", "KILL"], "INVALID_REQUEST"),
        (["ACL", "LIST"], "INVALID_REQUEST"),
        (["COMMAND", "X"], "INVALID_REQUEST"),
        (["FL.HELP", "X"], "INVALID_REQUEST"),
        (["FL.ENQUEUE"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q", "p", "KEY"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q", "p", "KEY", "a", "FAIRNESS_KEY", "b"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q", "p", "HEADER", "a"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q", "p", "HEADER", "a", "1", "HEADER", "a", "2"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q", "p", "WEIGHT", "heavy"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q", "p", b"\xff", "x"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", "q", "p", "KEY", b"\xff"], "INVALID_REQUEST"),
        (["FL.ENQUEUE", b"\xff\xfe", "p"], "INVALID_REQUEST"),
        (["FL.CLAIM", "q", "LIMIT", "0"], "INVALID_REQUEST"),
        (["FL.CLAIM", "q", "LIMIT", str(2**70)], "INVALID_REQUEST"),
        (["FL.CLAIM", "q", "STARTED", "maybe"], "INVALID_REQUEST"),
        (["FL.CLAIM", "q", "WAIT", "soon"], "INVALID_REQUEST"),
        (["FL.RETRY", "q", "FILTER", "{"], "INVALID_REQUEST"),
        (["FL.RETRY", "q", "FILTER", '{"no": 1}'], "INVALID_REQUEST"),
        (["FL.SETTLE", "COMPLETE", "x"], "INVALID_REQUEST"),
        (["FL.CLAIM", b"\x81\xa1"], "INVALID_REQUEST"),
        (["FL.CLAIM", msgspec.msgpack.encode({"queue": "q", "x": 1})], "INVALID_REQUEST"),
        (["FL.CLAIM", b"\x81\xa5queue" + b"\x91" * 500 + b"\xc0"], "INVALID_REQUEST"),
    ],
)
def test_a_wrong_command_is_refused_alone(wire: Wire, words: list[Any], code: str) -> None:
    assert code_of(wire.ask(*words)) == code
    assert wire.ask("PING") == b"PONG"


def test_options_may_be_repeated_where_there_are_many_values(wire: Wire, broker: Broker, queue: str) -> None:
    wire.ask(
        "FL.ENQUEUE", queue, "p", "THROTTLE", "a", "THROTTLE_KEY", "b", "HEADER", "h", "1", "HEADER", "i", "2"
    )
    [info] = broker.peek(queue)
    assert (list(info.throttle_keys), dict(info.headers)) == (["a", "b"], {"h": "1", "i": "2"})
    ids = [broker.enqueue(queue, b"") for _ in range(2)]
    wire.ask("HELLO", "3")
    assert wire.ask("FL.HOLD", queue, "ID", ids[0], "ID", ids[1])[b"changed"] == [one.encode() for one in ids]


def test_many_messages_and_outcomes_have_a_short_form(wire: Wire, broker: Broker, queue: str) -> None:
    ids = wire.ask(
        "FL.ENQUEUE_MANY", queue, "MESSAGE", "1", "KEY", "a", "MESSAGE", "2", "DELAY", "1h", "MESSAGE", "3"
    )
    assert len(ids) == 3
    first, second = broker.claim(queue, limit=3)
    results = wire.ask(
        "FL.SETTLE",
        "FAIL",
        first.id,
        first.lease,
        "ERROR",
        "no good",
        "RETRY_IN",
        "1h",
        "RELEASE",
        second.id,
        second.lease,
    )
    assert [one[3] for one in results] == [b"retry", b"released"]


def test_a_client_that_does_not_read_is_not_read_and_is_closed_in_the_end() -> None:
    with door_with(LimitSettings()) as (_, door):
        with wires(door.address, 2) as (greedy, other):
            other.ask("PING")
            echo = pack("PING", b"x" * 100_000)
            greedy.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                greedy.send(echo * 1000)
            wait_until(lambda: sum(one.is_stuck for one in door._connections.values()) == 1)
            assert other.do(Enqueue("q", b"1"))
            assert door.connection_count == 2
            # The door looks once in each period of the greeting. Looks by hand do not depend on the machine's load.
            for _ in range(2):
                door._loop.call_soon_threadsafe(door._look)
            wait_until(lambda: door.connection_count == 1)
        assert door.limits.refusals == {Limit.UNREAD_BYTES: 1}


def test_what_is_never_read_of_large_answers_is_bounded() -> None:
    with door_with(LimitSettings(max_inflight_bytes=3 << 20)) as (broker, door):
        broker.enqueue_many("q", [NewMessage(b"x" * (1 << 20)) for _ in range(20)])
        with wires(door.address, 4) as opened:
            for one in opened[:3]:
                one.send(packed(Claim("q", 5)))
            wait_until(lambda: broker.stats("q").leased == 15)
            wait_until(lambda: sum(one.unsent for one in door._connections.values()) > 3 << 20)
            assert code_of(opened[3].ask("FL.CLAIM", "q")) == "OVERLOADED"
            assert opened[3].do(Enqueue("q", b"fits"))


def test_silent_and_slow_connections_are_closed() -> None:
    with door_with(LimitSettings(greeting_ms=200)) as (_, door):
        with wires(door.address, 4) as (silent, slow, late, good):
            assert good.ask("PING") == b"PONG"
            slow.send(b"*2\r\n$4\r\nPI")
            late.send(pack("PING") + b"*2\r\n$10\r\nFL.ENQUEUE\r\n$100\r\n")
            assert late.read() == b"PONG"
            assert silent.is_closed()
            assert slow.is_closed()
            assert late.is_closed()
            assert good.ask("PING") == b"PONG"
        assert door.limits.refusals[Limit.GREETING] == 3


def test_idle_connections_are_closed_but_not_while_a_claim_waits() -> None:
    with (
        door_with(LimitSettings(greeting_ms=100, idle_ms=200)) as (broker, door),
        wires(door.address, 2) as (idle, waits),
    ):
        idle.ask("PING")
        waits.send(packed(Claim("q", wait="30s")))
        assert idle.is_closed()
        time.sleep(0.3)
        broker.enqueue("q", b"1")
        assert waits.read()


def test_connections_have_a_bound() -> None:
    with door_with(LimitSettings(max_connections=3)) as (_, door):
        with wires(door.address, 3) as opened:
            for one in opened:
                one.ask("PING")
            newest = Wire(door.address)
            assert newest.ask("PING") == b"PONG"
            assert opened[0].is_closed()
            newest.close()
        assert door.limits.refusals[Limit.CONNECTIONS] == 1


def test_commands_that_are_not_whole_have_a_bound_together() -> None:
    with door_with(LimitSettings(max_arriving_bytes=4 << 20)) as (_, door):
        with wires(door.address, 3) as (first, second, other):
            half = b"*3\r\n$10\r\nFL.ENQUEUE\r\n$1\r\nq\r\n$10000000\r\n"
            first.send(half + b"x" * (3 << 20))
            wait_until(lambda: sum(one.arriving for one in door._connections.values()) > 2 << 20)
            second.socket.settimeout(5)
            second.send(half + b"x" * (2 << 20))
            assert first.is_closed()
            assert other.do(Enqueue("q", b"1"))
        assert door.limits.refusals[Limit.ARRIVING_BYTES] >= 1


def test_a_large_payload_arrives_in_pieces(wire: Wire, queue: str) -> None:
    payload = bytes(range(256)) * (1 << 14)
    wire.do(Enqueue(queue, payload))
    [found] = wire.do(Claim(queue))
    assert found.payload == payload


def test_the_server_stops_while_clients_are_there() -> None:
    with door_with(LimitSettings()) as (broker, door), wires(door.address, 3) as (idle, waits, half):
        idle.ask("PING")
        half.send(b"*2\r\n$4\r\nPI")
        waits.send(pack("FL.CLAIM", "q", "WAIT", "30s"))
        wait_until(lambda: door.waiting_count == 1)
        door.drain()
        assert code_of(idle.ask("FL.CLAIM", "q")) == "SERVER_STOPPING"
        broker.interrupt_waits()
        assert waits.read() == []
        began = time.monotonic()
        door.stop()
        assert time.monotonic() - began < 10
        assert all(one.is_closed() for one in (idle, waits, half))
