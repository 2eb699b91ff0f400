"""Subscriptions at the door: replies and pushes, and what becomes of deliveries when a connection ends or is not read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest

from fairlead import Broker, Complete, NewMessage, Settings, errors
from fairlead.config import LimitSettings
from fairlead.middleware.stack import Layers
from fairlead.server.limits import Limit
from fairlead.server.resp.door import RespDoor
from fairlead.testing import open_in_memory
from fairlead.testing.engine import is_started, waiting_claims
from fairlead.testing.faulty import FaultyStore
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Settle
from fairlead.wire.packed import encode_request
from fairlead.wire.subscriptions import Consume, Credit, Pushed, read_push
from tests.doors.resp.conftest import door_with, opened
from tests.doors.resp.wire import Wire, code_of, pack
from tests.integration.world import wait_until


class Consumer(Wire):
    """A connection that said HELLO 3."""

    def __init__(self, door: RespDoor, *hello: str) -> None:
        super().__init__(door.address)
        self.ask("HELLO", "3", *hello)

    def ask_packed(self, request: Any) -> Any:
        return self.ask(f"FL.{request.verb_name.upper()}", encode_request(request))

    def push(self) -> Pushed:
        parts = self.read()
        assert isinstance(parts, hiredis.PushNotification), parts
        return read_push(parts)

    def payloads(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            found += [one.payload for one in self.push().deliveries]
        return found


@pytest.fixture
def consumer(door: RespDoor) -> Iterator[Consumer]:
    made = Consumer(door)
    yield made
    made.close()


def fill(broker: Broker, queue: str, count: int) -> list[str]:
    return broker.enqueue_many(queue, [NewMessage(b"%d" % n) for n in range(count)])


def counts(broker: Broker, queue: str) -> tuple[int, int]:
    stats = broker.stats(queue)
    return stats.ready, stats.leased


def test_people_get_pushes_they_can_read(consumer: Consumer, broker: Broker, queue: str) -> None:
    [first, second] = fill(broker, queue, 2)
    assert consumer.ask("FL.CONSUME", queue, "CREDIT", "2", "CONSUMER", "me") == 1
    kind, number, started, found = consumer.read()
    assert (kind, number, started) == (b"fl.deliver", 1, 1)
    assert [one[b"id"].decode() for one in found] == [first, second]
    lease = found[0][b"lease"]
    [result] = consumer.ask("FL.SETTLE", "COMPLETE", first, lease)
    assert result[b"outcome"] == b"completed"
    third = broker.enqueue(queue, b"2")
    assert consumer.ask("FL.CREDIT", 1, 1) == b"OK"
    _, _, started, [found] = consumer.read()
    assert (started, found[b"id"].decode()) == (0, third)
    assert consumer.ask("FL.CANCEL", 1) == b"OK"
    assert counts(broker, queue) == (2, 0)


def test_a_program_of_ours_gets_columns(consumer: Consumer, broker: Broker, queue: str) -> None:
    number = consumer.ask_packed(Consume(queue, credit=3))
    [first] = fill(broker, queue, 1)
    pushed = consumer.push()
    assert (pushed.subscription, pushed.started, [one.id for one in pushed.deliveries]) == (
        number,
        1,
        [first],
    )
    assert is_started(broker, first)
    assert 0 < pushed.deliveries[0].lease_until - pushed.now_ms <= 60_000


def test_deliveries_come_between_replies_and_settles_go_on_the_same_connection(
    consumer: Consumer, broker: Broker, queue: str
) -> None:
    consumer.ask_packed(Consume(queue, credit=100))
    for n in range(5):
        broker.enqueue(queue, b"%d" % n)
        [delivery] = consumer.push().deliveries
        assert delivery.payload == b"%d" % n
        assert consumer.do(Settle([Complete(delivery)]))[0].ok


def test_a_connection_has_several_subscriptions(consumer: Consumer, broker: Broker, queue: str) -> None:
    broker.create_queue(f"{queue}-other")
    assert consumer.ask_packed(Consume(queue)) == 1
    assert consumer.ask_packed(Consume(f"{queue}-other")) == 2
    fill(broker, f"{queue}-other", 1)
    assert consumer.push().subscription == 2
    fill(broker, queue, 1)
    assert consumer.push().subscription == 1
    consumer.ask("FL.CANCEL", 1)
    assert code_of(consumer.ask("FL.CREDIT", 1, 1)) == "INVALID_REQUEST"
    assert consumer.ask("FL.CREDIT", 2, 1) == b"OK"


def test_what_arrives_in_one_piece_is_answered_in_order(
    consumer: Consumer, broker: Broker, queue: str
) -> None:
    consumer.send(
        pack("FL.ENQUEUE", queue, "a")
        + pack("FL.CONSUME", queue, "CREDIT", "5")
        + pack("FL.CREDIT", 1, 2)
        + pack("PING")
        + pack("FL.CANCEL", 1)
        + pack("FL.CANCEL", 1)
    )
    replies = consumer.read_many(7)
    assert len(replies[0]) == 36
    assert replies[1] == 1
    assert isinstance(replies[2], hiredis.PushNotification)
    assert replies[3:6] == [b"OK", b"PONG", b"OK"]
    assert code_of(replies[6]) == "INVALID_REQUEST"


def test_no_push_comes_before_the_reply_that_names_its_subscription(
    consumer: Consumer, broker: Broker, store: FaultyStore, queue: str
) -> None:
    """The reply waits for those before it, here for that of an enqueue, which waits for its sync."""
    may_sync = threading.Event()
    store.on_delay = lambda method: may_sync.wait(10) and None
    store.arm(1, "delay", only=("sync",))
    consumer.send(pack("FL.ENQUEUE", queue, "a") + pack("FL.CONSUME", queue, "CREDIT", 5))
    wait_until(lambda: store.struck)
    putting = threading.Thread(target=lambda: broker.enqueue(queue, b"b"))
    putting.start()
    wait_until(lambda: sum(counts(broker, queue)) == 2)
    may_sync.set()
    putting.join()
    replies = consumer.read_many(3)
    assert len(replies[0]) == 36
    assert replies[1] == 1
    assert isinstance(replies[2], hiredis.PushNotification)


@pytest.mark.parametrize(
    "words",
    [
        ["FL.CONSUME"],
        ["FL.CONSUME", "q", "CREDIT", "0"],
        ["FL.CONSUME", "q", "CREDIT", "100001"],
        ["FL.CONSUME", "q", "CREDIT", "some"],
        ["FL.CONSUME", "q", "MAX_PER_STREAM", "0"],
        ["FL.CONSUME", "q", "LIMIT", "1"],
        ["FL.CONSUME", "no/such/name"],
        ["FL.CONSUME", b"\x81\xa5queue\x05"],
        ["FL.CONSUME", b"\x81\xa5queue"],
        ["FL.CREDIT", "1"],
        ["FL.CREDIT", "9", "1"],
        ["FL.CREDIT", "x", "1"],
        ["FL.CANCEL", "9"],
        ["FL.ONCE", "s", "1", "0", "FL.CONSUME", "q"],
    ],
)
def test_a_wrong_command_is_refused_alone(consumer: Consumer, words: list[Any]) -> None:
    assert code_of(consumer.ask(*words)) == "INVALID_REQUEST"
    assert consumer.ask("PING") == b"PONG"


def test_a_queue_that_is_not_there_is_said_in_the_reply(consumer: Consumer) -> None:
    assert code_of(consumer.ask("FL.CONSUME", "nowhere")) == "QUEUE_NOT_FOUND"
    assert code_of(consumer.ask("FL.CREDIT", 1, 1)) == "INVALID_REQUEST"


def test_resp2_is_told_to_say_hello(wire: Wire, consumer: Consumer, queue: str) -> None:
    refused = wire.ask("FL.CONSUME", queue)
    assert code_of(refused) == "INVALID_REQUEST"
    assert "HELLO 3" in str(refused)
    consumer.ask_packed(Consume(queue))
    assert code_of(consumer.ask("HELLO", "2")) == "INVALID_REQUEST"
    consumer.ask("RESET")
    assert code_of(consumer.ask("FL.CREDIT", 1, 1)) == "INVALID_REQUEST", "it ended"


def test_subscriptions_of_a_connection_have_a_bound(consumer: Consumer, broker: Broker, queue: str) -> None:
    assert [consumer.ask_packed(Consume(queue)) for _ in range(100)] == [*range(1, 101)]
    assert code_of(consumer.ask("FL.CONSUME", queue)) == "INVALID_REQUEST"
    consumer.close()
    wait_until(lambda: waiting_claims(broker, queue) == 0)


@pytest.mark.parametrize("how", ["close", "half", "reset", "quit"])
def test_when_a_connection_ends_its_messages_go_back_in_order_and_uncharged(
    door: RespDoor, broker: Broker, queue: str, how: str
) -> None:
    fill(broker, queue, 5)
    consumer = Consumer(door)
    consumer.ask_packed(Consume(queue, credit=10))
    assert len(consumer.push().deliveries) == 5
    if how == "half":
        consumer.socket.shutdown(socket.SHUT_WR)
    elif how == "reset":
        consumer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        consumer.close()
    elif how == "quit":
        consumer.ask("QUIT")
    else:
        consumer.close()
    wait_until(lambda: counts(broker, queue) == (4, 1))
    fill(broker, queue, 1)
    back = broker.claim(queue, limit=10)
    assert [one.payload for one in back] == [b"1", b"2", b"3", b"4", b"0"]
    assert {one.attempts for one in back} == {0}
    consumer.close()


def test_a_queue_that_is_deleted_ends_it_with_a_push(consumer: Consumer, broker: Broker, queue: str) -> None:
    number = consumer.ask_packed(Consume(queue))
    broker.delete_queue(queue)
    pushed = consumer.push()
    assert pushed.subscription == number
    assert isinstance(pushed.error, errors.QueueNotFound)
    assert code_of(consumer.ask("FL.CREDIT", number, 1)) == "INVALID_REQUEST"


def test_a_consumer_that_does_not_read_gets_one_push_and_is_closed_in_the_end() -> None:
    with door_with(LimitSettings(greeting_ms=300)) as (broker, door):
        size, count = 256 * 1024, 200
        consumer = Consumer(door)
        assert consumer.ask_packed(Consume("q", credit=count)) == 1
        for _ in range(count):
            broker.enqueue("q", b"x" * size)
        wait_until(lambda: any(one.is_stuck for one in door._connections.values()))
        leased = broker.stats("q").leased
        assert leased < count, "what the sockets take, and one push"
        for _ in range(5):
            broker.enqueue("q", b"")
        assert Wire(door.address).ask("FL.ENQUEUE", "q", b""), "so there were turns"
        assert broker.stats("q").leased == leased
        wait_until(lambda: door.connection_count == 0)
        assert door.limits.refusals == {Limit.UNREAD_BYTES: 1}
        wait_until(lambda: broker.stats("q").ready >= count - 1)
        consumer.close()


@pytest.mark.parametrize("cached_bytes", [0, 64 << 20])
def test_large_messages_come_one_after_the_other(cached_bytes: int) -> None:
    broker = open_in_memory(settings=Settings(body_cache_bytes=cached_bytes))
    broker.create_queue("q")
    given = [b"%d" % n + b"x" * (3 << 20) for n in range(3)]
    for payload in given:
        broker.enqueue("q", payload)
    with opened(broker) as door:
        consumer = Consumer(door)
        consumer.ask_packed(Consume("q", credit=3))
        assert consumer.payloads(3) == given
        consumer.close()


def test_a_consumer_that_reads_again_gets_the_rest(door: RespDoor, broker: Broker, queue: str) -> None:
    consumer = Consumer(door)
    consumer.ask_packed(Consume(queue, credit=60))
    for n in range(60):
        broker.enqueue(queue, b"%d" % n + b"x" * (256 * 1024))
    wait_until(lambda: any(one.is_stuck for one in door._connections.values()))
    found = consumer.payloads(60)
    assert [one.rstrip(b"x") for one in found] == [b"%d" % n for n in range(60)]
    consumer.close()


@pytest.fixture
def guarded() -> Iterator[tuple[Broker, RespDoor, Any]]:
    broker = open_in_memory()
    broker.create_queue("q")
    key = broker.keys.create("a", ["consume:q"])
    with opened(broker, layers=Layers(broker, keys=True), asks_for_keys=True) as door:
        yield broker, door, key


def test_a_key_that_is_revoked_ends_its_subscriptions(guarded: tuple[Broker, RespDoor, Any]) -> None:
    broker, door, key = guarded
    consumer = Consumer(door, "AUTH", "default", key.secret)
    assert code_of(consumer.ask("FL.CONSUME", "other")) == "FORBIDDEN"
    assert consumer.ask_packed(Consume("q", credit=10)) == 2
    broker.keys.revoke(key.info.id)
    assert isinstance(consumer.push().error, errors.Unauthenticated)
    broker.enqueue("q", b"1")
    assert code_of(consumer.ask("FL.CREDIT", 2, 1)) in ("INVALID_REQUEST", "UNAUTHENTICATED")
    assert counts(broker, "q") == (1, 0)
    consumer.close()


def test_another_key_ends_the_subscriptions_of_the_first(guarded: tuple[Broker, RespDoor, Any]) -> None:
    broker, door, key = guarded
    consumer = Consumer(door, "AUTH", "default", key.secret)
    consumer.ask_packed(Consume("q", credit=10))
    consumer.ask("AUTH", broker.keys.create("b", ["produce:q"]).secret)
    assert waiting_claims(broker, "q") == 0
    consumer.close()


def test_strangers_get_none(guarded: tuple[Broker, RespDoor, Any]) -> None:
    _, door, _ = guarded
    stranger = Wire(door.address)
    assert code_of(stranger.ask("FL.CONSUME", "q")) == "UNAUTHENTICATED"
    stranger.close()


def test_a_server_that_stops_says_so_and_takes_back_what_was_not_started() -> None:
    broker = open_in_memory()
    broker.create_queue("q", visibility_timeout="1h")
    fill(broker, "q", 3)
    with opened(broker) as door:
        consumer = Consumer(door)
        consumer.ask_packed(Consume("q", credit=10))
        assert len(consumer.push().deliveries) == 3
        door.drain()
        broker.interrupt_waits()
        assert isinstance(consumer.push().error, errors.ServerStopping)
        wait_until(lambda: counts(broker, "q") == (2, 1))
        door.stop()
        assert consumer.is_closed()


def test_a_server_that_stops_takes_back_from_those_without_credit_too() -> None:
    broker = open_in_memory()
    broker.create_queue("q", visibility_timeout="1h")
    fill(broker, "q", 3)
    with opened(broker) as door:
        consumer = Consumer(door)
        consumer.ask_packed(Consume("q", credit=3))
        assert len(consumer.push().deliveries) == 3
        door.drain()
        broker.interrupt_waits()
        door.stop()
        assert counts(broker, "q") == (2, 1)


def test_two_consumers_and_a_claim_share_what_comes(door: RespDoor, broker: Broker, queue: str) -> None:
    consumers = [Consumer(door), Consumer(door)]
    for one in consumers:
        one.ask_packed(Consume(queue, credit=100))
    for n in range(10):
        broker.enqueue(queue, b"%d" % n)
        wait_until(lambda: broker.stats(queue).ready == 0)
    assert [one.payloads(5) for one in consumers] == [
        [b"0", b"2", b"4", b"6", b"8"],
        [b"1", b"3", b"5", b"7", b"9"],
    ]
    for one in consumers:
        one.close()


def test_people_can_read_how_it_is_used(consumer: Consumer) -> None:
    [line] = consumer.ask("FL.HELP", "consume")
    assert line.startswith(
        b"FL.CONSUME queue [CREDIT value] [CONSUMER value] [MAX_PER_STREAM value] [TOKEN value]: "
    )
    docs = consumer.ask("COMMAND", "DOCS", "FL.CREDIT", "FL.CANCEL")
    assert {*docs} == {b"FL.CREDIT", b"FL.CANCEL"}
    assert b"FL.CONSUME" in consumer.ask("COMMAND", "LIST")


def test_metrics_count_a_subscription_once(
    consumer: Consumer, door: RespDoor, broker: Broker, queue: str
) -> None:
    before = sum(door.layers.requests["claim"].outcomes.values()) if "claim" in door.layers.requests else 0
    consumer.ask_packed(Consume(queue, credit=10))
    for _ in range(3):
        broker.enqueue(queue, b"")
        consumer.push()
    assert sum(door.layers.requests["claim"].outcomes.values()) == before + 1


def test_credit_beyond_the_bound_is_refused(consumer: Consumer, queue: str) -> None:
    consumer.ask_packed(Consume(queue, credit=100_000))
    assert code_of(consumer.ask_packed(Credit(1, 1))) == "INVALID_REQUEST"


def test_a_claim_on_the_same_connection_waits_beside_it(
    consumer: Consumer, broker: Broker, queue: str
) -> None:
    consumer.ask_packed(Consume(queue, credit=10))
    consumer.send(pack("FL.CLAIM", encode_request(Claim(queue, wait="30s"))))
    wait_until(lambda: waiting_claims(broker, queue) == 2)
    broker.enqueue(queue, b"1")
    assert [one.payload for one in consumer.push().deliveries] == [b"1"]
    broker.enqueue(queue, b"2")
    assert not isinstance(consumer.read(), hiredis.PushNotification)
