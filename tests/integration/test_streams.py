"""Streams: worked in order, held up by what is leased or waits, let by on purpose only."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, Release, Start, errors
from fairlead.model.delivery import Delivery
from fairlead.model.lane import ROW_BYTES
from tests.integration.world import World


def fill(world: World, *names: str, stream: str | None = "s", **options: Any) -> list[str]:
    """One message per name, in one call; the name is its payload."""
    return world.broker.enqueue_many("q", [NewMessage(name.encode(), stream=stream, **options) for name in names])


def claim(world: World, limit: int = 100, per_stream: int = 1, **options: Any) -> dict[str, Delivery]:
    """What one claim hands out now, by name and in the order it came."""
    return {delivery.payload.decode(): delivery for delivery in world.broker.claim("q", limit=limit, max_per_stream=per_stream, **options)}


def run(world: World, *names: str) -> list[Delivery]:
    """Enqueue these and claim them as one run."""
    fill(world, *names)
    held = claim(world, limit=len(names), per_stream=len(names))
    assert list(held) == list(names)
    return list(held.values())


def settle(world: World, *items: Any) -> list[tuple[str, str]]:
    return [(result.outcome, result.rule) for result in world.broker.settle(items)]


@pytest.fixture(autouse=True)
def _a_minute_after_a_failure(request: pytest.FixtureRequest) -> None:
    if "world" in request.fixturenames:
        request.getfixturevalue("world").broker.update_queue("q", retry_in_stream={"cooldown": "1m"})


# Order


def test_a_stream_goes_out_one_by_one_in_the_order_of_its_enqueues(world: World) -> None:
    fill(world, "a", "b")
    fill(world, "c")
    order = []
    while held := claim(world):
        assert len(held) == 1, "each holds up the next"
        order += list(held)
        settle(world, *(Complete(delivery) for delivery in held.values()))
        world.restart()
    assert order == ["a", "b", "c"]


def test_messages_of_one_call_keep_their_order_and_hold_each_other_up(world: World) -> None:
    fill(world, "a", "b")
    (first,) = claim(world).values()
    assert claim(world) == {}
    assert world.broker.find(first.id).where == "leased"
    assert settle(world, Complete(first)) == [("completed", "")]
    assert list(claim(world)) == ["b"]


def test_order_is_seq_and_not_the_clock(world: World) -> None:
    fill(world, "a")
    world.clock.jump(ms=-3_600_000)
    fill(world, "b")
    world.clock.jump(ms=7_200_000)
    fill(world, "c")
    held = claim(world, per_stream=3)
    assert list(held) == ["a", "b", "c"]
    seqs = [delivery.seq for delivery in held.values()]
    assert seqs == sorted(set(seqs))


def test_a_message_without_a_stream_is_held_up_by_nobody(world: World) -> None:
    fill(world, "a", "b")
    fill(world, "x", "y", stream=None)
    assert list(claim(world)) == ["a", "x", "y"]


def test_streams_do_not_hold_each_other_up(world: World) -> None:
    fill(world, "a1", "a2", stream="a")
    fill(world, "b1", "b2", stream="b")
    held = claim(world)
    assert list(held) == ["a1", "b1"]
    settle(world, Fail(held["a1"]), Complete(held["b1"]))
    assert list(claim(world)) == ["b2"]


def test_streams_of_two_queues_with_one_name_are_two_streams(world: World) -> None:
    world.broker.create_queue("other")
    fill(world, "a", "b")
    world.broker.enqueue("other", b"x", stream="s")
    assert list(claim(world)) == ["a"]
    assert [delivery.payload for delivery in world.broker.claim("other", limit=5)] == [b"x"]


@pytest.mark.parametrize("name", ["s", "a/b:c", "große Straße", "x" * 512, " "])
def test_a_stream_may_have_any_name(world: World, name: str) -> None:
    fill(world, "a", "b", stream=name)
    (held,) = claim(world).values()
    assert held.stream == name
    settle(world, Complete(held))
    world.restart()
    assert list(claim(world)) == ["b"]


@pytest.mark.parametrize("name", ["", "x" * 513, 5, b"s", "\ud800"])
def test_a_name_that_is_none_is_refused(world: World, name: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.enqueue("q", b"", stream=name)
    assert refused.value.field == "stream"
    assert world.counts("q") == (0, 0, 0, 0)


# Runs


def test_a_claim_may_take_a_run_in_order(world: World) -> None:
    fill(world, "a", "b", "c", "d")
    assert list(claim(world, per_stream=3)) == ["a", "b", "c"]
    assert claim(world, per_stream=3) == {}, "the run holds up what is behind it"


def test_runs_of_several_streams_come_each_together(world: World) -> None:
    for stream in "ab":
        fill(world, f"{stream}1", f"{stream}2", f"{stream}3", stream=stream)
    fill(world, "x", stream=None)
    assert sorted(claim(world, per_stream=2)) == ["a1", "a2", "b1", "b2", "x"]


def test_a_limit_cuts_a_run(world: World) -> None:
    fill(world, "a", "b", "c")
    assert list(claim(world, limit=2, per_stream=10)) == ["a", "b"]


def test_settling_a_part_of_a_run_leaves_the_rest_in_order(world: World) -> None:
    a, b, c = run(world, "a", "b", "c")
    fill(world, "d")
    settle(world, Complete(a))
    assert claim(world) == {}, "b and c are still being worked on"
    settle(world, Complete(c), Complete(b))
    assert list(claim(world)) == ["d"]


def test_a_run_stops_before_a_message_that_waits(world: World) -> None:
    a, b, _c = run(world, "a", "b", "c")
    settle(world, Complete(a), Fail(b), Release(_c, keep_order=True))
    fill(world, "d")
    assert claim(world, per_stream=9) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=9)) == ["b", "c", "d"]


def test_a_run_ends_where_its_tokens_end(world: World) -> None:
    world.broker.config.set("throttle:t:burst", 2)
    world.broker.config.set("throttle:t:rate", 1)
    fill(world, "a", "b", "c", throttle_keys=["t"])
    held = claim(world, per_stream=9)
    assert list(held) == ["a", "b"]
    settle(world, *(Complete(delivery) for delivery in held.values()))
    assert claim(world) == {}
    world.clock.advance(seconds=1)
    assert list(claim(world)) == ["c"]


def test_a_run_is_paid_for_out_of_the_share_of_its_key(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"run", fairness_key="a", stream="s") for _ in range(60)])
    world.broker.enqueue_many("q", [NewMessage(b"single", fairness_key="b") for _ in range(60)])
    taken: list[str] = []
    while len(taken) < 60:
        held = world.broker.claim("q", limit=6, max_per_stream=5)
        taken += [delivery.fairness_key for delivery in held]
        world.broker.settle([Complete(delivery) for delivery in held])
    assert 24 <= taken[:60].count("a") <= 36, "a long run must not beat a key of the same weight"


def test_a_run_with_weights_keeps_to_them(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key="a", weight=3, stream=f"s{n % 4}") for n in range(120)])
    world.broker.enqueue_many("q", [NewMessage(b"", fairness_key="b", weight=1, stream=f"t{n % 4}") for n in range(120)])
    taken: list[str] = []
    while len(taken) < 80:
        held = world.broker.claim("q", limit=8, max_per_stream=4)
        taken += [delivery.fairness_key for delivery in held]
        world.broker.settle([Complete(delivery) for delivery in held])
    assert 52 <= taken[:80].count("a") <= 68


# What holds up, and what does not


def test_a_lease_holds_up_the_rest_whoever_asks(world: World) -> None:
    fill(world, "a", "b")
    claim(world, consumer="ann")
    assert claim(world, consumer="ann") == {}
    assert claim(world, consumer="bob") == {}


def test_a_scheduled_retry_holds_up_the_rest_and_time_lets_them_go(world: World) -> None:
    a, b = run(world, "a", "b")
    assert settle(world, Fail(a), Release(b, keep_order=True)) == [("retry", "retry_in_stream.fixed"), ("released", "release.order_kept")]
    world.clock.advance(ms=59_999)
    assert claim(world) == {}
    world.clock.advance(ms=1)
    held = claim(world, per_stream=2)
    assert list(held) == ["a", "b"]
    assert (held["a"].attempts, held["b"].attempts) == (1, 0)


def test_an_immediate_retry_keeps_its_place_in_the_stream(world: World) -> None:
    world.broker.update_queue("q", retry_in_stream="immediate")
    fill(world, "a", "b")
    seqs = []
    for _ in range(3):
        (held,) = claim(world).values()
        assert held.payload == b"a"
        seqs.append(held.seq)
        settle(world, Fail(held))
    assert len(set(seqs)) == 1


def test_a_delayed_message_holds_up_those_behind_it(world: World) -> None:
    world.broker.enqueue("q", b"a", stream="s", delay="10s")
    fill(world, "b")
    assert claim(world) == {}
    world.restart()
    assert claim(world) == {}
    world.clock.advance(seconds=10)
    assert list(claim(world, per_stream=5)) == ["a", "b"]


def test_a_delay_in_the_middle_does_not_hold_up_those_before_it(world: World) -> None:
    fill(world, "a")
    world.broker.enqueue("q", b"b", stream="s", delay="10s")
    fill(world, "c")
    held = claim(world, per_stream=5)
    assert list(held) == ["a"]
    settle(world, Complete(held["a"]))
    assert claim(world, per_stream=5) == {}
    world.clock.advance(seconds=10)
    assert list(claim(world, per_stream=5)) == ["b", "c"]


@pytest.mark.parametrize("verb", ["drop", "done", "bury"])
@pytest.mark.parametrize("state", ["waiting", "leased", "held"])
def test_a_head_that_is_taken_away_unblocks(world: World, verb: str, state: str) -> None:
    a, b = run(world, "a", "b")
    settle(world, Release(b, keep_order=True))
    if state == "waiting":
        settle(world, Fail(a))
    if state == "held":
        world.broker.hold("q", [a.id])
    assert claim(world) == {}
    assert getattr(world.broker, verb)("q", [a.id]).changed == (a.id,)
    assert list(claim(world)) == ["b"]
    assert claim(world) == {}


def test_a_dead_message_unblocks_at_once(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Release(b, keep_order=True), Fail(a, dead=True))
    assert list(claim(world)) == ["b"]


def test_the_ceiling_unblocks(world: World) -> None:
    world.broker.update_queue("q", max_attempts=2)
    fill(world, "a", "b")
    for _ in range(2):
        (held,) = claim(world).values()
        settle(world, Fail(held))
        world.clock.advance(seconds=60)
    assert list(claim(world)) == ["b"]


def test_a_time_to_live_that_ends_unblocks(world: World) -> None:
    (a,) = fill(world, "a", ttl="30s")
    fill(world, "b")
    world.broker.hold("q", [a])
    assert claim(world) == {}
    world.clock.advance(seconds=30)
    assert list(claim(world)) == ["b"]
    assert world.counts("q") == (0, 0, 1, 0)


def test_a_time_to_live_ends_behind_the_front_too(world: World) -> None:
    fill(world, "a")
    fill(world, "b", ttl="30s")
    fill(world, "c")
    (held,) = claim(world).values()
    settle(world, Extend(held, "1h"))
    world.clock.advance(seconds=30)
    assert world.counts("q") == (1, 0, 1, 0)
    settle(world, Complete(held))
    assert list(claim(world)) == ["c"]


def test_a_time_to_live_that_ends_can_make_dead_letters_out_of_a_stream(world: World) -> None:
    world.broker.update_queue("q", expired_to_dead=True)
    fill(world, "a", "b", ttl="30s")
    fill(world, "c")
    world.clock.advance(seconds=30)
    assert world.counts("q") == (1, 0, 0, 2)
    assert list(claim(world)) == ["c"]


# Release is the switch

MATRIX: list[tuple[str, Callable[[World, Delivery, Delivery], Any], bool]] = [
    ("failed and scheduled, the lease of M2 not cleared", lambda world, m1, m2: settle(world, Fail(m1)), False),
    ("failed and scheduled, M2 given back in order", lambda world, m1, m2: settle(world, Fail(m1), Release(m2, keep_order=True)), False),
    ("failed and scheduled, M2 released", lambda world, m1, m2: settle(world, Fail(m1), Release(m2)), True),
    ("failed and not scheduled (held), M2 released", lambda world, m1, m2: (world.broker.hold("q", [m1.id]), settle(world, Release(m2))), True),
    ("in the hands of a consumer", lambda world, m1, m2: settle(world, Release(m2)), False),
    ("completed", lambda world, m1, m2: settle(world, Complete(m1), Release(m2)), True),
]


@pytest.mark.parametrize("restart", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize(("m1_then_m2", "claimable"), [row[1:] for row in MATRIX], ids=[row[0] for row in MATRIX])
def test_the_decision_matrix_of_the_seed(
    world: World, m1_then_m2: Callable[[World, Delivery, Delivery], Any], claimable: bool, restart: bool
) -> None:
    m1, m2 = run(world, "m1", "m2")
    m1_then_m2(world, m1, m2)
    if restart:
        world.restart()
    assert list(claim(world, consumer="another")) == (["m2"] if claimable else [])


def test_use_case_1_independent_events_go_on(world: World) -> None:
    created, address, email = run(world, "created", "address", "email")
    results = settle(world, Fail(created, reason="validation_failure"), Release(address), Release(email))
    assert results == [("retry", "retry_in_stream.fixed"), ("released", "release.let_by"), ("released", "release.let_by")]
    held = claim(world, per_stream=5)
    assert list(held) == ["address", "email"]
    settle(world, *(Complete(delivery) for delivery in held.values()))
    assert world.counts("q") == (0, 1, 0, 0)
    world.clock.advance(seconds=60)
    assert list(claim(world)) == ["created"]


def test_use_case_2_one_goes_on_and_one_stays_behind(world: World) -> None:
    send, log, preferences = run(world, "send", "log", "preferences")
    settle(world, Fail(send, reason="transport_unavailable"), Release(log, keep_order=True), Release(preferences))
    held = claim(world, per_stream=5)
    assert list(held) == ["preferences"]
    settle(world, Complete(held["preferences"]))
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["send", "log"]


def test_use_case_3_a_poison_message_is_set_aside_and_the_stream_goes_on(world: World) -> None:
    fill(world, "large", "m2", "m3", "m4")
    for _ in range(3):
        settle(world, *(Fail(delivery) for delivery in claim(world).values()))
        world.clock.advance(seconds=60)
    (large,) = claim(world).values()
    world.broker.bury("q", [large.id], reason="poison_message", error="exceeds memory")
    assert list(claim(world, per_stream=5)) == ["m2", "m3", "m4"]
    assert world.broker.peek("q.dlq")[0].failures[-1].error == "exceeds memory"


def test_the_order_of_items_in_a_settle_does_not_matter_to_the_switch(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    assert settle(world, Release(m3), Fail(m1), Release(m2)) == [
        ("released", "release.let_by"), ("retry", "retry_in_stream.fixed"), ("released", "release.let_by"),
    ]  # fmt: skip
    assert list(claim(world, per_stream=5)) == ["m2", "m3"]


def test_a_release_in_a_later_call_lets_by_as_well(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1))
    assert settle(world, Release(m2)) == [("released", "release.let_by")]
    assert list(claim(world)) == ["m2"]


def test_a_release_with_nothing_to_pass_keeps_order_and_says_so(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    assert settle(world, Release(m1), Release(m2)) == [("released", "release.order_kept")] * 2
    held = claim(world, per_stream=5)
    assert list(held) == ["m1", "m2"]
    settle(world, Release(held["m2"], keep_order=True), Fail(held["m1"]))
    assert claim(world) == {}, "a release before the failure was no switch"


def test_a_release_outside_of_streams_says_nothing_about_order(world: World) -> None:
    fill(world, "x", stream=None)
    assert settle(world, Release(claim(world)["x"])) == [("released", "")]


def test_who_was_let_by_stays_so_over_failures_and_restarts(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1, retry_in="1h"), Release(m2))
    for _ in range(3):
        world.restart()
        held = claim(world)
        assert list(held) == ["m2"]
        settle(world, Fail(held["m2"], retry_in="1s"))
        assert claim(world) == {}
        world.clock.advance(seconds=1)


def test_who_comes_later_is_not_let_by(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1), Release(m2))
    fill(world, "m3")
    held = claim(world, per_stream=5)
    assert list(held) == ["m2"]
    settle(world, Complete(held["m2"]))
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["m1", "m3"]


def test_a_blocker_that_is_due_does_not_wait_for_who_was_let_by(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1, retry_in="1s"), Release(m2), Release(m3))
    assert list(claim(world)) == ["m2"]
    assert claim(world) == {}, "m3 may pass m1, not m2"
    world.clock.advance(seconds=1)
    assert list(claim(world, per_stream=5)) == ["m1"], "the stream was told to go on without it, so it goes on without the stream"
    assert claim(world) == {}


def test_when_the_blocker_is_due_it_goes_first_again(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1, retry_in="1s"), Release(m2), Release(m3))
    world.clock.advance(seconds=1)
    assert list(claim(world, per_stream=5)) == ["m1", "m2", "m3"]


def test_strict_makes_every_release_keep_order(world: World) -> None:
    world.broker.update_queue("q", ordering="strict")
    m1, m2 = run(world, "m1", "m2")
    assert settle(world, Fail(m1), Release(m2)) == [("retry", "retry_in_stream.fixed"), ("released", "release.order_kept")]
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["m1", "m2"]


def test_none_ignores_streams(world: World) -> None:
    world.broker.update_queue("q", ordering="none")
    fill(world, "a", "b", "c")
    held = claim(world)
    assert list(held) == ["a", "b", "c"]
    assert {delivery.stream for delivery in held.values()} == {"s"}, "as data it is still there"
    settle(world, Fail(held["a"], retry_in="1h"), Release(held["b"]))
    assert list(claim(world)) == ["b"]


def test_whether_streams_order_at_all_changes_only_on_an_empty_queue(world: World) -> None:
    fill(world, "a", "b")
    world.broker.update_queue("q", ordering="strict")
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.update_queue("q", ordering="none")
    assert refused.value.field == "ordering"
    world.broker.purge("q")
    world.broker.update_queue("q", ordering="none")
    fill(world, "c", "d")
    assert list(claim(world)) == ["c", "d"]
    with pytest.raises(errors.InvalidRequest):
        world.broker.update_queue("q", ordering="release")


def test_at_most_a_thousand_single_messages_are_let_by(memory_world: World) -> None:
    world = memory_world
    names = [f"m{n}" for n in range(1003)]
    first, *others = run(world, *names)
    results = settle(world, Fail(first), *(Release(delivery) for delivery in others))
    assert [rule for _, rule in results[1:]] == ["release.let_by"] * 1000 + ["release.let_by_limit"] * 2
    world.restart()
    assert list(claim(world, limit=2000, per_stream=2000)) == names[1:1001]


def test_a_seat_among_those_let_by_is_free_again_when_one_is_done(memory_world: World) -> None:
    world = memory_world
    first, *others = run(world, *(f"m{n}" for n in range(1002)))
    settle(world, Fail(first), *(Release(delivery) for delivery in others[:1000]))
    (done,) = claim(world, limit=1).values()
    settle(world, Complete(done))
    assert settle(world, Release(others[1000])) == [("released", "release.let_by")]


@pytest.mark.parametrize("state", ["waiting", "held", "delayed"])
def test_an_operator_lets_all_pass_the_one_that_waits(world: World, state: str) -> None:
    if state == "delayed":
        world.broker.enqueue("q", b"m1", stream="s", delay="1m")
        fill(world, "m2", "m3")
    else:
        m1, m2, m3 = run(world, "m1", "m2", "m3")
        settle(world, Release(m2, keep_order=True), Release(m3, keep_order=True), *([Fail(m1)] if state == "waiting" else []))
        if state == "held":
            world.broker.hold("q", [m1.id])
    assert claim(world) == {}
    assert world.broker.release_stream("q", "s") is True
    world.restart()
    fill(world, "m4")
    held = claim(world, per_stream=5)
    assert list(held) == ["m2", "m3", "m4"], "also those that come later"
    settle(world, *(Complete(delivery) for delivery in held.values()))
    if state != "held":
        world.clock.advance(seconds=60)
        assert list(claim(world)) == ["m1"]


def test_an_operators_release_is_over_with_the_message_it_was_about(world: World) -> None:
    m1, m2 = run(world, "m1", "m2")
    settle(world, Fail(m1), Release(m2, keep_order=True))
    world.broker.release_stream("q", "s")
    world.clock.advance(seconds=60)
    settle(world, Complete(claim(world)["m1"]))
    settle(world, Fail(claim(world)["m2"]))
    fill(world, "m3")
    assert claim(world) == {}, "order is back for the next blocker"


def test_a_run_past_the_released_blocker_stops_at_the_next_one(world: World) -> None:
    m1, m2, m3, m4 = run(world, "m1", "m2", "m3", "m4")
    settle(world, Fail(m1), Fail(m2), Release(m3), Release(m4, keep_order=True))
    world.broker.release_stream("q", "s")
    assert list(claim(world, per_stream=5)) == ["m3"], "m4 may pass m1, but nobody said that it may pass m2"


@pytest.mark.parametrize("restart", [False, True], ids=["", "with a restart in between"])
def test_releasing_a_stream_again_passes_the_next_message_that_waits(world: World, restart: bool) -> None:
    m1, m2, m3, m4, m5 = run(world, "m1", "m2", "m3", "m4", "m5")
    settle(world, *(Fail(blocker) for blocker in (m1, m2, m3)), *(Release(delivery, keep_order=True) for delivery in (m4, m5)))
    for _ in range(2):
        assert world.broker.release_stream("q", "s") is True
        assert claim(world) == {}, "another one waits"
        if restart:
            world.restart()
    assert world.broker.release_stream("q", "s") is True
    fill(world, "m6")
    assert list(claim(world, per_stream=5)) == ["m4", "m5", "m6"]


def test_releasing_a_stream_again_takes_nothing_back_from_the_message_that_is_passed(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1), Fail(m2), Release(m3, keep_order=True))
    world.broker.hold("q", [m1.id])
    for _ in range(2):
        world.broker.release_stream("q", "s")
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["m2", "m3"], "the first release was about m1, and it still counts"


def test_releasing_a_stream_that_goes_on_changes_nothing(world: World) -> None:
    m1, m2, m3 = run(world, "m1", "m2", "m3")
    settle(world, Fail(m1), Release(m2, keep_order=True), Release(m3, keep_order=True))
    world.broker.release_stream("q", "s")
    before = world.store.last_commit
    assert world.broker.release_stream("q", "s") is True
    assert world.store.last_commit == before
    assert list(claim(world)) == ["m2"]
    assert world.broker.release_stream("q", "s") is True
    assert claim(world) == {}, "nobody passes work in progress"


def test_a_release_that_is_over_lets_no_run_pass(world: World) -> None:
    m1, m2, m3, m4 = run(world, "m1", "m2", "m3", "m4")
    settle(world, Fail(m1), *(Release(delivery, keep_order=True) for delivery in (m2, m3, m4)))
    world.broker.release_stream("q", "s")
    world.clock.advance(seconds=60)
    held = claim(world, per_stream=5)
    settle(world, Complete(held["m1"]), Fail(held["m2"]), Release(held["m3"]), Release(held["m4"], keep_order=True))
    assert list(claim(world, per_stream=5)) == ["m3"]


def test_there_is_nothing_to_release_where_nothing_waits(world: World) -> None:
    assert world.broker.release_stream("q", "s") is False
    fill(world, "a", "b")
    assert world.broker.release_stream("q", "s") is False
    claim(world)
    assert world.broker.release_stream("q", "s") is False, "nobody passes work in progress"
    with pytest.raises(errors.QueueNotFound):
        world.broker.release_stream("none", "s")


# Expiry, goodbye, shutdown


def test_expiry_in_a_run_fails_only_the_first_unsettled(world: World) -> None:
    a, _b, _c = run(world, "a", "b", "c")
    settle(world, Complete(a))
    world.clock.advance(seconds=30)
    assert world.counts("q") == (1, 1, 0, 0)
    assert [world.broker.find(delivery.id).attempts for delivery in (_b, _c)] == [1, 0]
    assert claim(world) == {}, "expiry keeps order"
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["b", "c"]


def test_expiry_of_several_runs_fails_the_first_of_each(world: World) -> None:
    for stream in "ab":
        fill(world, f"{stream}1", f"{stream}2", stream=stream)
    held = claim(world, per_stream=2)
    world.clock.advance(seconds=30)
    assert {name: world.broker.find(delivery.id).attempts for name, delivery in held.items()} == {"a1": 1, "a2": 0, "b1": 1, "b2": 0}


def test_an_unstarted_run_goes_back_whole(world: World) -> None:
    fill(world, "a", "b")
    claim(world, per_stream=2, started=False)
    world.clock.advance(seconds=30)
    held = claim(world, per_stream=2)
    assert {name: delivery.attempts for name, delivery in held.items()} == {"a": 0, "b": 0}


def test_of_an_unstarted_run_the_started_one_fails(world: World) -> None:
    fill(world, "a", "b")
    held = claim(world, per_stream=2, started=False)
    settle(world, Start(held["a"]))
    world.clock.advance(seconds=30)
    assert [world.broker.find(delivery.id).attempts for delivery in held.values()] == [1, 0]


def test_when_the_head_of_a_run_was_extended_the_rest_goes_back_without_a_failure(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Extend(a, "1h"))
    world.clock.advance(seconds=30)
    assert world.broker.find(b.id).attempts == 0
    assert claim(world) == {}
    settle(world, Complete(a))
    assert list(claim(world)) == ["b"]


def test_a_goodbye_keeps_order(world: World) -> None:
    fill(world, "a", "b", "c")
    held = claim(world, per_stream=3, consumer="ann")
    settle(world, Fail(held["a"]))
    assert world.broker.goodbye("ann") == 2
    assert claim(world) == {}, "nobody said: go on without it"
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["a", "b", "c"]


def test_leases_of_a_run_survive_a_restart(world: World) -> None:
    a, b = run(world, "a", "b")
    fill(world, "c")
    world.restart()
    assert claim(world) == {}
    assert settle(world, Complete(a), Complete(b)) == [("completed", "")] * 2
    assert list(claim(world)) == ["c"]


def test_no_claim_gets_a_message_while_an_earlier_one_of_its_stream_is_out(world: World) -> None:
    """Random traffic; after every step no lease is younger than another claim's lease on an earlier message."""
    chance = random.Random(11)
    held: list[Delivery] = []
    for step in range(300):
        match chance.randrange(5):
            case 0:
                fill(world, f"m{step}", stream=chance.choice("ab"))
            case 1:
                held += world.broker.claim("q", limit=chance.randint(1, 4), max_per_stream=chance.randint(1, 3))
            case 2 | 3 if held:
                delivery = held.pop(chance.randrange(len(held)))
                world.broker.settle([chance.choice([Complete, Fail, Release])(delivery)])
            case 4:
                world.clock.advance(seconds=chance.choice([1, 31, 61]))
        claims: dict[bytes, list[int]] = {}
        for lease in sorted(world.broker._core.leases.all(), key=lambda lease: lease.row):
            claims.setdefault(lease.row[ROW_BYTES:], []).append(lease.claim_id)
        assert all(order == sorted(order, reverse=True) for order in claims.values())


def test_two_claims_of_one_message_each_never_hold_the_same_stream(world: World) -> None:
    for stream in "abc":
        fill(world, *(f"{stream}{n}" for n in range(5)), stream=stream)
    held: dict[str, Delivery] = {}
    chance = random.Random(3)
    while world.counts("q") != (0, 0, 0, 0):
        for delivery in world.broker.claim("q", limit=chance.randint(1, 2)):
            assert delivery.stream not in held
            held[delivery.stream or ""] = delivery
        delivery = held.pop(chance.choice(sorted(held)))
        world.broker.settle([chance.choice([Complete(delivery), Release(delivery), Fail(delivery, retry_in="0s")])])


# Keys, turns and throttles


def test_a_stream_keeps_the_key_of_the_message_that_opened_it(world: World) -> None:
    fill(world, "a", fairness_key="ann")
    fill(world, "b", fairness_key="bob")
    held = claim(world, per_stream=5)
    assert [delivery.fairness_key for delivery in held.values()] == ["ann", "ann"]
    settle(world, *(Complete(delivery) for delivery in held.values()))
    fill(world, "c", fairness_key="bob")
    assert claim(world)["c"].fairness_key == "bob", "it was empty in between"


def test_messages_of_one_call_are_bound_to_the_key_of_the_first(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"a", fairness_key="ann", stream="s"), NewMessage(b"b", fairness_key="bob", stream="s")])
    assert [delivery.fairness_key for delivery in claim(world, per_stream=5).values()] == ["ann", "ann"]


def test_a_message_that_comes_back_joins_the_key_its_stream_has_now(world: World) -> None:
    fill(world, "a", fairness_key="ann")
    settle(world, Fail(claim(world)["a"], dead=True))
    fill(world, "b", fairness_key="bob")
    world.broker.redrive("q")
    world.restart()
    held = claim(world, per_stream=5)
    assert {name: delivery.fairness_key for name, delivery in held.items()} == {"b": "bob", "a": "bob"}


def test_a_blocked_stream_leaves_its_key_to_the_others(world: World) -> None:
    fill(world, "a1", "a2", stream="a", fairness_key="k")
    settle(world, Fail(claim(world)["a1"]))
    fill(world, "b1", "b2", stream="b", fairness_key="k")
    fill(world, "c1", "c2", stream=None, fairness_key="other")
    assert sorted(claim(world)) == ["b1", "c1", "c2"]


def test_a_key_whose_streams_are_all_blocked_hoards_nothing(world: World) -> None:
    for stream in "ab":
        world.broker.enqueue_many("q", [NewMessage(b"blocked", fairness_key="k", stream=stream) for _ in range(20)])
    world.broker.settle([Fail(delivery) for delivery in world.broker.claim("q", limit=9)])
    assert [key.key for key in world.broker.stats("q", keys=True).keys] == []
    world.broker.enqueue_many("q", [NewMessage(b"free", fairness_key="other") for _ in range(60)])
    for _ in range(20):
        assert [delivery.fairness_key for delivery in world.broker.claim("q", limit=1)] == ["other"]
    world.clock.advance(seconds=60)
    taken = []
    for _ in range(12):
        (delivery,) = world.broker.claim("q", limit=1)
        world.broker.settle([Complete(delivery)])
        taken.append(delivery.fairness_key)
    assert taken.count("k") == 6, "its share from now on, nothing saved up"


def test_a_throttled_head_does_not_hold_up_another_stream_of_its_key(world: World) -> None:
    world.broker.config.set("throttle:slow:rate", 1)
    world.broker.config.set("throttle:slow:burst", 1)
    fill(world, "a1", "a2", stream="a", throttle_keys=["slow"])
    fill(world, "b1", "b2", stream="b")
    assert list(claim(world)) == ["a1", "b1"]
    fill(world, "c1", "c2", stream="c", throttle_keys=["slow"])
    fill(world, "d1", stream="d")
    assert list(claim(world)) == ["d1"]
    world.clock.advance(seconds=1)
    assert list(claim(world)) == ["c1"]


def test_a_throttled_head_holds_up_its_own_stream(world: World) -> None:
    world.broker.config.set("throttle:slow:rate", 0)
    fill(world, "a1", stream="a", throttle_keys=["slow"])
    fill(world, "a2", stream="a")
    world.broker.config.set("throttle:slow:burst", 1)
    assert len(claim(world)) <= 1
    assert claim(world) == {}


# Redrive, purge, delete, drain


def test_a_redriven_message_joins_the_tail_of_its_stream(world: World) -> None:
    fill(world, "a", "b")
    settle(world, Fail(claim(world)["a"], dead=True))
    assert world.broker.redrive("q").moved == 1
    fill(world, "c")
    order = []
    while held := claim(world):
        order += list(held)
        settle(world, *(Complete(delivery) for delivery in held.values()))
    assert order == ["b", "a", "c"]


def test_a_redriven_message_keeps_its_new_order_over_failures_and_restarts(world: World) -> None:
    fill(world, "a", "b")
    settle(world, Fail(claim(world)["a"], dead=True))
    world.broker.redrive("q", filter=DeadFilter(reason="unknown"))
    world.restart()
    settle(world, Complete(claim(world)["b"]))
    settle(world, Fail(claim(world)["a"]))
    fill(world, "c")
    world.restart()
    assert claim(world) == {}
    world.clock.advance(seconds=60)
    assert list(claim(world, per_stream=5)) == ["a", "c"]


def test_dead_letters_of_a_stream_are_in_no_order_but_that_of_their_deaths(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Fail(b, dead=True))
    world.clock.advance(ms=1)
    settle(world, Fail(a, dead=True))
    held = world.broker.claim("q.dlq", limit=5)
    assert [(delivery.payload, delivery.stream) for delivery in held] == [(b"b", "s"), (b"a", "s")]


def test_quarantined_messages_join_their_stream_when_they_are_brought_back(world: World) -> None:
    world.broker.quarantine("q", [NewMessage(b"a", stream="s"), NewMessage(b"b", stream="s")])
    fill(world, "c")
    world.broker.redrive("q")
    assert list(claim(world, per_stream=5)) == ["c", "a", "b"]


def test_purge_takes_streams_whole_and_leaves_what_is_leased(world: World) -> None:
    fill(world, "a", "b", "c")
    fill(world, "x1", "x2", stream="x")
    held = claim(world, limit=1)
    settle(world, Fail(claim(world)["x1"]))
    assert world.broker.purge("q") == 4
    assert world.counts("q") == (0, 0, 1, 0)
    fill(world, "d")
    assert claim(world) == {}, "a is still being worked on"
    settle(world, Complete(held["a"]))
    assert list(claim(world)) == ["d"]


def test_delete_takes_streams_whole(world: World) -> None:
    fill(world, "a", "b", "c")
    fill(world, "x1", "x2", stream="x")
    claim(world)
    world.broker.delete_queue("q")
    world.restart()
    world.broker.create_queue("q")
    fill(world, "d")
    assert list(claim(world)) == ["d"]


def test_drain_takes_a_stream_in_order(world: World) -> None:
    fill(world, "a", "b", "c")
    assert [info.payload for info in world.broker.drain("q")] == [b"a", b"b", b"c"]
    assert world.counts("q") == (0, 0, 0, 0)
    fill(world, "d")
    assert list(claim(world)) == ["d"]


def test_drain_takes_what_is_ready_behind_a_blocker_too(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Fail(a), Release(b, keep_order=True))
    fill(world, "c")
    assert [info.payload for info in world.broker.drain("q")] == [b"b", b"c"]
    assert world.counts("q") == (0, 1, 0, 0)
    world.clock.advance(seconds=60)
    assert list(claim(world)) == ["a"]


def test_a_dedup_key_in_a_stream_adds_nothing_to_it(world: World) -> None:
    first = world.broker.enqueue("q", b"a", stream="s", dedup_key="d")
    assert world.broker.enqueue("q", b"again", stream="s", dedup_key="d") == first
    assert list(claim(world, per_stream=5)) == ["a"]


# Restart in every situation

SITUATIONS: dict[str, tuple[Callable[[World], Any], list[str]]] = {
    "ready": (lambda world: fill(world, "a", "b"), ["a", "b"]),
    "a delayed head": (lambda world: (world.broker.enqueue("q", b"a", stream="s", delay="1m"), fill(world, "b")), []),
    "a head that is leased": (lambda world: (fill(world, "a", "b"), claim(world)), []),
    "a run that is leased": (lambda world: (run(world, "a", "b"), fill(world, "c")), []),
    "a head that waits": (lambda world: (fill(world, "a", "b"), settle(world, Fail(claim(world)["a"]))), []),
    "a head that is held": (lambda world: world.broker.hold("q", fill(world, "a", "b")[:1]), []),
    "a middle that is held": (lambda world: world.broker.hold("q", fill(world, "a", "b", "c")[1:2]), ["a"]),
    "a head let go": (lambda world: [world.broker.hold("q", ids := fill(world, "a", "b")[:1]), world.broker.unhold("q", ids)], ["a", "b"]),
    "a head that is gone": (lambda world: (fill(world, "a", "b"), settle(world, Complete(claim(world)["a"]))), ["b"]),
    "a head that is dead": (lambda world: world.broker.bury("q", fill(world, "a", "b")[:1]), ["b"]),
    "a middle that is dropped": (lambda world: world.broker.drop("q", fill(world, "a", "b", "c")[1:2]), ["a", "c"]),
    "one let by": (
        lambda world: (lambda a, b, c: settle(world, Fail(a), Release(b, keep_order=True), Release(c)))(*run(world, "a", "b", "c")),
        ["c"],
    ),
    "all let by": (
        lambda world: (fill(world, "a", "b", "c"), settle(world, Fail(claim(world)["a"])), world.broker.release_stream("q", "s")),
        ["b", "c"],
    ),
    "a head that was retried": (lambda world: (fill(world, "a", "b"), settle(world, Fail(claim(world)["a"], retry_in="0s"))), ["a", "b"]),
    "a head that came back": (
        lambda world: (fill(world, "a", "b"), settle(world, Fail(claim(world)["a"], dead=True)), world.broker.redrive("q")),
        ["b", "a"],
    ),
    "a head that was released": (lambda world: (fill(world, "a", "b"), settle(world, Release(claim(world)["a"]))), ["a", "b"]),
}


@pytest.mark.parametrize("restart", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize(("arrange", "expected"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_every_situation_is_the_same_after_a_restart(world: World, arrange: Callable[[World], Any], expected: list[str], restart: bool) -> None:
    arrange(world)
    counts = world.counts("q")
    if restart:
        world.restart()
    assert world.counts("q") == counts
    assert list(claim(world, per_stream=9)) == expected


def test_what_is_blocked_is_explained_with_the_blocker(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Fail(a), Release(b, keep_order=True))
    (reason, *_) = world.broker.explain(b.id).reasons
    assert (reason.code, reason.until_ms) == ("behind_in_stream", world.clock.now_ms() + 60_000)
    assert a.id in reason.text


def test_a_peek_shows_what_is_behind_the_front_too_page_by_page(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(5)])
    world.broker.enqueue("q", b"free")
    assert sorted(message.payload for message in world.broker.peek("q")) == [b"0", b"1", b"2", b"3", b"4", b"free"]
    seen: list[bytes] = []
    after: str | None = None
    while page := world.broker.peek("q", limit=2, after=after):
        seen += [message.payload for message in page]
        after = page[-1].id
    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4", b"free"]
    assert [payload for payload in seen if payload != b"free"] == [b"0", b"1", b"2", b"3", b"4"]
