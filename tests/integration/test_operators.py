"""What an operator does to messages, wherever they are: one table of verbs and situations, and nothing runs
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Extend, Fail, FailureReason, NewMessage, Release, errors
from fairlead.model.delivery import Delivery
from fairlead.testing.sizes import size
from fairlead.testing.steps import ignore
from tests.integration.world import World

HOUR = 3_600_000
UNKNOWN = "018bcfe5-6800-7000-8000-00000000001a"
VERBS = ["retry", "drop", "done", "bury", "hold", "unhold", "fail"]


def act(world: World, verb: str, ids: list[str] | None = None, **options: Any) -> Any:
    return getattr(world.broker, verb)("q", ids, **options)


def make(world: World, situation: str) -> tuple[str, Delivery | None]:
    """One message in that situation; its delivery where it is leased."""
    broker = world.broker
    stream = "s" if situation.endswith("in a stream") else None
    if situation == "delayed":
        return broker.enqueue("q", b"m", delay="1h"), None
    if situation == "behind in a stream":
        broker.hold("q", [broker.enqueue("q", b"first", stream="s")])
        return broker.enqueue("q", b"m", stream="s"), None
    message_id = broker.enqueue("q", b"m", stream=stream)
    match situation.split(" ")[0]:
        case "waiting":
            broker.settle([Fail(world.claim_one("q"), retry_in="1h", error="first")])
        case "leased":
            return message_id, world.claim_one("q", consumer="ann")
        case "held":
            broker.hold("q", [message_id])
        case "dead":
            broker.settle([Fail(world.claim_one("q"), dead=True, error="first")])
        case "leased-dead":
            broker.settle([Fail(world.claim_one("q"), dead=True, error="first")])
            return message_id, world.claim_one("q.dlq", consumer="ann")
    return message_id, None


SITUATIONS = [
    "ready",
    "ready in a stream",
    "behind in a stream",
    "delayed",
    "waiting",
    "waiting in a stream",
    "leased",
    "leased in a stream",
    "held",
    "held in a stream",
    "dead",
    "dead in a stream",
    "leased-dead",
]

#: where a message is after the verb; None is gone, a sentence is why nothing was done
NOT_DEAD = "neither dead nor waiting after a failure"
AFTER: dict[str, dict[str, str | None]] = {
    "retry": {
        "waiting": "ready",
        "waiting in a stream": "ready",
        "dead": "ready",
        "dead in a stream": "ready",
        "leased-dead": "leased in the dead-letter queue",
        **dict.fromkeys(
            [
                "ready",
                "ready in a stream",
                "behind in a stream",
                "delayed",
                "leased",
                "leased in a stream",
                "held",
                "held in a stream",
            ],
            NOT_DEAD,
        ),
    },
    "drop": dict.fromkeys(SITUATIONS, None),
    "done": {
        **dict.fromkeys(SITUATIONS, None),
        **dict.fromkeys(["dead", "dead in a stream", "leased-dead"], "dead; use drop, or retry first"),
    },
    "bury": {
        **dict.fromkeys(SITUATIONS, "dead"),
        **dict.fromkeys(["dead", "dead in a stream", "leased-dead"], "already dead"),
    },
    "hold": {
        **dict.fromkeys(SITUATIONS, "held"),
        **dict.fromkeys(["dead", "dead in a stream", "leased-dead"], "dead; it is not delivered anyway"),
        **dict.fromkeys(["held", "held in a stream"], "already held"),
    },
    "unhold": {
        **dict.fromkeys(SITUATIONS, "not held"),
        **dict.fromkeys(["held", "held in a stream"], "ready"),
    },
    "fail": {
        **dict.fromkeys(SITUATIONS, "not leased"),
        **dict.fromkeys(["leased", "leased in a stream"], "waiting"),
    },
}
PLACES = ("ready", "waiting", "held", "dead", None)


def place_of(world: World, message_id: str) -> str | None:
    try:
        info = world.broker.find(message_id)
    except errors.MessageNotFound:
        return None
    if info.queue == "q.dlq":
        return "dead"
    return "held" if info.where == "waiting" and info.due_at is None else info.where


@pytest.mark.parametrize("restart", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_in_each_situation(memory_world: World, verb: str, situation: str, restart: bool) -> None:
    world = memory_world
    world.broker.update_queue("q", retry={"cooldown": "1h"}, retry_in_stream={"cooldown": "1h"})
    message_id, delivery = make(world, situation)
    if restart:
        world.restart()
    before, commit = place_of(world, message_id), world.store.last_commit
    expected = AFTER[verb][situation]
    # A single id that cannot be retried is an error, so a second one keeps it a skipped message.
    several = verb == "retry" and expected not in PLACES
    result = act(world, verb, [message_id, UNKNOWN] if several else [message_id])
    if several:
        assert result.skipped[1] == (UNKNOWN, "not found in this queue")
        result = replace(result, skipped=result.skipped[:1])
    if expected not in PLACES:
        assert (result.changed, result.skipped) == ((), ((message_id, expected),))
        assert (place_of(world, message_id), world.store.last_commit) == (before, commit)
        return
    assert (result.changed, result.skipped, result.more) == ((message_id,), (), False)
    assert place_of(world, message_id) == expected
    if delivery is not None:
        (late,) = world.broker.settle([Complete(delivery)])
        assert late.outcome == ("lost_lease" if expected else "not_found"), "its lease was revoked"
        assert place_of(world, message_id) == expected
    # Nothing is left behind that would run it a second time.
    runs = [] if expected != "ready" else ["now"]
    for _ in range(3):
        world.clock.advance(ms=2 * HOUR)
        claimed = [found for found in world.broker.claim("q", limit=9) if found.id == message_id]
        runs += ["later"] * len(claimed)
        world.broker.settle([Complete(found) for found in claimed])
    assert runs == {"ready": ["now", "later"], "waiting": ["later"]}.get(str(expected), [])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_verb_by_filter_does_what_it_does_by_id(world: World, verb: str, situation: str) -> None:
    world.broker.update_queue("q", retry={"cooldown": "1h"}, retry_in_stream={"cooldown": "1h"})
    message_id, _ = make(world, situation)
    world.broker.enqueue("q", b"bystander", headers={"who": "else"}, fairness_key="b")
    result = act(world, verb, filter=DeadFilter(key="default"))
    expected = AFTER[verb][situation]
    assert (message_id in result.changed) == (expected in PLACES)
    if expected in PLACES:
        assert place_of(world, message_id) == expected
    (bystander,) = world.broker.peek("q", key="b")
    assert bystander.payload == b"bystander"


# One by one


def test_a_retry_is_now_and_from_zero_and_the_old_due_time_passes_without_effect(world: World) -> None:
    world.fill("q", count=1)
    for _ in range(3):
        world.broker.settle([Fail(world.claim_one("q"), retry_in="0s")])
    world.broker.settle([Fail(delivery := world.claim_one("q"), retry_in="1m")])
    assert act(world, "retry", [delivery.id]).changed == (delivery.id,)
    again = world.claim_one("q")
    assert (again.attempts, again.deliveries, len(again.failures)) == (0, 5, 4)
    world.broker.settle([Extend(again, "1h")])
    world.clock.advance(seconds=60)
    assert world.counts("q") == (0, 0, 1, 0), "the original due time is over and nothing happened"
    assert world.broker.settle([Complete(again)])[0].outcome == "completed"
    world.clock.advance(ms=HOUR)
    assert world.counts("q") == (0, 0, 0, 0)


@pytest.mark.parametrize("dry_run", [False, True], ids=["", "dry run"])
@pytest.mark.parametrize(
    ("situation", "found"),
    [
        ("ready", "ready"),
        ("delayed", "waiting"),
        ("held", "held"),
        ("leased", "leased"),
        ("leased-dead", "leased in the dead-letter queue"),
    ],
)
def test_a_single_id_that_cannot_be_retried_is_an_error(
    world: World, situation: str, found: str, dry_run: bool
) -> None:
    message_id, _ = make(world, situation)
    with pytest.raises(errors.InvalidRequest) as refused:
        act(world, "retry", [message_id], dry_run=dry_run)
    assert (refused.value.field, refused.value.got) == (f"message {message_id}", found)


def test_retrying_a_single_id_that_is_not_in_the_queue_is_an_error(world: World) -> None:
    world.broker.create_queue("other")
    for message_id in (UNKNOWN, world.broker.enqueue("other", b"m")):
        with pytest.raises(errors.MessageNotFound):
            act(world, "retry", [message_id])


@pytest.mark.parametrize("situation", ["ready", "leased", "waiting in a stream", "held", "held in a stream"])
def test_a_message_is_held_with_a_reason_where_it_is(world: World, situation: str) -> None:
    world.broker.update_queue("q", retry={"cooldown": "1h"}, retry_in_stream={"cooldown": "1h"})
    message_id, _ = make(world, situation)
    before = world.broker.find(message_id)
    result = world.broker.hold("q", [message_id], error="parses for ever", reason="poison_message")
    assert (result.changed, place_of(world, message_id)) == ((message_id,), "held")
    world.restart()
    held = world.broker.find(message_id)
    assert (held.reason, held.rule, held.attempts) == (
        FailureReason.POISON_MESSAGE,
        "operator",
        before.attempts,
    )
    assert held.failures[-1].error == "parses for ever"
    assert "held by an operator as poison_message" in world.broker.explain(message_id).reasons[0].text
    assert world.counts("q") == (0, 1, 0, 0)
    assert act(world, "unhold", [message_id]).changed == (message_id,)
    assert world.claim_one("q").id == message_id


def failed_and(world: World, situation: str) -> str:
    """A message that failed three times, and is now where the situation says."""
    stream = "s" if situation.endswith("in a stream") else None
    message_id = world.broker.enqueue("q", b"m", stream=stream)
    for _ in range(2):
        world.broker.settle([Fail(world.claim_one("q"), retry_in="0s", error="no")])
    wait = "1h" if situation.startswith("waiting") else "0s"
    world.broker.settle([Fail(world.claim_one("q"), retry_in=wait, error="no", progress=4)])
    if situation.startswith("held"):
        world.broker.hold("q", [message_id])
    if situation.startswith("leased"):
        world.claim_one("q")
    return message_id


LIVE = [
    "ready",
    "ready in a stream",
    "waiting",
    "waiting in a stream",
    "held",
    "leased",
    "leased in a stream",
]


@pytest.mark.parametrize("situation", LIVE)
@pytest.mark.parametrize("by_filter", [False, True], ids=["by id", "by filter"])
def test_a_reset_sets_the_count_to_0_and_changes_nothing_else(
    world: World, situation: str, by_filter: bool
) -> None:
    message_id = failed_and(world, situation)
    before = world.broker.find(message_id)
    assert before.attempts == 3
    chosen = {"filter": DeadFilter(min_attempts=3)} if by_filter else {"ids": [message_id]}
    assert world.broker.reset("q", dry_run=True, **chosen).changed == (message_id,)  # type: ignore[arg-type]
    assert world.broker.find(message_id).attempts == 3
    assert world.broker.reset("q", **chosen).changed == (message_id,)  # type: ignore[arg-type]
    world.restart()
    assert world.broker.find(message_id) == replace(before, attempts=0)
    assert world.broker.reset("q", [message_id]).skipped == ((message_id, "its count is 0"),)


def test_a_message_that_was_reset_gets_all_its_attempts_again(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "immediate", "attempts": 4})
    message_id = failed_and(world, "ready")
    world.broker.reset("q", [message_id])
    outcomes = [world.broker.settle([Fail(world.claim_one("q"))])[0].outcome for _ in range(4)]
    assert outcomes == ["retry", "retry", "retry", "dead"]


def test_a_dead_letter_is_not_reset(world: World) -> None:
    message_id, _ = make(world, "dead")
    assert act(world, "reset", [message_id]).skipped == ((message_id, "dead; use retry or redrive"),)


def test_a_retry_that_keeps_the_count_ends_the_wait_only(world: World) -> None:
    message_id = failed_and(world, "waiting")
    assert world.broker.retry("q", [message_id], keep_count=True).changed == (message_id,)
    assert world.claim_one("q").attempts == 3
    dead, _ = make(world, "dead")
    with pytest.raises(errors.InvalidRequest):
        world.broker.retry("q", [dead], keep_count=True)
    assert place_of(world, dead) == "dead"


def test_a_retried_dead_letter_keeps_its_record_and_its_id(world: World) -> None:
    message_id, _ = make(world, "dead")
    act(world, "retry", [message_id])
    again = world.claim_one("q")
    assert (again.id, again.attempts, [failure.error for failure in again.failures]) == (
        message_id,
        0,
        ["first"],
    )


@pytest.mark.parametrize("how", ["drop", "done", "drain", "purge", "delete", "ttl"])
def test_nothing_resurrects_what_was_taken_away_while_a_retry_was_due(world: World, how: str) -> None:
    message_id = world.broker.enqueue("q", b"m", ttl="30s" if how == "ttl" else None)
    world.broker.settle([Fail(world.claim_one("q"), retry_in="1m")])
    if how in ("drop", "done"):
        act(world, how, [message_id])
    elif how == "drain":
        act(world, "retry", [message_id])
        world.broker.drain("q")
    elif how == "purge":
        assert world.broker.purge("q") == 1
    elif how == "delete":
        world.broker.delete_queue("q")
        world.broker.create_queue("q")
    world.restart()
    world.clock.advance(seconds=60)
    world.clock.advance(ms=HOUR)
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.claim("q") == []


def test_a_forced_failure_asks_the_policy_and_the_late_success_is_refused(world: World) -> None:
    world.broker.update_queue("q", retry={"policy": "fixed", "cooldown": "1m", "attempts": 2})
    world.fill("q", count=1)
    for outcome in ("waiting", "dead"):
        delivery = world.claim_one("q", consumer="ann")
        assert act(
            world, "fail", [delivery.id], error="stuck for hours", reason="timeout_exceeded"
        ).changed == (delivery.id,)
        assert place_of(world, delivery.id) == outcome
        assert world.broker.settle([Complete(delivery)])[0].outcome == "lost_lease"
        assert place_of(world, delivery.id) == outcome
        world.clock.advance(seconds=60)
    record = world.broker.find(delivery.id).failures[-1]
    assert (record.reason, record.error, record.consumer, record.rule, record.attempt) == (
        FailureReason.TIMEOUT_EXCEEDED,
        "stuck for hours",
        "ann",
        "retry.fixed",
        2,
    )


def test_a_buried_message_says_who_and_why(world: World) -> None:
    message_id, _ = make(world, "waiting")
    act(world, "bury", [message_id], error="never again", reason="poison_message")
    info = world.broker.find(message_id)
    assert (info.reason, info.rule, info.attempts) == (FailureReason.POISON_MESSAGE, "operator", 1)
    assert [failure.error for failure in info.failures] == ["first", "never again"]
    world.clock.advance(ms=HOUR)
    assert place_of(world, message_id) == "dead", "its retry is over"


def test_a_held_message_waits_without_end_and_comes_back_as_it_was(world: World) -> None:
    message_id, _ = make(world, "waiting")
    act(world, "hold", [message_id])
    world.restart()
    world.clock.advance(seconds=10 * 365 * 86_400)
    assert place_of(world, message_id) == "held"
    assert act(world, "unhold", [message_id]).changed == (message_id,)
    again = world.claim_one("q")
    assert (again.attempts, len(again.failures)) == (1, 1), "unhold resets nothing"


def test_a_held_message_that_failed_before_may_be_retried(world: World) -> None:
    message_id, _ = make(world, "waiting")
    act(world, "hold", [message_id])
    assert act(world, "retry", [message_id]).changed == (message_id,)
    assert world.claim_one("q").attempts == 0


def test_a_hold_in_a_stream_holds_up_the_later_ones_and_unhold_restores_the_order(world: World) -> None:
    first, second, third = (world.broker.enqueue("q", b"", stream="s") for _ in range(3))
    act(world, "hold", [second])
    world.broker.settle([Complete(world.claim_one("q"))])
    assert world.broker.claim("q") == []
    act(world, "unhold", [second])
    assert [delivery.id for delivery in world.broker.claim("q", limit=5, max_per_stream=5)] == [second, third]
    assert first != second


def test_a_message_completed_by_hand_leaves_no_dead_letter_and_frees_its_dedup_key(world: World) -> None:
    world.broker.update_queue("q", dedup="live")
    first = world.broker.enqueue("q", b"", dedup_key="d")
    delivery = world.claim_one("q")
    assert act(world, "done", [first]).changed == (first,)
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.settle([Fail(delivery)])[0].outcome == "not_found"
    assert world.broker.enqueue("q", b"", dedup_key="d") != first


def test_a_revoked_lease_frees_the_limits_it_counted_against(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_key=1, max_unsettled_per_consumer=1)
    first, second = world.fill("q", count=2)
    world.claim_one("q", consumer="ann")
    assert world.broker.claim("q", consumer="ann") == []
    act(world, "drop", [first])
    assert world.claim_one("q", consumer="ann").id == second


def test_part_of_a_claim_can_be_revoked_and_the_rest_goes_on(world: World) -> None:
    world.fill("q", count=3)
    a, b, c = world.broker.claim("q", limit=3)
    act(world, "drop", [b.id])
    results = world.broker.settle([Complete(a), Complete(b), Release(c)])
    assert [result.outcome for result in results] == ["completed", "not_found", "released"]


def test_ids_are_changed_skipped_and_not_found_each_for_itself(world: World) -> None:
    world.broker.create_queue("other")
    elsewhere = world.broker.enqueue("other", b"")
    waiting, _ = make(world, "waiting")
    ready = world.broker.enqueue("q", b"")
    unknown = "018bcfe5-6800-7000-8000-00000000001a"
    result = act(world, "retry", [waiting, ready, waiting, unknown, elsewhere])
    assert result.changed == (waiting,)
    assert result.skipped == (
        (ready, NOT_DEAD),
        (unknown, "not found in this queue"),
        (elsewhere, "not found in this queue"),
    )
    assert world.broker.find(elsewhere).queue == "other"


@pytest.mark.parametrize("verb", ["retry", "drop", "done", "bury", "hold", "fail", "redrive"])
def test_an_id_written_in_two_ways_is_one_message(world: World, verb: str) -> None:
    message_id = world.broker.enqueue("q", b"", stream="s")
    world.broker.enqueue("q", b"", stream="s")
    if verb in ("retry", "redrive"):
        world.broker.bury("q", [message_id])
    if verb == "fail":
        world.claim_one("q")
    getattr(world.broker, verb)("q", ids=[message_id, message_id.upper()])
    assert sum(world.counts("q")) == (1 if verb in ("drop", "done") else 2)


def test_the_name_of_the_dead_letter_queue_serves_as_well(world: World) -> None:
    message_id, _ = make(world, "dead")
    assert world.broker.retry("q.dlq", [message_id]).changed == (message_id,)
    message_id, _ = make(world, "ready")
    assert world.broker.drop("q.dlq", filter=DeadFilter()).changed == (), (
        "by that name only dead letters are meant"
    )


FILTERS: list[tuple[DeadFilter, set[str]]] = [
    (DeadFilter(), {"ready", "failed", "dead", "leased"}),
    (DeadFilter(reason="serialization_error"), {"failed"}),
    (DeadFilter(error="parse"), {"failed"}),
    (DeadFilter(error_regex="^par"), {"failed"}),
    (DeadFilter(key="a"), {"ready", "failed"}),
    (DeadFilter(header=("kind", "x")), {"dead"}),
    (DeadFilter(min_attempts=1), {"failed", "dead"}),
    (DeadFilter(max_attempts=0), {"ready", "leased"}),
    (DeadFilter(older_than="0s"), {"dead"}),
    (DeadFilter(newer_than="1h"), {"dead"}),
    (DeadFilter(older_than="1h"), set()),
]


@pytest.mark.parametrize(
    ("filter", "expected"),
    FILTERS,
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_filter_selects_live_messages_and_dead_letters_alike(
    world: World, filter: DeadFilter, expected: set[str]
) -> None:
    names = {}
    names[world.broker.enqueue("q", b"", fairness_key="b", headers={"kind": "x"})] = "dead"
    world.broker.settle([Fail(world.claim_one("q"), dead=True, reason="handler_exception")])
    names[world.broker.enqueue("q", b"", fairness_key="a")] = "failed"
    world.broker.settle(
        [Fail(world.claim_one("q"), retry_in="1h", reason="serialization_error", error="parse error")]
    )
    names[world.broker.enqueue("q", b"", fairness_key="b")] = "leased"
    world.claim_one("q")
    names[world.broker.enqueue("q", b"", fairness_key="a")] = "ready"
    result = act(world, "drop", filter=filter)
    assert {names[message_id] for message_id in result.changed} == expected, (
        "an age is that of a death: who lives has none"
    )


def test_a_filter_that_selects_more_than_one_commit_may_touch_says_so_and_goes_on(
    memory_world: World,
) -> None:
    world = memory_world
    world.fill("q", count=9_000)
    world.broker.enqueue_many("q", [NewMessage(b"", stream="s") for _ in range(3_000)])
    first = act(world, "drop", filter=DeadFilter())
    assert (len(first.changed), first.more) == (10_000, True)
    second = act(world, "drop", filter=DeadFilter())
    assert (len(second.changed), second.more) == (2_000, False)
    assert world.counts("q") == (0, 0, 0, 0)


def test_a_filter_reaches_the_end_of_a_long_stream(memory_world: World) -> None:
    world = memory_world
    world.broker.enqueue_many("q", [NewMessage(b"", stream="s") for _ in range(10_500)])
    last = world.broker.enqueue("q", b"", stream="s", headers={"last": "yes"})
    assert act(world, "drop", filter=DeadFilter(header=("last", "yes"))).changed == (last,)


def test_a_verb_is_one_commit_and_all_or_nothing(world: World) -> None:
    ids = world.fill("q", count=5)

    def refuse(facts: Any) -> None:
        raise errors.StoreFull("here", 0, 1)

    world.store.on_step = refuse
    for verb in ("drop", "bury", "hold", "done"):
        with pytest.raises(errors.StoreFull):
            act(world, verb, ids)
    world.store.on_step = ignore
    before = world.store.last_commit
    assert world.counts("q") == (5, 0, 0, 0)
    assert len(act(world, "hold", ids).changed) == 5
    assert world.store.last_commit == before + 1


# Drain and prune


def test_drain_gives_back_what_is_ready_and_leaves_the_rest(world: World) -> None:
    world.broker.enqueue("q", b"leased")
    world.claim_one("q")
    world.broker.enqueue("q", b"delayed", delay="1h")
    world.broker.quarantine("q", [NewMessage(b"dead")])
    world.broker.enqueue_many("q", [NewMessage(b"a", headers={"h": "1"}, fairness_key="k"), NewMessage(b"b")])
    drained = world.broker.drain("q")
    assert sorted((info.payload, info.fairness_key) for info in drained) == [(b"a", "k"), (b"b", "default")]
    assert {"h": "1"} in [info.headers for info in drained]
    assert world.counts("q") == (0, 1, 1, 1)
    assert world.broker.drain("q") == []
    assert world.broker.claim("q", limit=9) == []


def test_drain_takes_no_more_than_asked_for(world: World) -> None:
    world.fill("q", count=5)
    assert len(world.broker.drain("q", limit=2)) == 2
    assert world.counts("q") == (3, 0, 0, 0)
    assert len(world.broker.claim("q", limit=9)) == 3


def test_prune_drops_what_has_been_dead_for_so_long(world: World) -> None:
    old, _ = make(world, "dead")
    world.clock.advance(ms=HOUR)
    young, _ = make(world, "dead")
    world.broker.enqueue("q", b"alive")
    before = world.store.last_commit
    assert world.broker.prune("q", older_than="1h", dry_run=True).changed == (old,)
    assert world.store.last_commit == before
    assert world.broker.prune("q", older_than="1h").changed == (old,)
    assert world.broker.prune("q", older_than="1h").changed == ()
    assert world.broker.prune("q.dlq").changed == (young,)
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_dry_run_of_prune_leaves_claims_and_leases_alone(world: World) -> None:
    message_id, delivery = make(world, "leased-dead")
    assert delivery is not None
    assert world.broker.prune("q", dry_run=True).changed == (message_id,)
    assert world.broker.settle([Release(delivery)])[0].outcome == "released"
    assert world.claim_one("q.dlq").id == message_id


# Bad input

BAD: list[tuple[str, Callable[[World], Any], str]] = [
    ("neither ids nor filter", lambda world: world.broker.drop("q"), "ids"),
    ("ids and filter", lambda world: world.broker.drop("q", ["x"], filter=DeadFilter()), "ids"),
    ("one id as text", lambda world: world.broker.retry("q", "018bcfe5-6800-7000-8000-00000000001a"), "ids"),
    ("an id cut short", lambda world: world.broker.retry("q", ["018bcfe5"]), "ids"),
    ("an id that is none", lambda world: world.broker.hold("q", [5]), "ids"),  # type: ignore[list-item]
    ("ids that are no list", lambda world: world.broker.hold("q", 5), "ids"),  # type: ignore[arg-type]
    ("too many ids", lambda world: world.broker.hold("q", ["x"] * 10_001), "ids"),
    ("a filter that is none", lambda world: world.broker.drop("q", filter={"reason": "unknown"}), "filter"),  # type: ignore[arg-type]
    (
        "an unknown reason in a filter",
        lambda world: world.broker.drop("q", filter=DeadFilter(reason="bad")),
        "filter.reason",
    ),
    (
        "a bad age",
        lambda world: world.broker.drop("q", filter=DeadFilter(older_than="-1s")),
        "filter.older_than",
    ),
    ("an unknown reason", lambda world: world.broker.bury("q", [], reason="bad"), "reason"),
    ("an error that is no text", lambda world: world.broker.fail("q", [], error=5), "error"),  # type: ignore[arg-type]
    ("a bad age to prune", lambda world: world.broker.prune("q", older_than="-1s"), "older_than"),
    ("an age without a unit", lambda world: world.broker.prune("q", older_than=5), "older_than"),  # type: ignore[arg-type]
    ("drain nothing", lambda world: world.broker.drain("q", limit=0), "limit"),
    ("a stream that is none", lambda world: world.broker.release_stream("q", None), "stream"),  # type: ignore[arg-type]
    ("a stream that is no text", lambda world: world.broker.release_stream("q", "\ud800"), "stream"),
    ("a stream too long", lambda world: world.broker.release_stream("q", "x" * 70_000), "stream"),
    ("an id that cannot be looked up", lambda world: world.broker.hold("q", [["x"]]), "ids"),  # type: ignore[list-item]
    ("drain too much", lambda world: world.broker.drain("q", limit=10_001), "limit"),
]


@pytest.mark.parametrize(("call", "field"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_call_is_refused_by_name_and_changes_nothing(
    memory_world: World, call: Callable[[World], Any], field: str
) -> None:
    world = memory_world
    world.fill("q", count=2)
    before = world.store.last_commit
    with pytest.raises(errors.InvalidRequest) as refused:
        call(world)
    assert refused.value.field == field
    assert world.store.last_commit == before


@pytest.mark.parametrize("verb", [*VERBS, "drain", "prune"])
def test_a_queue_that_does_not_exist_is_said_to_be_so(memory_world: World, verb: str) -> None:
    arguments = [] if verb in ("drain", "prune") else [[]]
    with pytest.raises(errors.QueueNotFound):
        getattr(memory_world.broker, verb)("none", *arguments)


def test_a_filter_looks_only_where_its_verb_finds_something_to_do(world: World) -> None:
    world.fill("q", count=30)
    held = world.broker.enqueue("q", b"")
    world.broker.hold("q", [held])
    result = world.broker.unhold("q", filter=DeadFilter())
    assert (result.changed, result.skipped, result.more) == ((held,), (), False)


def test_a_filter_that_stops_at_the_most_it_may_look_at_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("operator_scan_messages"), 10)
    world.fill("q", count=11)
    result = world.broker.hold("q", filter=DeadFilter())
    assert (len(result.changed), result.more) == (10, True)
    monkeypatch.undo()
    assert world.broker.hold("q", filter=DeadFilter()).more is False


def test_a_forced_failure_by_filter_asks_the_hook_about_what_it_fails_only(world: World) -> None:
    world.broker.update_queue("q", on_failure="function on_failure(msg) return {action = 'dlq'} end")
    world.broker.enqueue("q", b"", fairness_key="a")
    world.broker.enqueue("q", b"", fairness_key="b")
    world.broker.claim("q", limit=2)
    assert len(world.broker.fail("q", filter=DeadFilter(key="a")).changed) == 1
    (hook,) = world.broker.stats("q").hooks
    assert hook.calls == 1
    assert world.broker.stats("q").dead == 1


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_of_a_verb_says_what_it_would_do_and_does_nothing(
    memory_world: World, verb: str, situation: str
) -> None:
    world = memory_world
    message_id, _ = make(world, situation)
    before, commit = world.counts("q"), world.store.last_commit
    told = act(world, verb, [message_id, UNKNOWN], dry_run=True)
    assert (world.counts("q"), world.store.last_commit) == (before, commit)
    assert told == act(world, verb, [message_id, UNKNOWN])


def test_a_dry_run_of_fail_does_not_count_for_the_failure_breaker(memory_world: World) -> None:
    world = memory_world
    world.broker.update_queue("q", failure_breaker={"failures": 2, "within": "1m", "pause": "5m"})
    message_id, _ = make(world, "leased")
    for _ in range(3):
        act(world, "fail", [message_id], dry_run=True)
    act(world, "fail", [message_id])
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_dry_run_by_filter_names_what_the_same_call_then_changes(memory_world: World) -> None:
    world = memory_world
    world.fill("q", count=3)
    world.broker.settle([Fail(d, dead=True, error="boom") for d in world.broker.claim("q", limit=3)])
    told = act(world, "retry", filter=DeadFilter(error="boom"), dry_run=True)
    assert len(told.changed) == 3
    assert world.broker.stats("q").dead == 3
    assert act(world, "retry", filter=DeadFilter(error="boom")).changed == told.changed
