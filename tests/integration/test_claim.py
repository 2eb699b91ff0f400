"""Handing out: leases, tokens, several queues, started or not."""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail, Release, Start, errors
from fairlead.model.settle import DeliveryRef
from tests.integration.world import World


def test_a_delivery_carries_all_that_was_enqueued(world: World) -> None:
    message_id = world.broker.enqueue(
        "q", b"body", headers={"h": "1"}, fairness_key="k", weight=7, throttle_keys=["b", "a", "b"]
    )
    delivery = world.claim_one("q", consumer="ann")
    now = world.clock.now_ms()
    assert (delivery.id, delivery.queue, delivery.payload, delivery.headers) == (
        message_id,
        "q",
        b"body",
        {"h": "1"},
    )
    assert (delivery.fairness_key, delivery.weight, delivery.throttle_keys, delivery.stream) == (
        "k",
        7,
        ("a", "b"),
        None,
    )
    assert (delivery.attempts, delivery.deliveries, delivery.progress, delivery.carry, delivery.failures) == (
        0,
        1,
        0,
        b"",
        (),
    )
    assert (delivery.enqueued_at, delivery.lease_until, delivery.source, delivery.dead_since) == (
        now,
        now + 30_000,
        None,
        None,
    )


def test_messages_read_back_from_the_store_are_the_same_as_those_still_in_memory(world: World) -> None:
    world.broker.enqueue("q", b"body" * 1000, headers={"h": "ü"}, fairness_key="k")
    world.restart()
    delivery = world.claim_one("q")
    assert (delivery.payload, delivery.headers, delivery.fairness_key) == (b"body" * 1000, {"h": "ü"}, "k")


def test_a_leased_message_is_not_handed_out_twice(world: World) -> None:
    world.fill("q", count=3)
    first, second = world.broker.claim("q", limit=2), world.broker.claim("q", limit=5)
    assert (len(first), len(second)) == (2, 1)
    assert not {delivery.id for delivery in first} & {delivery.id for delivery in second}
    assert world.broker.claim("q", limit=5) == []


def test_an_empty_queue_gives_an_empty_answer(world: World) -> None:
    assert world.broker.claim("q", limit=10) == []


def test_each_claim_has_a_lease_token_of_its_own_also_after_a_restart(world: World) -> None:
    tokens = set()
    for _ in range(3):
        for _ in range(3):
            world.fill("q", count=1)
            delivery = world.claim_one("q")
            tokens.add(delivery.lease)
            world.broker.settle([Complete(delivery)])
        world.restart()
    assert len(tokens) == 9


def test_the_same_claim_token_returns_what_is_still_leased_under_it(world: World) -> None:
    world.fill("q", count=5)
    first = world.broker.claim("q", limit=3, token="t")
    again = world.broker.claim("q", limit=3, token="t")
    assert [(delivery.id, delivery.lease) for delivery in again] == [
        (delivery.id, delivery.lease) for delivery in first
    ]
    world.broker.settle([Complete(first[0])])
    assert [delivery.id for delivery in world.broker.claim("q", limit=3, token="t")] == [
        delivery.id for delivery in first[1:]
    ]
    assert world.counts("q") == (2, 0, 2, 0)


def test_a_claim_token_whose_messages_are_all_settled_claims_anew(world: World) -> None:
    world.fill("q", count=2)
    first = world.claim_one("q", token="t")
    world.broker.settle([Complete(first)])
    second = world.claim_one("q", token="t")
    assert second.id != first.id
    assert second.lease != first.lease


def test_a_claim_token_survives_a_restart(world: World) -> None:
    world.fill("q", count=3)
    first = world.broker.claim("q", limit=2, token="t")
    world.restart()
    again = world.broker.claim("q", limit=2, token="t")
    assert [(delivery.id, delivery.lease) for delivery in again] == [
        (delivery.id, delivery.lease) for delivery in first
    ]


def test_a_claim_token_over_several_queues_returns_all_of_it(world: World) -> None:
    world.broker.create_queue("r")
    ids = {*world.fill("q", count=1), *world.fill("r", count=1)}
    assert {delivery.id for delivery in world.broker.claim(["q", "r"], limit=5, token="t")} == ids
    assert {delivery.id for delivery in world.broker.claim(["q", "r"], limit=5, token="t")} == ids


def test_a_claim_token_of_a_closed_broker_gets_the_closed_error(world: World) -> None:
    world.fill("q", count=1)
    world.claim_one("q", token="t")
    world.broker.close()
    with pytest.raises(errors.BrokerClosed):
        world.broker.claim("q", token="t")


def test_one_claim_takes_from_several_queues_and_says_from_which(world: World) -> None:
    world.broker.create_queue("r")
    world.fill("q", count=2)
    world.fill("r", count=2)
    assert sorted(delivery.queue for delivery in world.broker.claim(["q", "r", "q"], limit=10)) == [
        "q",
        "q",
        "r",
        "r",
    ]


def test_no_queue_of_several_is_starved_by_the_first(world: World) -> None:
    world.broker.create_queue("r")
    world.fill("q", count=20)
    world.fill("r", count=20)
    got = [world.claim_one(["q", "r"]).queue for _ in range(10)]
    assert got.count("q") == got.count("r") == 5


def test_one_unknown_queue_of_several_fails_the_claim_and_leases_nothing(world: World) -> None:
    world.fill("q", count=1)
    with pytest.raises(errors.QueueNotFound):
        world.broker.claim(["q", "nowhere"], limit=5)
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_limit_holds_over_all_queues_together(world: World) -> None:
    world.broker.create_queue("r")
    world.fill("q", count=3)
    world.fill("r", count=3)
    assert len(world.broker.claim(["q", "r"], limit=4)) == 4
    assert world.counts("q")[2] + world.counts("r")[2] == 4


def test_expiry_of_a_started_delivery_is_a_failure_and_of_an_unstarted_one_a_release(world: World) -> None:
    world.fill("q", count=2)
    started = world.claim_one("q", consumer="ann")
    unstarted = world.claim_one("q", started=False)
    world.clock.advance(ms=30_000)
    back = {delivery.id: delivery for delivery in world.broker.claim("q", limit=5)}
    assert (back[started.id].attempts, back[started.id].deliveries) == (1, 2)
    assert (back[unstarted.id].attempts, back[unstarted.id].deliveries) == (0, 2)
    (failure,) = back[started.id].failures
    assert (failure.reason, failure.consumer, failure.rule) == (4, "ann", "retry.immediate")
    assert "30s" in failure.error
    assert back[unstarted.id].failures == ()


def test_an_unstarted_delivery_comes_back_to_its_old_place_and_a_failed_one_to_the_tail(world: World) -> None:
    ids = world.fill("q", count=4)
    world.claim_one("q")
    world.broker.claim("q", limit=2, started=False)
    world.clock.advance(ms=30_000)
    assert [delivery.id for delivery in world.broker.claim("q", limit=5)] == [*ids[1:], ids[0]]


def test_start_makes_the_expiry_a_failure(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q", started=False)
    (result,) = world.broker.settle([Start(delivery)])
    assert (result.outcome, result.lease_until) == ("started", delivery.lease_until)
    world.clock.advance(ms=30_000)
    assert world.claim_one("q").attempts == 1


def test_start_survives_a_restart(world: World) -> None:
    world.fill("q", count=2)
    started, unstarted = world.broker.claim("q", limit=2, started=False)
    world.broker.settle([Start(started)])
    world.restart(away_ms=30_000)
    attempts = {delivery.id: delivery.attempts for delivery in world.broker.claim("q", limit=2)}
    assert attempts == {started.id: 1, unstarted.id: 0}


def test_an_extension_moves_the_end_of_a_lease(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.clock.advance(ms=20_000)
    (result,) = world.broker.settle([Extend(delivery, "60s")])
    assert (result.outcome, result.lease_until) == ("extended", world.clock.now_ms() + 60_000)
    world.clock.advance(ms=59_999)
    assert world.counts("q") == (0, 0, 1, 0)
    world.clock.advance(ms=1)
    assert world.counts("q") == (1, 0, 0, 0)


def test_an_extension_may_make_a_lease_shorter(world: World) -> None:
    world.fill("q", count=2)
    shorter, _ = world.broker.claim("q", limit=2)
    world.broker.settle([Extend(shorter, "1s")])
    world.clock.advance(ms=1000)
    assert world.claim_one("q").id == shorter.id
    assert world.counts("q") == (0, 0, 2, 0)


def test_an_extension_without_a_duration_is_the_queues_own(world: World) -> None:
    world.broker.update_queue("q", visibility_timeout="7s")
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.clock.advance(ms=5000)
    assert world.broker.settle([Extend(delivery)])[0].lease_until == world.clock.now_ms() + 7000


def test_an_extension_is_kept_over_a_restart(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.broker.settle([Extend(delivery, "90s")])
    world.restart(away_ms=60_000)
    assert world.broker.settle([Complete(delivery)])[0].outcome == "completed"


def test_progress_and_carry_go_on_to_the_next_delivery_and_only_grow(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    world.broker.settle([Extend(delivery, progress=1, carry=b"first"), Extend(delivery, progress=4)])
    world.broker.settle([Fail(delivery, progress=2)])
    again = world.claim_one("q")
    assert (int(again.progress), again.carry) == (1 | 2 | 4 | 32768, b"first")
    world.broker.settle([Extend(again, progress=1, carry=b"")])
    world.broker.settle([Release(again)])
    world.restart()
    last = world.claim_one("q")
    assert (int(last.progress), last.carry, last.deliveries) == (1 | 2 | 4 | 32768, b"", 3)


def test_a_delivery_can_be_settled_by_its_two_strings(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    assert world.broker.settle([Complete(DeliveryRef(delivery.id, delivery.lease))])[0].outcome == "completed"


def test_goodbye_releases_what_the_consumer_holds_and_nothing_else(world: World) -> None:
    world.broker.create_queue("r")
    ids = world.fill("q", count=4)
    world.fill("r", count=1)
    world.broker.claim(["q", "r"], limit=3, consumer="ann")
    others = world.broker.claim("q", limit=5, consumer="bob")
    assert world.broker.goodbye("ann") == 3
    assert world.broker.goodbye("ann") == 0
    back = world.broker.claim("q", limit=5)
    assert [delivery.id for delivery in back] == [
        message_id for message_id in ids if message_id not in {delivery.id for delivery in others}
    ]
    assert {(delivery.attempts, delivery.deliveries) for delivery in back} == {(0, 2)}
    assert all(result.ok for result in world.broker.settle([Complete(delivery) for delivery in others]))


def test_goodbye_works_after_a_restart(world: World) -> None:
    world.fill("q", count=2)
    world.broker.claim("q", limit=2, consumer="ann")
    world.restart()
    assert world.broker.goodbye("ann") == 2
    assert world.counts("q") == (2, 0, 0, 0)


def test_an_ack_of_a_message_that_is_not_leased_says_where_it_is(world: World) -> None:
    world.broker.create_queue("r")
    world.broker.update_queue("q", retain_completed="1h")
    dead, done, ready, elsewhere = [world.broker.enqueue("q", b"") for _ in range(3)] + [
        world.broker.enqueue("r", b"")
    ]
    (first,), (second,) = world.broker.claim("q"), world.broker.claim("q")
    world.broker.settle([Fail(first, dead=True), Complete(second)])
    told = {name: world.broker.ack("q", name) for name in (dead, done, ready, elsewhere)}
    assert {result.outcome for result in told.values()} == {"not_found"}
    assert [result.error for result in told.values()] == [
        "it is dead, in queue 'q.dlq'; retry or redrive brings it back",
        "it is completed",
        "it waits for a consumer or for its time",
        "",
    ]
    assert world.broker.nack("q", dead).error == told[dead].error
    assert world.broker.ack("q.dlq", dead).error == told[dead].error


def test_ack_and_nack_act_on_the_current_lease_of_that_queue(world: World) -> None:
    world.broker.create_queue("r")
    first, second = world.fill("q", count=2)
    assert world.broker.ack("q", first).outcome == "not_found", "it is not leased"
    world.broker.claim("q", limit=2, consumer="ann")
    assert world.broker.ack("r", first).outcome == "not_found"
    assert world.broker.ack("q", first).outcome == "completed"
    assert world.broker.ack("q", first).outcome == "not_found"
    assert world.broker.nack("q", second, "broke", reason="dependency_failure").outcome == "retry"
    again = world.claim_one("q")
    assert [(failure.error, failure.reason, failure.consumer) for failure in again.failures] == [
        ("broke", 6, "ann")
    ]
