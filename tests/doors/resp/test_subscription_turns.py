"""Subscriptions without sockets: who gets what in which turn, within which credit, and what goes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Broker, Complete, Delivery, Fail, NewMessage, Start, errors
from fairlead.middleware.stack import Layers
from fairlead.model.access import Right
from fairlead.request import LOCAL, Caller, Request
from fairlead.server.subscriptions import PUSH_BYTES, GivingBack, Standing, Subscription
from fairlead.server.turn import Call, Turns
from fairlead.testing import ManualClock, laws
from fairlead.testing.engine import engine_of, is_started, waiting_claims
from fairlead.testing.faulty import faulty_in_memory
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.settle import Settle
from tests.simulation.turn.machine import Server


class Consumer(Subscription):
    """Notes what it is sent."""

    def __init__(self, scene: Scene, claim: Claim, credit: int, caller: Caller = LOCAL) -> None:
        super().__init__(scene.turns, scene.broker, caller, claim, credit)
        self.sent: list[Delivery] = []
        self.started: list[str] = []
        self.error: Any = None
        self.open()

    def over(self, call: Standing | GivingBack) -> None:
        super().over(call)
        if isinstance(call, Standing):
            self.sent += call.deliveries
            self.started += [one.id for one in call.deliveries[: call.started]]
            self.error = call.error

    @property
    def payloads(self) -> list[bytes]:
        return [one.payload for one in self.sent]


class Scene:
    """A broker on a store that counts and fails, and the turns of one door."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = faulty_in_memory()
        self.broker = Broker(self.store, clock=self.clock)
        self.broker.create_queue("q", visibility_timeout="30s")
        self.layers = Layers(self.broker, keys=True)
        self.turns = Turns(self.broker, Layers(self.broker))

    def consumer(self, credit: int = 10, queue: Any = "q", **options: Any) -> Consumer:
        found = Consumer(self, Claim(queue, **options), credit)
        self.run()
        return found

    def ask(self, *requests: Request[Any]) -> list[Call]:
        calls = [Call(request, LOCAL) for request in requests]
        for call in calls:
            self.turns.add(call)
        return calls

    def turn(self) -> list[Call]:
        done = self.turns.run()
        for call in done.over:
            if isinstance(call, (Standing, GivingBack)):
                call.subscription.over(call)
        return done.over

    def run(self) -> None:
        """Turns until there is nothing to do."""
        while self.turns.has_work:
            self.turn()

    def put(self, *payloads: bytes, queue: str = "q", **fields: Any) -> list[str]:
        return self.broker.enqueue_many(queue, [NewMessage(payload, **fields) for payload in payloads])

    def counts(self, queue: str = "q") -> tuple[int, int]:
        """ready, leased"""
        stats = self.broker.stats(queue)
        return stats.ready, stats.leased


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    if not engine_of(scene.broker).closed:
        assert laws(scene.broker) == []
        scene.broker.close()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_an_enqueue_and_its_delivery_are_one_write(scene: Scene) -> None:
    consumer = scene.consumer()
    before = scene.store.calls["write"]
    scene.ask(Enqueue("q", b"1"))
    scene.turn()
    assert consumer.payloads == [b"1"]
    assert scene.store.calls["write"] == before + 1
    assert not scene.turns.has_work, "nothing is ready, so nothing is tried"
    assert waiting_claims(scene.broker, "q") == 1, "it stands again"


def test_what_is_there_comes_first_and_in_order(scene: Scene) -> None:
    scene.put(*numbered(5))
    consumer = scene.consumer()
    scene.put(b"5")
    scene.run()
    assert consumer.payloads == numbered(6)


def test_credit_is_never_exceeded(scene: Scene) -> None:
    scene.put(*numbered(20))
    consumer = scene.consumer(credit=3)
    assert consumer.payloads == numbered(3)
    scene.ask(Settle([Complete(one) for one in consumer.sent]))
    scene.run()
    assert (len(consumer.sent), waiting_claims(scene.broker, "q")) == (3, 0), "a settle gives no credit"
    consumer.grant(2)
    consumer.grant(2)
    scene.run()
    assert consumer.payloads == numbered(7)


@pytest.mark.parametrize("count", [0, -1, True, 10**6, "5"])
def test_credit_that_is_none_is_refused(scene: Scene, count: Any) -> None:
    consumer = scene.consumer()
    with pytest.raises(errors.InvalidRequest):
        consumer.grant(count)
    with pytest.raises(errors.InvalidRequest):
        scene.consumer(credit=count)
    assert consumer.credit == 10


def test_only_an_idle_consumer_gets_a_delivery_that_is_started(scene: Scene) -> None:
    ids = scene.put(*numbered(3))
    consumer = scene.consumer()
    assert consumer.started == ids[:1]
    assert [is_started(scene.broker, one) for one in ids] == [True, False, False]
    scene.ask(Settle([Complete(consumer.sent[0])]))
    ids += scene.put(b"3")
    scene.run()
    assert len(consumer.sent) == 4
    assert consumer.started == ids[:1], "it holds two more"
    scene.ask(Settle([Complete(one) for one in consumer.sent[1:]]))
    scene.run()
    ids += scene.put(b"4")
    scene.run()
    assert consumer.started == [ids[0], ids[4]]


def test_two_consumers_take_turns(scene: Scene) -> None:
    consumers = [scene.consumer(), scene.consumer()]
    for payload in numbered(6):
        scene.ask(Enqueue("q", payload))
        scene.turn()
    assert [one.payloads for one in consumers] == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


def test_a_claim_that_waits_takes_its_turn_beside_a_subscription(scene: Scene) -> None:
    consumer = scene.consumer()
    [waiting] = scene.ask(Claim("q", wait="10s"))
    scene.run()
    for payload in numbered(3):
        scene.ask(Enqueue("q", payload))
        scene.turn()
    assert consumer.payloads == [b"0", b"2"]
    assert [one.payload for one in waiting.answer] == [b"1"]


def test_the_end_gives_back_what_was_not_started_in_order_and_uncharged(scene: Scene) -> None:
    scene.put(*numbered(6))
    consumer = scene.consumer(credit=5)
    scene.ask(Settle([Start(consumer.sent[2])]))
    consumer.end()
    scene.run()
    assert scene.counts() == (4, 2)
    assert waiting_claims(scene.broker, "q") == 0
    back = scene.broker.claim("q", limit=9)
    assert [one.payload for one in back] == [b"1", b"3", b"4", b"5"]
    assert [one.attempts for one in back] == [0, 0, 0, 0]


def test_a_start_in_the_same_turn_as_the_end_counts(scene: Scene) -> None:
    scene.put(*numbered(3))
    consumer = scene.consumer()
    [start] = scene.ask(Settle([Start(consumer.sent[1])]))
    consumer.end()
    scene.turn()
    assert start.answer[0].outcome == "started"
    assert scene.counts() == (1, 2)


def test_what_a_call_gets_after_the_end_goes_back_all_of_it(scene: Scene) -> None:
    scene.put(*numbered(3))
    consumer = Consumer(scene, Claim("q"), 10)
    consumer.end()
    scene.run()
    assert scene.counts() == (3, 0)


def test_what_was_sent_as_started_comes_again_under_its_token(scene: Scene) -> None:
    ids = scene.put(*numbered(4))
    lost = scene.consumer(credit=3, token="t")
    lost.end()
    scene.run()
    assert scene.counts() == (3, 1)
    consumer = scene.consumer(token="t")
    assert consumer.payloads == numbered(4)
    assert consumer.started == ids[:1]
    assert consumer.sent[0].claim_id == lost.sent[0].claim_id, "it is the same delivery"
    scene.ask(Settle([Complete(one) for one in consumer.sent]))
    scene.run()
    more = scene.put(b"4")
    scene.run()
    assert consumer.started == [ids[0], *more]


def test_what_has_a_token_is_left_to_the_next_subscription(scene: Scene) -> None:
    scene.put(*numbered(3))
    consumer = Consumer(scene, Claim("q", token="t"), 10)
    consumer.end()
    scene.run()
    assert scene.counts() == (2, 1)


def test_many_messages_go_back_in_several_turns(scene: Scene) -> None:
    scene.put(*numbered(1800))
    consumer = scene.consumer(credit=1800)
    assert scene.counts() == (0, 1800)
    consumer.end()
    scene.run()
    assert scene.counts() == (1799, 1)


def test_what_expired_and_went_to_another_is_not_taken_from_him(scene: Scene) -> None:
    scene.put(*numbered(2))
    consumer = scene.consumer(max_per_stream=2)
    assert (scene.counts(), consumer.started) == ((0, 2), [])
    consumer.pause()
    scene.clock.advance(seconds=31)
    assert len(scene.broker.claim("q", limit=2)) == 2
    consumer.end()
    scene.run()
    assert scene.counts() == (0, 2)


def test_a_consumer_whose_messages_all_expired_is_idle(scene: Scene) -> None:
    scene.put(b"0")
    consumer = scene.consumer()
    consumer.pause()
    scene.clock.advance(seconds=31)
    assert len(scene.broker.claim("q", limit=2)) == 1
    consumer.resume()
    [message_id] = scene.put(b"1")
    scene.run()
    assert consumer.started[1:] == [message_id]


def test_streams_keep_their_order_when_their_messages_go_back(scene: Scene) -> None:
    scene.put(*numbered(4), stream="s")
    consumer = scene.consumer(max_per_stream=3)
    scene.ask(Settle([Fail(consumer.sent[0], retry_in="10s")]))
    consumer.end()
    scene.run()
    assert scene.broker.claim("q", limit=4, max_per_stream=4) == [], "they wait for the first"
    scene.clock.advance(seconds=10)
    assert [one.payload for one in scene.broker.claim("q", limit=4, max_per_stream=4)] == numbered(4)


def test_a_consumer_that_does_not_read_is_sent_nothing(scene: Scene) -> None:
    consumer = scene.consumer()
    consumer.pause()
    scene.put(*numbered(3))
    scene.run()
    consumer.grant(1)
    scene.run()
    assert (consumer.sent, scene.counts()) == ([], (3, 0))
    consumer.resume()
    scene.run()
    assert consumer.payloads == numbered(3)


def test_one_that_pauses_while_its_messages_are_read_has_one_claim(scene: Scene) -> None:
    consumer = scene.consumer(credit=2)
    scene.put(*numbered(2))
    (claim,) = scene.turns.run().over  # its payloads are being read
    scene.put(*numbered(2))
    consumer.pause()
    consumer.resume()
    scene.run()
    assert scene.counts() == (2, 2), "credit for two"
    assert isinstance(claim, Standing)
    consumer.over(claim)
    consumer.grant(2)
    scene.run()
    assert consumer.payloads == [*numbered(2), *numbered(2)]


def test_one_that_pauses_while_its_first_messages_are_read_has_one_claim(scene: Scene) -> None:
    scene.put(*numbered(4))
    consumer = Consumer(scene, Claim("q"), 2)
    scene.turns.run()
    consumer.pause()
    consumer.resume()
    scene.run()
    assert scene.counts() == (2, 2), "credit for two"


def test_large_messages_leave_in_small_pushes(scene: Scene) -> None:
    payload = b"x" * (PUSH_BYTES // 3 + 1)
    scene.put(*[payload] * 9)
    consumer = Consumer(scene, Claim("q"), 10)
    sizes = []
    while scene.turns.has_work:
        before = len(consumer.sent)
        scene.turn()
        sizes.append(len(consumer.sent) - before)
    assert len(consumer.sent) == 9
    assert max(sizes) <= 3


def test_runs_of_a_stream_come_together_and_are_not_started(scene: Scene) -> None:
    scene.put(*numbered(5), stream="s")
    consumer = scene.consumer(max_per_stream=3)
    assert (consumer.payloads, consumer.started) == (numbered(3), [])
    scene.ask(Settle([Complete(one) for one in consumer.sent]))
    scene.run()
    assert consumer.payloads == numbered(5)


def test_several_queues_take_turns(scene: Scene) -> None:
    scene.broker.create_queue("r")
    consumer = scene.consumer(queue=["q", "r"])
    scene.put(b"1")
    scene.put(b"2", queue="r")
    scene.run()
    assert {one.queue for one in consumer.sent} == {"q", "r"}


def test_what_a_throttle_let_through_comes_in_time(scene: Scene) -> None:
    scene.broker.config.set("throttle.k", "1,1")
    scene.put(b"1", b"2", throttle_keys=["k"])
    consumer = scene.consumer()
    assert consumer.payloads == [b"1"]
    due_ms = scene.turns.next_ms()
    assert due_ms is not None
    scene.clock.advance(ms=due_ms - scene.clock.monotonic_ms())
    scene.turn()
    scene.run()
    assert consumer.payloads == [b"1", b"2"]


def test_a_retry_that_becomes_due_comes(scene: Scene) -> None:
    consumer = scene.consumer()
    scene.broker.enqueue("q", b"later", delay="30s")
    scene.run()
    assert consumer.sent == []
    scene.clock.advance(seconds=30)
    scene.run()
    assert consumer.payloads == [b"later"]


def test_a_subscription_waits_without_an_end_and_leaves_nothing_behind(scene: Scene) -> None:
    scene.broker.create_queue("r")
    idle, busy = scene.consumer(), scene.consumer(queue="r", credit=100)
    for _ in range(50):
        scene.put(b"", queue="r")
        scene.run()
        scene.ask(Settle([Complete(busy.sent[-1])]))
        scene.run()
    assert scene.turns.next_ms() is None
    assert not scene.turns.waiting._times
    scene.clock.advance(seconds=10**6)
    scene.put(b"1")
    scene.run()
    assert idle.payloads == [b"1"]


def test_a_queue_that_is_not_there_is_said_at_once(scene: Scene) -> None:
    consumer = scene.consumer(queue="nowhere")
    assert isinstance(consumer.error, errors.QueueNotFound)
    assert consumer.is_over


def test_a_queue_that_is_deleted_ends_it(scene: Scene) -> None:
    consumer = scene.consumer()
    scene.broker.delete_queue("q")
    scene.run()
    assert isinstance(consumer.error, errors.QueueNotFound)
    assert consumer.end() is None


def with_key(scene: Scene, credit: int = 10) -> tuple[Consumer, str]:
    key = scene.broker.keys.create("a", [f"{Right.CONSUME.value}:q"])
    scene.turns = Turns(scene.broker, scene.layers)
    caller = scene.layers.admit(f"Bearer {key.secret}", "here").caller
    consumer = Consumer(scene, Claim("q"), credit, caller)
    scene.run()
    return consumer, key.info.id


def test_a_key_that_is_revoked_ends_it_at_once_and_its_messages_go_back(scene: Scene) -> None:
    scene.put(*numbered(3))
    consumer, key_id = with_key(scene)
    assert len(consumer.sent) == 3
    scene.broker.keys.revoke(key_id)
    scene.run()
    assert isinstance(consumer.error, errors.Unauthenticated)
    assert scene.counts() == (2, 1)
    scene.put(b"more")
    scene.run()
    assert len(consumer.sent) == 3


def test_a_right_that_is_taken_away_ends_it(scene: Scene) -> None:
    consumer, key_id = with_key(scene)
    scene.broker.keys.set_grants(key_id, ["consume:other"])
    scene.put(b"1")
    scene.run()
    assert isinstance(consumer.error, errors.Forbidden)
    assert (consumer.sent, scene.counts()) == ([], (1, 0))


def test_a_lost_transaction_delivers_nothing_and_the_subscription_goes_on(scene: Scene) -> None:
    consumer = scene.consumer()
    scene.store.arm(1, "fail", only=("write",))
    [put] = scene.ask(Enqueue("q", b"1"))
    scene.run()
    assert isinstance(put.error, errors.Unavailable)
    assert (consumer.sent, consumer.credit, consumer.is_over) == ([], 10, False)
    scene.ask(Enqueue("q", b"2"))
    scene.run()
    assert (consumer.payloads, consumer.credit) == ([b"2"], 9)


def test_a_lost_turn_with_its_settle_forgets_no_delivery(scene: Scene) -> None:
    scene.put(*numbered(2))
    consumer = scene.consumer()
    scene.store.arm(1, "fail", only=("write",))
    scene.ask(Settle([Complete(one) for one in consumer.sent]), Enqueue("q", b"2"))
    scene.turn()
    assert scene.counts() == (0, 2)
    scene.put(b"3")
    scene.run()
    assert len(consumer.started) == 1, "it still holds what it was sent"
    consumer.end()
    scene.run()
    assert scene.counts() == (2, 1)


def test_a_subscription_knows_what_it_sent_after_all_memory_was_loaded_anew(scene: Scene) -> None:
    scene.put(*numbered(3))
    consumer = scene.consumer()
    scene.store.arm(1, "fail", only=("write",))
    before = engine_of(scene.broker).memory
    with pytest.raises(errors.Unavailable):
        # A change that is not of some queues, so that all memory is loaded again.
        scene.broker.config.set("key", "value")
    assert engine_of(scene.broker).memory is not before
    scene.put(b"3")
    scene.run()
    assert len(consumer.started) == 1, "it still holds what it was sent"
    consumer.end()
    scene.run()
    assert scene.counts() == (3, 1)


def test_a_server_that_stops_ends_it_and_its_messages_go_back(scene: Scene) -> None:
    scene.put(*numbered(3))
    consumer = scene.consumer()
    scene.broker.interrupt_waits()
    scene.run()
    assert isinstance(consumer.error, errors.ServerStopping)
    assert scene.counts() == (2, 1)


def test_a_broker_that_is_closed_ends_it(scene: Scene) -> None:
    consumer = scene.consumer()
    scene.broker.close()
    scene.run()
    assert isinstance(consumer.error, errors.BrokerClosed)


def test_a_burst_for_one_who_waits_is_one_write(scene: Scene) -> None:
    consumer = scene.consumer()
    before = scene.store.calls["write"]
    scene.ask(EnqueueMany("q", [NewMessage(payload) for payload in numbered(5)]))
    scene.turn()
    assert (consumer.payloads, len(consumer.started)) == (numbered(5), 1)
    assert scene.store.calls["write"] == before + 1


class Written(asyncio.Transport):
    """The server's end of a connection, of which all that is written leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.raw = b""

    def write(self, data: Any) -> None:
        self.raw += bytes(data)

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def test_messages_that_go_back_because_their_consumer_left_at_once_are_not_pushed() -> None:
    """They are claimed in a turn behind the end of what the consumer sends, and another may have them at once."""
    server = Server(faulty_in_memory(), ManualClock(), random.Random(1))
    server.broker.create_queue("q")
    server.broker.enqueue_many("q", [NewMessage(b"1"), NewMessage(b"2")])
    connection, transport = server.door._new_connection(), Written()
    connection.connection_made(transport)
    connection.data_received(b"HELLO 3\r\nFL.CONSUME q CREDIT 5\r\n")
    connection.eof_received()
    server.run_all()
    assert transport.raw.endswith(b":1\r\n"), transport.raw
    stats = server.broker.stats("q")
    assert (stats.ready, stats.leased) == (2, 0)
    connection.connection_lost(None)
    server.broker.close()
