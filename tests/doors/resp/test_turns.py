"""Turns without sockets: what joins one transaction, which claims wait, and what a lost transaction leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead import Broker, Complete, DeliveryRef, NewMessage, errors
from fairlead.middleware.stack import Layers
from fairlead.model.access import Right
from fairlead.request import LOCAL, Caller, Request
from fairlead.server.turn import Call, Turns
from fairlead.testing import ManualClock, laws
from fairlead.testing.engine import engine_of, waiting_claims
from fairlead.testing.faulty import faulty_in_memory
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigSet
from fairlead.verbs.consumers import ConsumersClaim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.inspect import Peek, Stats
from fairlead.verbs.settle import Settle
from tests.integration.world import wait_until


class Scene:
    """A broker on a store that counts and fails, and the turns of one door."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = faulty_in_memory()
        self.broker = Broker(self.store, clock=self.clock)
        self.broker.create_queue("q", visibility_timeout="30s")
        self.woken = 0
        self.turns = Turns(self.broker, Layers(self.broker), self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def ask(self, *requests: Request[Any]) -> list[Call]:
        calls = [Call(request, LOCAL) for request in requests]
        for call in calls:
            self.turns.add(call)
        return calls

    @property
    def writes(self) -> int:
        return self.store.calls["write"]


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    if not engine_of(scene.broker).closed:
        assert laws(scene.broker) == []
        scene.broker.close()


def claim(wait: str | None = "10s", queue: Any = "q", **options: Any) -> Claim:
    return Claim(queue, wait=wait, **options)


def test_what_arrived_is_one_write_and_each_request_is_refused_alone(scene: Scene) -> None:
    before = scene.writes
    calls = scene.ask(
        Enqueue("q", b"1"),
        Enqueue("nowhere", b"2"),
        Enqueue("q", b"3"),
        claim(limit=5),
        Settle([Complete("x")]),  # type: ignore[arg-type]
    )
    done = scene.turns.run()
    assert done.over == calls
    assert scene.writes == before + 1
    assert isinstance(calls[1].error, errors.QueueNotFound)
    assert [one.payload for one in calls[3].answer] == [b"1", b"3"]
    assert [one.outcome for one in calls[4].answer] == ["invalid"]
    assert [call.is_durable for call in calls] == [True, False, True, False, True]


def test_durable_answers_wait_for_a_commit_that_is_confirmed(scene: Scene) -> None:
    scene.ask(Enqueue("q", b"1"))
    done = scene.turns.run()
    assert done.commit is not None
    assert scene.store.calls["sync"] == 1, "that of create_queue"
    engine_of(scene.broker).confirm(done.commit)
    scene.ask(claim())
    assert scene.turns.run().commit is None, "a claim that a power cut undoes is delivered again"


def test_a_claim_waits_and_an_enqueue_and_its_delivery_are_one_write(scene: Scene) -> None:
    [waiting] = scene.ask(claim())
    assert scene.turns.run().over == []
    before = scene.writes
    [put] = scene.ask(Enqueue("q", b"1"))
    assert scene.turns.run().over == [waiting, put]
    assert scene.writes == before + 1
    assert [one.payload for one in waiting.answer] == [b"1"]
    assert not scene.turns.has_work, "nobody is woken for a message that was handed over"


def test_claims_get_messages_in_the_order_of_their_arrival(scene: Scene) -> None:
    waiting = scene.ask(*[claim(limit=2) for _ in range(3)])
    scene.turns.run()
    [put] = scene.ask(EnqueueMany("q", [NewMessage(b"%d" % n) for n in range(3)]))
    assert scene.turns.run().over == [*waiting[:2], put]
    assert [[one.payload for one in call.answer] for call in waiting[:2]] == [[b"0", b"1"], [b"2"]]


def test_commits_of_others_wake_a_claim_that_waits(scene: Scene) -> None:
    [waiting] = scene.ask(claim())
    scene.turns.run()
    scene.broker.enqueue("q", b"from elsewhere")
    assert scene.woken == 1
    assert scene.turns.has_work
    assert scene.turns.run().over == [waiting]
    assert [one.payload for one in waiting.answer] == [b"from elsewhere"]


def test_a_message_that_becomes_due_wakes_a_claim_that_waits(scene: Scene) -> None:
    [waiting] = scene.ask(claim("1h"))
    scene.turns.run()
    scene.broker.enqueue("q", b"later", delay="30s")
    scene.clock.advance(seconds=29)
    assert scene.turns.run().over == []
    scene.clock.advance(seconds=1)
    assert scene.turns.run().over == [waiting]


def test_a_token_that_comes_is_looked_for_in_time(scene: Scene) -> None:
    scene.broker.config.set("throttle.k", "1,1")
    for _ in range(2):
        scene.broker.enqueue("q", b"", throttle_keys=["k"])
    assert len(scene.broker.claim("q", limit=2)) == 1
    [waiting] = scene.ask(claim("1h"))
    scene.turns.run()
    due_ms = scene.turns.waiting.next_ms()
    assert due_ms is not None
    assert due_ms <= scene.clock.monotonic_ms() + 1000
    scene.clock.advance(ms=due_ms - scene.clock.monotonic_ms())
    assert scene.turns.run().over == [waiting]
    assert len(waiting.answer) == 1


def test_a_claim_whose_time_is_over_is_answered_with_nothing(scene: Scene) -> None:
    [first, second] = scene.ask(claim("10s"), claim("20s"))
    scene.turns.run()
    assert scene.turns.waiting.next_ms() == scene.clock.monotonic_ms() + 10_000
    scene.clock.advance(seconds=10)
    assert scene.turns.run().over == [first]
    assert (first.answer, first.error) == ([], None)
    assert scene.turns.waiting.next_ms() == scene.clock.monotonic_ms() + 10_000
    scene.turns.drop(second)
    assert scene.turns.waiting.next_ms() is None


def test_a_claim_of_a_caller_who_left_takes_nothing_and_wakes_the_next(scene: Scene) -> None:
    [gone, stays] = scene.ask(claim(), claim())
    scene.turns.run()
    scene.broker.enqueue("q", b"1")
    scene.turns.drop(gone)
    assert scene.turns.run().over == [stays]
    assert len(stays.answer) == 1


def test_a_claim_behind_a_thread_that_waits_longer_leaves_it_the_message(scene: Scene) -> None:
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.extend(scene.broker.claim("q", wait="1h")))
    thread.start()
    wait_until(lambda: waiting_claims(scene.broker, "q") == 1)
    [waiting] = scene.ask(claim())
    scene.turns.run()
    [put] = scene.ask(Enqueue("q", b"1"))
    assert scene.turns.run().over == [put]
    thread.join(10)
    assert len(taken) == 1
    scene.turns.drop(waiting)


def test_a_queue_that_is_made_anew_is_waited_for(scene: Scene) -> None:
    [waiting] = scene.ask(claim("1h"))
    scene.turns.run()
    scene.broker.delete_queue("q")
    assert [call.error for call in scene.turns.run().over] == [waiting.error]
    assert isinstance(waiting.error, errors.QueueNotFound)


def test_a_turn_that_is_full_leaves_the_rest_for_the_next(scene: Scene) -> None:
    calls = scene.ask(*[Enqueue("q", b"x" * (1 << 20)) for _ in range(10)])
    first = scene.turns.run()
    assert 0 < len(first.over) < len(calls)
    over = list(first.over)
    while scene.turns.has_work:
        over += scene.turns.run().over
    assert over == calls


def test_a_lost_transaction_refuses_all_who_joined_and_waiting_claims_go_on(scene: Scene) -> None:
    [waiting] = scene.ask(claim())
    scene.turns.run()
    scene.store.arm(1, "fail", only=("write",))
    calls = scene.ask(Enqueue("q", b"1"), Enqueue("nowhere", b"2"), claim(None), claim())
    assert scene.turns.run().over == calls
    assert all(isinstance(call.error, errors.Unavailable) for call in calls)
    assert all(call.answer is None for call in calls)
    assert scene.turns.run().over == []
    [put] = scene.ask(Enqueue("q", b"3"))
    assert scene.turns.run().over == [waiting, put]
    assert [one.payload for one in waiting.answer] == [b"3"]


@pytest.mark.parametrize("looks_before", [True, False])
def test_a_claim_that_outlived_a_lost_transaction_is_over_once(scene: Scene, looks_before: bool) -> None:
    [waiting] = scene.ask(claim("10s"))
    scene.turns.run()
    scene.store.arm(1, "fail", only=("write",))
    scene.ask(Enqueue("q", b"1"))
    scene.turns.run()
    assert waiting.waits is not None
    if looks_before:
        assert scene.turns.run().over == []
    scene.clock.advance(seconds=10)
    assert [*scene.turns.run().over, *scene.turns.run().over] == [waiting]
    assert (waiting.answer, waiting.error) == ([], None)


def test_a_claim_that_loses_its_own_transaction_is_told(scene: Scene) -> None:
    [waiting] = scene.ask(claim())
    scene.turns.run()
    scene.broker.enqueue("q", b"1")
    scene.store.arm(1, "fail", only=("write",))
    assert scene.turns.run().over == [waiting]
    assert isinstance(waiting.error, errors.Unavailable)
    assert len(scene.broker.claim("q")) == 1


def test_a_message_of_a_lost_transaction_goes_to_the_next_who_waits(scene: Scene) -> None:
    """The first was woken for it, took it, and is told that nothing was written: the next must not sleep beside it."""
    first, second = scene.ask(claim(), claim())
    scene.turns.run()
    scene.broker.enqueue("q", b"1")
    scene.store.arm(1, "fail", only=("write",))
    assert scene.turns.run().over == [first]
    assert isinstance(first.error, errors.Unavailable)
    assert scene.turns.run().over == [second]
    assert [one.payload for one in second.answer] == [b"1"]


def test_an_error_nobody_foresaw_ends_the_turn_and_says_nothing_of_itself(scene: Scene) -> None:
    layers = Layers(scene.broker)
    scene.turns = Turns(scene.broker, layers)
    scene.turns._layers._engine = _broken  # type: ignore[assignment]  # a defect inside a layer
    calls = scene.ask(Enqueue("q", b"secret"), Enqueue("q", b"secret"))
    assert scene.turns.run().over == calls[:1]
    assert isinstance(calls[0].error, errors.Unavailable)
    assert "secret" not in str(calls[0].error)
    assert scene.turns.run().over == calls[1:], "alone"
    assert isinstance(calls[1].error, ZeroDivisionError)


def _broken(request: Any, caller: Any) -> Any:
    raise ZeroDivisionError("secret")


def test_a_broker_that_is_closed_says_so_to_everybody(scene: Scene) -> None:
    waiting = scene.ask(claim(), claim())
    scene.turns.run()
    scene.broker.close()
    calls = scene.ask(Enqueue("q", b"1"), claim())
    over = scene.turns.run().over
    assert {*over} == {*calls, *waiting}
    assert all(isinstance(call.error, errors.BrokerClosed) for call in over)


def test_a_server_that_stops_ends_waits_with_nothing(scene: Scene) -> None:
    waiting = scene.ask(claim(), claim())
    scene.turns.run()
    scene.broker.interrupt_waits()
    assert scene.turns.run().over == waiting
    assert [call.answer for call in waiting] == [[], []]
    [late] = scene.ask(claim())
    assert scene.turns.run().over == [late]


@pytest.mark.parametrize(
    ("request_", "joins"),
    [
        (Enqueue("q", b""), True),
        (claim(), True),
        (claim(limit=5000), False),
        (Stats("q"), False),
        (Peek("q"), False),
        (ConfigSet("k", "v"), False),
        (EnqueueMany("q", [NewMessage(b"")] * 2000), False),
    ],
)
def test_what_takes_long_or_is_audited_joins_no_turn(scene: Scene, request_: Any, joins: bool) -> None:
    assert scene.turns.joins(request_) is joins


def test_requests_about_which_a_script_is_asked_join_no_turn(scene: Scene) -> None:
    scene.broker.create_queue("scripted", on_enqueue="function on_enqueue(msg) return {} end")
    assert not scene.turns.joins(Enqueue("q", b""))
    assert scene.turns.joins(claim())


def test_a_claim_that_runs_alone_waits_without_a_thread(scene: Scene) -> None:
    generation = scene.broker.consumers.register("c", "q").generation
    call = Call(ConsumersClaim("c", "q", generation, 1, wait="10s"), LOCAL)
    call.joins = False
    assert not scene.turns.run_alone(call)
    assert scene.turns.wait_after(call)
    assert scene.turns.run().again == [call], "something may have come since it looked"
    assert not scene.turns.run_alone(call)
    assert scene.turns.wait_after(call)
    assert scene.turns.run().again == []
    scene.broker.enqueue("q", b"1")
    assert scene.turns.run().again == [call]
    assert scene.turns.run_alone(call)
    scene.turns.drop(call)
    assert call.answer.count == 1


def test_a_claim_that_runs_alone_is_over_when_its_time_is(scene: Scene) -> None:
    call = Call(claim(limit=5000), LOCAL)
    call.joins = False
    assert not scene.turns.run_alone(call)
    assert scene.turns.wait_after(call)
    assert scene.turns.run().again == [call]
    scene.clock.advance(seconds=10)
    assert scene.turns.run().over == []
    assert not scene.turns.run_alone(call)
    assert not scene.turns.wait_after(call)
    assert call.answer == []


def test_a_key_that_is_revoked_ends_the_wait_of_its_claim(scene: Scene) -> None:
    key = scene.broker.keys.create("a", [f"{Right.CONSUME.value}:q"])
    layers = Layers(scene.broker, keys=True)
    scene.turns = Turns(scene.broker, layers)
    call = Call(claim(), layers.admit(f"Bearer {key.secret}", "here").caller)
    scene.turns.add(call)
    assert scene.turns.run().over == []
    scene.broker.keys.revoke(key.info.id)
    scene.broker.enqueue("q", b"1")
    assert scene.turns.run().over == [call]
    assert isinstance(call.error, errors.Unauthenticated)
    assert len(scene.broker.claim("q")) == 1


def test_a_lease_of_a_stranger_is_lost_like_anywhere(scene: Scene) -> None:
    message_id = scene.broker.enqueue("q", b"1")
    [call] = scene.ask(Settle([Complete(DeliveryRef(message_id, "1"))]))
    scene.turns.run()
    assert [one.outcome for one in call.answer] == ["lost_lease"]


def test_a_repeated_claim_whose_leases_are_over_waits_for_nothing_and_keeps_nobody_waiting(
    scene: Scene,
) -> None:
    caller = numbered(scene, 1)
    scene.broker.enqueue("q", b"1")
    [first] = ask_as(scene, caller, claim())
    assert scene.turns.run().over == [first]
    scene.broker.settle([Complete(first.answer[0])])
    [repeat] = ask_as(scene, caller, claim())
    [other] = scene.ask(claim())
    assert scene.turns.run().over == [repeat]
    assert (repeat.answer, repeat.error) == ([], None)
    scene.broker.enqueue("q", b"2")
    assert scene.turns.run().over == [other]
    alone = Call(claim(limit=5000), caller)
    alone.joins = False
    assert not scene.turns.run_alone(alone)
    assert not scene.turns.wait_after(alone)


def test_all_copies_of_a_claim_get_the_same_messages(scene: Scene) -> None:
    """Nobody knows over which connection the client still listens."""
    by_token = claim(token="t")
    for caller, request in ((numbered(scene, 1), claim()), (LOCAL, by_token)):
        copies = ask_as(scene, caller, request, request)
        [other] = scene.ask(claim())
        assert scene.turns.run().over == []
        puts = scene.ask(Enqueue("q", b"1"), Enqueue("q", b"2"))
        over = run_all(scene)
        assert {*over} == {*puts, *copies, other}
        assert [one.lease for one in copies[0].answer] == [one.lease for one in copies[1].answer]
        assert len(other.answer) == 1
        assert scene.turns.waiting.count == 0


def test_a_copy_that_comes_when_there_are_messages_answers_the_one_that_waits(scene: Scene) -> None:
    caller = numbered(scene, 1)
    [first] = ask_as(scene, caller, claim("10s"))
    assert scene.turns.run().over == []
    [second, put] = [*ask_as(scene, caller, claim()), *scene.ask(Enqueue("q", b"1"))]
    scene.turns.run()
    # Also if the time of the other copy is over at that moment.
    scene.clock.advance(seconds=10)
    run_all(scene)
    assert put.answer
    assert len(first.answer) == len(second.answer) == 1


def run_all(scene: Scene) -> list[Call]:
    over: list[Call] = []
    while scene.turns.has_work or not over:
        over += scene.turns.run().over
    return over


def numbered(scene: Scene, number: int) -> Caller:
    scene.broker.open_session("s")
    return LOCAL._replace(session="s", number=number)


def ask_as(scene: Scene, caller: Caller, *requests: Request[Any]) -> list[Call]:
    calls = [Call(request, caller) for request in requests]
    for call in calls:
        scene.turns.add(call)
    return calls
