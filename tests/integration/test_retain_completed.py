"""`retain_completed`: what was completed stays to be looked at for a while, and gets in nobody's way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, Extend, Fail, NewMessage, errors
from fairlead.model.limits import STEP_MESSAGES
from fairlead.testing import CommitStep
from fairlead.testing.engine import rows_in
from fairlead.testing.sizes import size
from fairlead.testing.steps import Change, ignore
from tests.integration.world import World
from tests.turns import turn


@pytest.fixture
def kept(world: World) -> World:
    world.broker.create_queue("kept", retain_completed="1h", dedup="live", visibility_timeout="30s")
    return world


def complete_one(world: World, queue: str = "kept", payload: bytes = b"work", **options: Any) -> str:
    message_id = world.broker.enqueue(queue, payload, **options)
    (delivery,) = world.broker.claim(queue, consumer="ann")
    (result,) = world.broker.settle([Complete(delivery)])
    assert result.outcome == "completed"
    return message_id


def counts(world: World, queue: str = "kept") -> tuple[int, ...]:
    stats = world.broker.stats(queue)
    return stats.ready, stats.waiting, stats.leased, stats.dead, stats.done, stats.bytes


def found(world: World, message_id: str) -> bool:
    try:
        world.broker.find(message_id)
    except errors.MessageNotFound:
        return False
    return True


def done_ids(world: World, queue: str = "kept") -> list[str]:
    return [info.id for info in world.broker.peek(queue, where="done", limit=100)]


def test_a_completed_message_is_shown_as_done_with_what_happened_to_it(kept: World) -> None:
    message_id = kept.broker.enqueue("kept", b"work", headers={"a": "b"}, fairness_key="acme", stream="s")
    (delivery,) = kept.broker.claim("kept")
    kept.broker.settle([Fail(delivery, "no luck", retry_in="0s", progress=4)])
    (delivery,) = kept.broker.claim("kept")
    kept.clock.advance(seconds=3)
    kept.broker.settle([Complete(delivery, progress=8)])
    info = kept.broker.find(message_id)
    assert (info.where, info.queue, info.payload, info.headers, info.fairness_key) == (
        "done",
        "kept",
        b"work",
        {"a": "b"},
        "acme",
    )
    assert (info.attempts, info.deliveries, len(info.failures), info.progress & 12) == (1, 2, 1, 12)
    assert (info.done_at, info.lease_until, info.consumer, info.due_at) == (
        kept.clock.now_ms(),
        None,
        None,
        None,
    )
    assert kept.broker.find(message_id[-8:], "kept") == info
    assert kept.broker.peek("kept", where="done") == [info]
    assert counts(kept) == (0, 0, 0, 0, 1, 0)
    assert kept.broker.claim("kept") == []


def test_what_an_extend_stored_in_the_same_batch_is_kept(kept: World) -> None:
    message_id = kept.broker.enqueue("kept", b"work")
    (delivery,) = kept.broker.claim("kept")
    kept.broker.settle([Extend(delivery, progress=64, carry=b"value"), Complete(delivery)])
    info = kept.broker.find(message_id)
    assert (int(info.progress), info.carry) == (64, b"value")


def test_a_queue_without_the_option_keeps_nothing_and_writes_what_it_always_wrote(kept: World) -> None:
    written: list[Change] = []
    kept.store.on_step = lambda step: written.extend(step.changes())
    message_id = complete_one(kept, "q")
    assert not found(kept, message_id)
    assert [change.what for change in written if change.what in ("complete", "move")] == ["complete"]


def test_a_batch_over_two_queues_keeps_only_those_of_the_one_that_keeps(kept: World) -> None:
    stays, goes = kept.broker.enqueue("kept", b"1"), kept.broker.enqueue("q", b"2")
    deliveries = [*kept.broker.claim("kept"), *kept.broker.claim("q")]
    results = kept.broker.settle([Complete(delivery) for delivery in deliveries])
    assert [result.outcome for result in results] == ["completed", "completed"]
    assert (found(kept, stays), found(kept, goes)) == (True, False)


@pytest.mark.parametrize(
    "how", ["settle", "exchange", "ack", "done while leased", "done while ready", "done while waiting"]
)
def test_every_way_to_complete_keeps_it(kept: World, how: str) -> None:
    broker = kept.broker
    message_id = broker.enqueue("kept", b"x", delay="10m" if how == "done while waiting" else None)
    delivery = broker.claim("kept")[0] if how in ("settle", "exchange", "ack", "done while leased") else None
    if how == "settle":
        broker.settle([Complete(delivery)])
    elif how == "exchange":
        turn(broker, "ann", settle=[Complete(delivery)])
    elif how == "ack":
        assert broker.ack("kept", message_id).outcome == "completed"
    else:
        assert broker.done("kept", [message_id]).changed == (message_id,)
    assert counts(kept) == (0, 0, 0, 0, 1, 0)
    assert done_ids(kept) == [message_id]
    kept.clock.advance(seconds=30 * 60)
    assert broker.claim("kept") == []


def test_a_dead_letter_that_is_completed_by_hand_is_gone(kept: World) -> None:
    kept.broker.enqueue("kept", b"x")
    kept.broker.settle([Fail(kept.broker.claim("kept")[0], dead=True)])
    kept.broker.settle([Complete(kept.broker.claim("kept.dlq")[0])])
    assert counts(kept) == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("restarted", [False, True])
def test_it_goes_when_its_time_is_over_and_not_before(kept: World, restarted: bool) -> None:
    first = complete_one(kept)
    kept.clock.advance(seconds=20 * 60)
    second = complete_one(kept)
    if restarted:
        kept.restart()
    kept.clock.advance(ms=40 * 60_000 - 1)
    kept.broker.run_due()
    assert (found(kept, first), found(kept, second)) == (True, True)
    kept.clock.advance(ms=1)
    kept.broker.run_due()
    assert (found(kept, first), found(kept, second)) == (False, True)
    assert counts(kept)[4] == 1
    if restarted:
        kept.restart(away_ms=20 * 60_000)
    else:
        kept.clock.advance(seconds=20 * 60)
    kept.broker.run_due()
    assert not found(kept, second)
    assert counts(kept) == (0, 0, 0, 0, 0, 0)


def test_more_than_one_step_of_them_go_when_their_time_is_over(kept: World) -> None:
    kept.fill("kept", count=2500)
    kept.broker.settle([Complete(delivery) for delivery in kept.broker.claim("kept", limit=5000)])
    assert counts(kept)[4] == 2500
    kept.clock.advance(seconds=1 * 3600)
    kept.broker.run_due()
    assert counts(kept)[4] == 0


def test_the_time_follows_the_option_and_switching_it_off_lets_all_of_it_go(kept: World) -> None:
    first = complete_one(kept)
    kept.broker.update_queue("kept", retain_completed="2h")
    kept.clock.advance(seconds=90 * 60)
    kept.broker.run_due()
    assert found(kept, first)
    kept.broker.update_queue("kept", retain_completed=None)
    kept.broker.run_due()
    assert not found(kept, first)
    assert not found(kept, complete_one(kept))


def test_a_second_word_on_it_says_what_it_would_without_the_option(kept: World) -> None:
    answers = {}
    for queue in ("kept", "q"):
        message_id = kept.broker.enqueue(queue, b"x")
        (delivery,) = kept.broker.claim(queue)
        kept.broker.settle([Complete(delivery)])
        late = [kept.broker.settle([item(delivery)])[0].outcome for item in (Complete, Fail, Extend)]
        answers[queue] = [
            *late,
            kept.broker.ack(queue, message_id).outcome,
            kept.broker.nack(queue, message_id).outcome,
        ]
    assert answers["kept"] == answers["q"]


def test_live_dedup_ends_at_completion(kept: World) -> None:
    first = complete_one(kept, dedup_key="one")
    second = kept.broker.enqueue("kept", b"again", dedup_key="one")
    assert second != first
    assert kept.broker.enqueue("kept", b"again", dedup_key="one") == second
    assert kept.broker.drop("kept", [first]).changed == (first,)
    assert kept.broker.enqueue("kept", b"again", dedup_key="one") == second


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("ends", ["its time", "drop", "prune", "option off"])
def test_dedup_kept_ends_when_it_is_no_longer_kept(kept: World, ends: str, restarted: bool) -> None:
    kept.broker.update_queue("kept", dedup="kept")
    first = complete_one(kept, dedup_key="one")
    if restarted:
        kept.restart()
    assert kept.broker.enqueue("kept", b"again", dedup_key="one") == first
    assert counts(kept) == (0, 0, 0, 0, 1, 0)
    if ends == "its time":
        kept.clock.advance(seconds=1 * 3600)
    elif ends == "drop":
        kept.broker.drop("kept", [first])
    elif ends == "prune":
        kept.broker.prune("kept")
    else:
        kept.broker.update_queue("kept", retain_completed=None)
    kept.broker.run_due()
    assert kept.broker.enqueue("kept", b"again", dedup_key="one") != first


def test_dedup_kept_ends_with_a_death(kept: World) -> None:
    kept.broker.update_queue("kept", dedup="kept")
    first = kept.broker.enqueue("kept", b"x", dedup_key="one")
    kept.broker.settle([Fail(kept.broker.claim("kept")[0], dead=True)])
    second = kept.broker.enqueue("kept", b"x", dedup_key="one")
    assert second != first
    kept.broker.retry("kept", [first])
    kept.broker.settle([Complete(delivery) for delivery in kept.broker.claim("kept", limit=2)])
    assert kept.broker.enqueue("kept", b"x", dedup_key="one") == second
    kept.broker.drop("kept", [first])
    assert kept.broker.enqueue("kept", b"x", dedup_key="one") == second


def test_its_time_to_live_is_over_with_its_work(kept: World) -> None:
    message_id = complete_one(kept, ttl="10s")
    kept.clock.advance(seconds=5 * 60)
    kept.broker.run_due()
    assert found(kept, message_id)
    assert kept.broker.find(message_id).expires_at is None


def test_a_stream_goes_on_and_ends_as_if_it_were_gone(kept: World) -> None:
    first, second = kept.broker.enqueue_many(
        "kept", [NewMessage(b"1", stream="s"), NewMessage(b"2", stream="s")]
    )
    (delivery,) = kept.broker.claim("kept")
    assert kept.broker.claim("kept") == []
    kept.broker.settle([Complete(delivery)])
    (delivery,) = kept.broker.claim("kept")
    assert (delivery.id, kept.broker.find(first).stream) == (second, "s")
    kept.broker.settle([Complete(delivery)])
    assert rows_in(kept.broker, "streams") == {}
    third = kept.broker.enqueue("kept", b"3", stream="s", fairness_key="other")
    assert [found.id for found in kept.broker.claim("kept")] == [third]


def test_what_is_done_takes_no_room_in_a_bounded_queue(kept: World) -> None:
    kept.broker.update_queue("kept", max_messages=2, max_bytes=10)
    for _ in range(5):
        complete_one(kept, payload=b"123456")
    kept.broker.enqueue("kept", b"12345")
    kept.broker.enqueue("kept", b"12345")
    with pytest.raises(errors.QueueFull):
        kept.broker.enqueue("kept", b"")


@pytest.mark.parametrize(
    ("verb", "why"),
    [
        ("retry", "completed already"),
        ("done", "completed already"),
        ("bury", "completed already"),
        ("hold", "completed already"),
        ("unhold", "not held"),
        ("fail", "not leased"),
    ],
)
def test_what_is_done_is_left_alone_by_an_operator_who_means_the_living(
    kept: World, verb: str, why: str
) -> None:
    message_id = complete_one(kept)
    before = kept.broker.find(message_id)
    unknown = "018bcfe5-6800-7000-8000-00000000001a"
    result = getattr(kept.broker, verb)("kept", [message_id, unknown])
    assert (result.changed, result.skipped[0]) == ((), (message_id, why))
    assert kept.broker.find(message_id) == before


def test_a_filter_reaches_only_what_is_not_done(kept: World) -> None:
    done = complete_one(kept)
    ready = kept.broker.enqueue("kept", b"x")
    assert kept.broker.drop("kept", filter=DeadFilter()).changed == (ready,)
    assert done_ids(kept) == [done]


def test_drop_by_id_takes_it(kept: World) -> None:
    message_id = complete_one(kept)
    assert kept.broker.drop("kept", [message_id]).changed == (message_id,)
    assert not found(kept, message_id)


def test_purge_is_about_work_that_is_not_done(kept: World) -> None:
    done = complete_one(kept)
    kept.fill("kept", count=3)
    assert kept.broker.purge("kept") == 3
    assert done_ids(kept) == [done]
    kept.clock.advance(seconds=1 * 3600)
    kept.broker.run_due()
    assert done_ids(kept) == []


def test_a_deleted_queue_takes_what_is_done_with_it(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("operation_step_messages"), 2)
    ids = [complete_one(kept) for _ in range(5)]
    kept.fill("kept", count=3)
    kept.broker.delete_queue("kept")
    assert not any(found(kept, message_id) for message_id in ids)
    kept.broker.create_queue("kept", retain_completed="1h")
    assert counts(kept) == (0, 0, 0, 0, 0, 0)


def test_a_delete_takes_all_that_is_kept_or_nothing(kept: World) -> None:
    ids = [complete_one(kept) for _ in range(5)]

    def refuse(step: CommitStep) -> None:
        raise errors.StoreFull("somewhere", 0, 1)

    kept.store.on_step = refuse
    with pytest.raises((errors.StoreFull, errors.Unavailable)):
        kept.broker.delete_queue("kept")
    kept.restart()
    assert all(found(kept, message_id) for message_id in ids)
    kept.broker.delete_queue("kept")
    kept.restart()
    assert not any(found(kept, message_id) for message_id in ids)
    assert kept.broker.intents() == []


def test_prune_takes_what_is_done_and_dead_for_so_long_and_can_be_told_which(kept: World) -> None:
    def dead_one() -> str:
        message_id = kept.broker.enqueue("kept", b"bad")
        kept.broker.settle([Fail(kept.broker.claim("kept")[0], dead=True)])
        return message_id

    old = complete_one(kept), dead_one()
    kept.clock.advance(seconds=10 * 60)
    young = complete_one(kept), dead_one()
    prune: Callable[..., Any] = kept.broker.prune
    assert set(prune("kept", older_than="5m", dry_run=True).changed) == set(old)
    assert set(prune("kept", older_than="5m", dry_run=True, which="done").changed) == {old[0]}
    assert set(prune("kept", older_than="5m", dry_run=True, which="dead").changed) == {old[1]}
    assert counts(kept)[3:5] == (2, 2)
    assert set(prune("kept", older_than="5m").changed) == set(old)
    assert prune("kept", which="done").changed == (young[0],)
    assert prune("kept", which="dead").changed == (young[1],)
    assert counts(kept)[3:5] == (0, 0)
    with pytest.raises(errors.InvalidRequest):
        prune("kept", which="leased")


def test_prune_stops_at_the_most_one_call_may_touch_and_says_so(memory_world: World) -> None:
    broker = memory_world.broker
    broker.create_queue("kept", retain_completed="1h")
    memory_world.fill("kept", count=STEP_MESSAGES + 1)
    broker.settle([Complete(delivery) for delivery in broker.claim("kept", limit=STEP_MESSAGES + 1)])
    broker.quarantine("kept", [NewMessage(b"bad")])
    first = broker.prune("kept")
    assert (len(first.changed), first.more) == (STEP_MESSAGES, True)
    second = broker.prune("kept")
    assert (len(second.changed), second.more) == (2, False)


def test_peek_goes_on_behind_the_last_one_seen_and_by_key(kept: World) -> None:
    ids = []
    for key in "abab":
        ids.append(complete_one(kept, fairness_key=key))
        kept.clock.advance(seconds=1)
    page = kept.broker.peek("kept", where="done", limit=2)
    assert [info.id for info in page] == ids[:2]
    assert [info.id for info in kept.broker.peek("kept", where="done", after=page[-1].id)] == ids[2:]
    assert [info.id for info in kept.broker.peek("kept", where="done", key="b")] == [ids[1], ids[3]]


def test_explain_says_that_it_was_completed_and_until_when_it_is_kept(kept: World) -> None:
    message_id = complete_one(kept)
    told = kept.broker.explain(message_id)
    assert (told.summary, told.reasons[0].code, told.reasons[0].until_ms) == (
        "completed",
        "completed",
        kept.clock.now_ms() + 3_600_000,
    )


def test_a_commit_that_fails_leaves_it_with_its_holder(kept: World) -> None:
    message_id = kept.broker.enqueue("kept", b"x")
    (delivery,) = kept.broker.claim("kept")

    def refuse(step: CommitStep) -> None:
        raise errors.StoreFull("somewhere", 0, 1)

    kept.store.on_step = refuse
    with pytest.raises(errors.StoreFull):
        kept.broker.settle([Complete(delivery)])
    kept.store.on_step = ignore
    assert kept.broker.find(message_id).where == "leased"
    assert kept.broker.settle([Complete(delivery)])[0].outcome == "completed"
    assert kept.broker.find(message_id).where == "done"


def test_a_completion_is_counted_once_and_the_end_of_its_keeping_is_a_retention(kept: World) -> None:
    written: list[Change] = []
    kept.store.on_step = lambda step: written.extend(step.changes())
    complete_one(kept)
    kept.clock.advance(seconds=1 * 3600)
    kept.broker.run_due()
    moves = [change.move for change in written if change.what == "move"]
    assert moves == [("completed", "", "done"), ("expired", "kept_long_enough", "gone")]
    assert kept.broker.stats("kept").totals.completed == 1


def test_switching_it_off_lets_also_those_go_that_a_clock_set_back_has_put_in_the_future(kept: World) -> None:
    message_id = complete_one(kept)
    kept.clock.jump(ms=-86_400_000)
    kept.broker.update_queue("kept", retain_completed=None)
    kept.broker.run_due()
    assert not found(kept, message_id)
