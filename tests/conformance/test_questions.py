"""Every question, on every store: order, bounds, paging and limits."""

from __future__ import annotations

from fairlead.model.facts import ClaimEnded, Completed, ConfigSet, Enqueued, InLease, InWaiting, Moved
from fairlead.model.lane import key_prefix, pack_lane, row_id, row_place
from fairlead.model.message import HELD, MessageState
from fairlead.model.queue import Counters
from tests.conformance.scene import NOW, OTHER, WORK, Scene, in_done, in_ready, row


def test_lanes_tells_each_lane_with_its_first_and_last_row(scene: Scene) -> None:
    a, b = scene.enqueue(3, key="a"), scene.enqueue(1, key="b")
    throttled = scene.enqueue(2, key="a", throttle_keys=("t",))
    scene.enqueue(2, queue_id=OTHER, key="a")
    more = scene.enqueue(1, key="a")
    assert list(scene.store.lanes(WORK)) == [
        (pack_lane("a"), row(a[0]), row(more[0])),
        (pack_lane("a", ("t",)), row(throttled[0]), row(throttled[1])),
        (pack_lane("b"), row(b[0]), row(b[0])),
    ]
    assert list(scene.store.lanes(99)) == []


def test_lanes_of_keys_that_are_prefixes_of_each_other_stay_apart(scene: Scene) -> None:
    keys = ["", "a", "aa", "a\0", "b" * 300, "\U0010ffff"]
    for key in keys:
        scene.enqueue(2, key=key)
    assert sorted(lane for lane, _, _ in scene.store.lanes(WORK)) == sorted(pack_lane(key) for key in keys)
    assert all(len(scene.store.rows_after(WORK, pack_lane(key), 0, 9)) == 2 for key in keys)


def test_lanes_forgets_a_lane_that_was_drained(scene: Scene) -> None:
    (lease,) = scene.lease(scene.enqueue(1, key="gone"))
    assert list(scene.store.lanes(WORK)) == []
    scene.store.commit([Completed([lease], []), ClaimEnded(lease.expires_ms, lease.claim_id)])
    assert list(scene.store.lanes(WORK)) == []


def test_rows_after_gives_the_rows_behind_a_place_up_to_the_limit(scene: Scene) -> None:
    first, second = scene.enqueue(3), scene.enqueue(2)
    scene.enqueue(2, key="other")
    rows = [row(message) for message in (*first, *second)]
    lane = first[0].lane
    assert scene.store.rows_after(WORK, lane, 0, 10) == rows
    assert scene.store.rows_after(WORK, lane, row_place(rows[1]), 2) == rows[2:4]
    assert scene.store.rows_after(WORK, lane, row_place(rows[-1]), 10) == []
    assert scene.store.rows_after(WORK, pack_lane("nobody"), 0, 10) == []


def test_ready_pages_through_lanes_and_places(scene: Scene) -> None:
    messages = [
        *scene.enqueue(3, key="a"),
        *scene.enqueue(2, key="a", throttle_keys=("t",)),
        *scene.enqueue(2, key="b"),
    ]
    spots = [in_ready(message) for message in messages]
    assert scene.store.ready(WORK, b"", None, 100) == spots
    assert scene.store.ready(WORK, b"", spots[1], 3) == spots[2:5]
    assert scene.store.ready(WORK, key_prefix("a"), None, 100) == spots[:5]
    assert scene.store.ready(WORK, key_prefix("a"), spots[3], 100) == [spots[4]]
    assert scene.store.ready(WORK, key_prefix("b"), spots[0], 100) == spots[5:]
    assert scene.store.ready(WORK, key_prefix("c"), None, 100) == []


def wait(scene: Scene, *due_times: int) -> list[InWaiting]:
    messages = [message for due_ms in due_times for message in scene.enqueue(due_ms=due_ms)]
    return [InWaiting(WORK, message.due_ms, message.lane, message.row(0, 0)) for message in messages]


def test_waiting_is_in_order_of_due_time_then_id_with_held_ones_last(scene: Scene) -> None:
    late, soon, later, also_soon = wait(scene, NOW + 90, NOW + 10, NOW + 95, NOW + 10)
    (message,) = scene.enqueue()
    held = InWaiting(WORK, HELD, message.lane, message.row(0, 1))
    scene.store.commit([Moved("held", message.id, in_ready(message), held, MessageState(WORK, due_ms=HELD))])
    in_order = [soon, also_soon, late, later, held]
    assert scene.store.waiting(WORK, None, 100) == in_order
    assert scene.store.waiting(WORK, soon, 2) == in_order[1:3]
    assert scene.store.waiting(WORK, held, 2) == []
    assert scene.store.waiting(OTHER, None, 100) == []


def test_due_gives_what_is_due_at_that_instant_and_never_held_ones(scene: Scene) -> None:
    soon, late = wait(scene, NOW + 10, NOW + 90)
    assert scene.store.due(WORK, NOW + 9, 10) == []
    assert scene.store.due(WORK, NOW + 10, 10) == [soon]
    assert scene.store.due(WORK, NOW + 90, 1) == [soon]
    assert scene.store.due(WORK, HELD, 10) == [soon, late]
    assert scene.store.next_due(WORK) == NOW + 10
    assert scene.store.next_due(OTHER) is None


def test_a_time_earlier_than_any_before_is_not_overlooked(scene: Scene) -> None:
    (late,) = wait(scene, NOW + 90)
    (expiring,) = scene.enqueue(expires_ms=NOW + 90)
    scene.enqueue(dedup_key="late", dedup_until_ms=NOW + 90)
    assert scene.store.due(WORK, NOW + 50, 10) == []
    assert (scene.store.next_due(WORK), scene.store.next_expiry(WORK), scene.store.next_dedup_end(WORK)) == (
        NOW + 90,
        NOW + 90,
        NOW + 90,
    )
    scene.store.commit([Moved("dropped", row_id(late.row), late, None, None)])
    scene.store.commit([Moved("dropped", expiring.id, in_ready(expiring), None, None, NOW + 90)])
    assert scene.store.next_due(WORK) is None
    assert scene.store.next_expiry(WORK) is None
    (soon,) = wait(scene, NOW + 10)
    scene.enqueue(expires_ms=NOW + 10, dedup_key="soon", dedup_until_ms=NOW + 10)
    assert scene.store.due(WORK, NOW + 50, 10) == [soon]
    assert (scene.store.next_due(WORK), scene.store.next_expiry(WORK), scene.store.next_dedup_end(WORK)) == (
        NOW + 10,
        NOW + 10,
        NOW + 10,
    )


def test_expired_gives_times_to_live_that_ended(scene: Scene) -> None:
    (late,), (soon,) = scene.enqueue(expires_ms=NOW + 90), scene.enqueue(expires_ms=NOW + 10)
    assert scene.store.expired(WORK, NOW + 9, 10) == []
    assert scene.store.expired(WORK, NOW + 10, 10) == [(NOW + 10, soon.id)]
    assert scene.store.expired(WORK, HELD, 10) == [(NOW + 10, soon.id), (NOW + 90, late.id)]
    assert scene.store.expired(WORK, HELD, 1) == [(NOW + 10, soon.id)]
    assert scene.store.next_expiry(WORK) == NOW + 10
    assert scene.store.next_expiry(OTHER) is None


def test_dedup_answers_per_key_and_queue(scene: Scene) -> None:
    (window,) = scene.enqueue(dedup_key="w", dedup_until_ms=NOW + 10)
    (live,) = scene.enqueue(dedup_key="l", live_dedup=True)
    assert scene.store.dedup(WORK, ["l", "nothing", "w"]) == [(live.id, 0), None, (window.id, NOW + 10)]
    assert scene.store.dedup(OTHER, ["l", "w"]) == [None, None]
    assert scene.store.dedup(WORK, []) == []


def test_dedup_over_gives_windows_in_order_of_their_end(scene: Scene) -> None:
    for key, until_ms in (("late", NOW + 90), ("soon", NOW + 10), ("ä", NOW + 10)):
        scene.enqueue(dedup_key=key, dedup_until_ms=until_ms)
    scene.enqueue(dedup_key="live", live_dedup=True)
    assert scene.store.dedup_over(WORK, NOW + 9, 10) == []
    assert scene.store.dedup_over(WORK, NOW + 10, 10) == [(WORK, "soon", NOW + 10), (WORK, "ä", NOW + 10)]
    assert scene.store.dedup_over(WORK, NOW + 99, 1) == [(WORK, "soon", NOW + 10)]
    assert scene.store.next_dedup_end(WORK) == NOW + 10
    assert scene.store.next_dedup_end(OTHER) is None


def test_ids_between_includes_both_ends_and_keeps_to_the_limit(scene: Scene) -> None:
    ids = [message.id for message in scene.enqueue(6)]
    assert scene.store.ids_between(b"\0" * 16, b"\xff" * 16, 100) == ids
    assert scene.store.ids_between(ids[1], ids[3], 100) == ids[1:4]
    assert scene.store.ids_between(ids[1], ids[4], 2) == ids[1:3]
    assert scene.store.ids_between(ids[5] + b"\0", b"\xff" * 16, 2) == []


def test_messages_and_states_answer_in_the_order_asked(scene: Scene) -> None:
    a, b = scene.enqueue(2)
    assert scene.store.messages([b.id, b"\7" * 16, a.id, b.id]) == [b, None, a, b]
    assert scene.store.messages([]) == []
    assert scene.store.states([a.id, b"\7" * 16]) == [None, None]


def test_config_lists_by_prefix_in_key_order(scene: Scene) -> None:
    scene.store.commit([ConfigSet(key, key.upper()) for key in ("b:2", "a:1", "b:1", "c")])
    assert list(scene.store.config()) == ["a:1", "b:1", "b:2", "c"]
    assert scene.store.config("b:") == {"b:1": "B:1", "b:2": "B:2"}
    assert scene.store.config("x") == {}


def test_counters_of_an_unknown_queue_are_zero(scene: Scene) -> None:
    assert scene.store.counters(99) == Counters()


def test_questions_reach_past_one_page(scene: Scene) -> None:
    messages = scene.messages(2500)
    scene.store.commit([Enqueued(WORK, messages)])
    assert [row_id(r) for r in scene.store.rows_after(WORK, messages[0].lane, 0, 10_000)] == [
        m.id for m in messages
    ]
    assert len(scene.store.ids_between(b"\0" * 16, b"\xff" * 16, 10_000)) == 2500


def test_done_pages_through_what_was_done_until_an_instant(scene: Scene) -> None:
    messages = scene.enqueue(4)
    (other,) = scene.enqueue(queue_id=OTHER)
    spots = [in_done(message, NOW + at) for message, at in zip(messages, (30, 10, 20, 20), strict=True)]
    leases = scene.lease([*messages, other])
    moves = [
        Moved("completed", spot_id, InLease(lease), spot, MessageState(spot.queue_id, done_ms=spot.done_ms))
        for spot_id, lease, spot in zip(
            [*[m.id for m in messages], other.id], leases, [*spots, in_done(other, NOW)], strict=True
        )
    ]
    assert scene.store.next_done(WORK) is None
    scene.store.commit([*moves, ClaimEnded(leases[0].expires_ms, leases[0].claim_id)])
    late, first, second, third = spots
    assert scene.store.done(WORK, None, HELD, 10) == [first, second, third, late]
    assert scene.store.done(WORK, None, NOW + 20, 10) == [first, second, third]
    assert scene.store.done(WORK, second, NOW + 29, 10) == [third]
    assert scene.store.done(WORK, first, HELD, 1) == [second]
    assert scene.store.next_done(WORK) == NOW + 10
    scene.store.commit([Moved("expired", row_id(first.row), first, None, None)])
    assert scene.store.done(WORK, None, NOW + 15, 10) == []
    assert scene.store.next_done(WORK) == NOW + 20
    (early,) = scene.enqueue()
    (lease,) = scene.lease([early])
    again = in_done(early, NOW + 5)
    gone = Moved("completed", early.id, InLease(lease), again, MessageState(WORK, done_ms=NOW + 5))
    scene.store.commit([gone, ClaimEnded(lease.expires_ms, lease.claim_id)])
    assert scene.store.next_done(WORK) == NOW + 5
    assert scene.store.done(WORK, None, NOW + 15, 10) == [again]
