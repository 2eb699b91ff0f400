"""Every fact, on every store: what the answers are after it, also after the store was opened again."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.model.access import AuditRecord, Grant, KeyRecord, Right
from fairlead.model.clock_mark import BucketLevel, ClockMark
from fairlead.model.facts import (
    AuditForgotten,
    AuditSaved,
    BucketsSaved,
    ClaimEnded,
    ClockMarked,
    Completed,
    ConfigDeleted,
    ConfigSet,
    DedupForgotten,
    Enqueued,
    Extended,
    InLease,
    InReady,
    Intent,
    IntentEnded,
    IntentSaved,
    InWaiting,
    KeyDropped,
    KeySaved,
    Leased,
    Moved,
    Quarantined,
    QueueCleared,
    QueueSaved,
    QueueUnlinked,
    Recounted,
    Restated,
    RunbookSaved,
    Started,
    TtlForgotten,
)
from fairlead.model.failure import FailureRecord
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, first_place, move_row, pack_lane
from fairlead.model.message import HELD, Message, MessageState, pack_headers
from fairlead.model.policy import RetryPolicy
from fairlead.model.queue import Counters, QueueConfig, QueueRecord
from tests.conformance.scene import (
    DEAD,
    NOW,
    OTHER,
    WORK,
    Scene,
    buried,
    delayed,
    in_done,
    in_ready,
    leased,
    retried,
)


@pytest.fixture(params=["at once", "reopened", "crashed"], autouse=True)
def life(request: pytest.FixtureRequest, scene: Scene) -> None:
    """The same answers are due in the life that committed, in the next, and in the one after a crash."""
    scene.next_life = {"at once": lambda: None, "reopened": scene.reopen, "crashed": scene.crash}[
        request.param
    ]  # type: ignore[attr-defined]


def look_again(scene: Scene) -> None:
    scene.next_life()  # type: ignore[attr-defined]


def test_enqueued_messages_are_ready_at_their_places_with_every_field(scene: Scene) -> None:
    lane = pack_lane("tenant", ("t1", "t2"))
    id, headers = scene.ids.next(NOW, 1)[0], pack_headers({"a": "ü"})
    full = Message(
        id,
        WORK,
        lane,
        7,
        headers,
        b"\x00\xff" * 100,
        NOW,
        first_place(2),
        0,
        NOW + 5,
        "d",
        NOW + 9,
        False,
        "s",
        0,
    )
    plain = scene.messages()[0]
    empty = msgspec.structs.replace(scene.messages(payload=b"")[0], place=plain.place + 1)
    scene.store.commit([Enqueued(WORK, [full, plain, empty])])
    look_again(scene)
    assert scene.store.messages([full.id, plain.id, b"\1" * 16, empty.id]) == [full, plain, None, empty]
    assert scene.store.ready(WORK, b"", None, 10) == [in_ready(plain), in_ready(empty), in_ready(full)]
    assert scene.store.states([full.id]) == [None]
    assert scene.store.counters(WORK) == Counters(ready=3, bytes=full.size + plain.size)


def test_a_delayed_message_begins_waiting(scene: Scene) -> None:
    (message,) = scene.enqueue(due_ms=NOW + 100)
    look_again(scene)
    assert scene.store.waiting(WORK, None, 10) == [
        InWaiting(WORK, NOW + 100, message.lane, message.row(0, 0))
    ]
    assert scene.store.ready(WORK, b"", None, 10) == []
    assert scene.store.counters(WORK) == Counters(waiting=1, bytes=message.size)


def test_quarantined_messages_are_dead_letters_with_their_state(scene: Scene) -> None:
    messages = scene.messages(2)
    place = first_place(scene.store.last_commit + 1)
    states = [
        MessageState(DEAD, place=place + n, reason=7, source_queue_id=WORK, dead_since_ms=NOW)
        for n in range(2)
    ]
    scene.store.commit([Quarantined(DEAD, messages, states)])
    look_again(scene)
    assert scene.store.states([m.id for m in messages]) == states
    assert scene.store.ready(DEAD, b"", None, 10) == [
        InReady(DEAD, DEAD_LETTER_LANE, m.row(place + n, Flag.STATE)) for n, m in enumerate(messages)
    ]
    assert scene.store.counters(DEAD).ready == 2
    assert scene.store.counters(WORK) == Counters()


def test_leased_messages_leave_ready_and_their_claim_is_known(scene: Scene) -> None:
    first, second = scene.enqueue(2)
    (lease,) = scene.lease([first])
    look_again(scene)
    assert scene.store.leases() == [lease]
    assert scene.store.claims() == [(lease.expires_ms, scene.last_claim)]
    assert scene.store.ready(WORK, b"", None, 10) == [in_ready(second)]
    assert scene.store.counters(WORK) == Counters(ready=1, leased=1, bytes=first.size + second.size)


def test_one_claim_may_lease_from_several_queues(scene: Scene) -> None:
    (here,), (there,) = scene.enqueue(queue_id=WORK), scene.enqueue(queue_id=OTHER)
    scene.lease([here, there])
    look_again(scene)
    assert [scene.store.counters(queue).leased for queue in (WORK, OTHER)] == [1, 1]
    assert len(scene.store.claims()) == 1


def test_what_lives_in_memory_only_is_not_stored_with_a_lease(scene: Scene) -> None:
    messages = scene.enqueue()
    claim = scene.claim()
    lease = leased(messages[0], claim, NOW + 1)
    lease.deadline_ms, lease.consumer = 77, "somebody"
    scene.store.commit([Leased(claim, [lease])])
    lease.deliveries = 99
    look_again(scene)
    assert [(held.deadline_ms, held.consumer, held.deliveries) for held in scene.store.leases()] == [
        (0, "", 1)
    ]


def test_completed_messages_are_gone_with_all_that_belonged_to_them(scene: Scene) -> None:
    message, other = (
        scene.enqueue(2, expires_ms=NOW + 50, dedup_key="d", live_dedup=True)[0],
        scene.enqueue()[0],
    )
    (lease,) = scene.lease([message])
    restated = msgspec.structs.replace(
        lease, row=move_row(lease.row, message.place, message.flags | Flag.STATE)
    )
    scene.store.commit([Restated(restated, MessageState(WORK, place=message.place, progress=1))])
    scene.store.commit(
        [
            Completed([restated], [(WORK, "d")]),
            TtlForgotten(WORK, NOW + 50, message.id),
            ClaimEnded(lease.expires_ms, lease.claim_id),
        ]
    )
    look_again(scene)
    assert scene.store.messages([message.id]) == [None]
    assert scene.store.states([message.id]) == [None]
    assert scene.store.dedup(WORK, ["d"]) == [None]
    assert message.id not in [id for _, id in scene.store.expired(WORK, HELD, 10)]
    assert scene.store.leases() == []
    assert scene.store.claims() == []
    assert scene.store.messages([other.id]) == [other]
    # Its twin was enqueued under the same live key, which only tests do; give the row back so that the laws
    # hold.
    twin = scene.store.ready(WORK, b"", None, 1)[0]
    scene.store.commit([Moved("dropped", twin.row[8:24], twin, None, None, NOW + 50)])


def test_a_released_message_returns_to_its_old_place(scene: Scene) -> None:
    first, second = scene.enqueue(2)
    (lease,) = scene.lease([first])
    scene.store.commit(
        [
            Moved("released", lease.id, InLease(lease), in_ready(first), None),
            ClaimEnded(lease.expires_ms, lease.claim_id),
        ]
    )
    look_again(scene)
    assert scene.store.ready(WORK, b"", None, 10) == [in_ready(first), in_ready(second)]
    assert scene.store.leases() == []
    assert scene.store.counters(WORK) == Counters(ready=2, bytes=first.size + second.size)


def test_a_message_released_within_its_time_to_live_has_the_row_again(scene: Scene) -> None:
    """The row was swept while the message was leased, and then the clock stepped back."""
    (message,) = scene.enqueue(expires_ms=NOW + 50)
    (lease,) = scene.lease([message])
    scene.store.commit([TtlForgotten(WORK, NOW + 50, message.id)])
    assert scene.store.next_expiry(WORK) is None
    scene.store.commit(
        [
            Moved("released", lease.id, InLease(lease), in_ready(message), None, NOW + 50),
            ClaimEnded(lease.expires_ms, lease.claim_id),
        ]
    )
    look_again(scene)
    assert scene.store.expired(WORK, NOW + 50, 10) == [(NOW + 50, message.id)]


def test_a_retried_message_has_a_new_place_and_a_state(scene: Scene) -> None:
    first, second = scene.enqueue(2)
    (lease,) = scene.lease([first])
    move = retried(lease, first_place(9))
    scene.store.commit([move, ClaimEnded(lease.expires_ms, lease.claim_id)])
    look_again(scene)
    assert scene.store.ready(WORK, b"", None, 10) == [in_ready(second), move.target]
    assert scene.store.states([first.id]) == [move.state]


def test_a_state_keeps_every_field(scene: Scene) -> None:
    (message,) = scene.enqueue()
    (lease,) = scene.lease([message])
    failures = (
        FailureRecord(NOW, 1, 2, "böse", "c", "policy", NOW + 1),
        FailureRecord(NOW, 2, 99, "", "", ""),
    )
    state = MessageState(WORK, message.place, 0, 0, 2, 3, 1 << 63, b"\0carry", 2, "rule", failures, 5, 6, NOW)
    lease.row = move_row(lease.row, message.place, Flag.STATE)
    scene.store.commit([Restated(lease, state)])
    look_again(scene)
    assert scene.store.states([message.id]) == [state]
    assert scene.store.leases() == [lease]


def test_a_failure_count_is_set_where_the_message_is(scene: Scene) -> None:
    (message,) = scene.enqueue()
    (lease,) = scene.lease([message])
    move = retried(lease, first_place(9))
    scene.store.commit([move, ClaimEnded(lease.expires_ms, lease.claim_id)])
    assert move.state is not None
    recounted = msgspec.structs.replace(move.state, attempts=0)
    scene.store.commit([Recounted(message.id, recounted)])
    look_again(scene)
    assert scene.store.states([message.id]) == [recounted]
    assert scene.store.ready(WORK, b"", None, 10) == [move.target]


def test_a_delayed_retry_waits_until_it_is_due_and_then_is_ready(scene: Scene) -> None:
    (message,) = scene.enqueue()
    (lease,) = scene.lease([message])
    move = delayed(lease, NOW + 500)
    scene.store.commit([move, ClaimEnded(lease.expires_ms, lease.claim_id)])
    look_again(scene)
    (waiting,) = scene.store.waiting(WORK, None, 10)
    assert waiting == move.target
    ready = InReady(WORK, waiting.lane, move_row(waiting.row, first_place(8), Flag.STATE))
    scene.store.commit(
        [Moved("due", message.id, waiting, ready, MessageState(WORK, place=first_place(8), attempts=1))]
    )
    look_again(scene)
    assert scene.store.waiting(WORK, None, 10) == []
    assert scene.store.ready(WORK, b"", None, 10) == [ready]
    assert scene.store.counters(WORK) == Counters(ready=1, bytes=message.size)


def test_a_held_message_waits_without_end(scene: Scene) -> None:
    (message,) = scene.enqueue()
    held = InWaiting(WORK, HELD, message.lane, message.row(0, Flag.STATE))
    scene.store.commit([Moved("held", message.id, in_ready(message), held, MessageState(WORK, due_ms=HELD))])
    look_again(scene)
    assert scene.store.waiting(WORK, None, 10) == [held]
    assert scene.store.due(WORK, HELD, 10) == []
    assert scene.store.next_due(WORK) is None


def test_a_buried_message_is_a_dead_letter_without_time_to_live_or_dedup_key(scene: Scene) -> None:
    (message,) = scene.enqueue(expires_ms=NOW + 50, dedup_key="d", live_dedup=True)
    (lease,) = scene.lease([message])
    move = buried(lease, first_place(8), NOW + 50, (WORK, "d"))
    scene.store.commit([move, ClaimEnded(lease.expires_ms, lease.claim_id)])
    look_again(scene)
    assert scene.store.ready(DEAD, b"", None, 10) == [move.target]
    assert scene.store.messages([message.id]) == [message]
    assert scene.store.next_expiry(WORK) is None
    assert scene.store.dedup(WORK, ["d"]) == [None]
    assert scene.store.counters(WORK) == Counters()
    assert scene.store.counters(DEAD) == Counters(ready=1, bytes=message.size)


def test_a_dropped_message_is_gone_from_wherever_it_was(scene: Scene) -> None:
    ready, (waiting,), held = scene.enqueue()[0], scene.enqueue(due_ms=NOW + 9), scene.enqueue()[0]
    (lease,) = scene.lease([held])
    spots = [in_ready(ready), InWaiting(WORK, NOW + 9, waiting.lane, waiting.row(0, 0)), InLease(lease)]
    moves = [
        Moved("dropped", id, spot, None, None)
        for id, spot in zip([ready.id, waiting.id, held.id], spots, strict=True)
    ]
    scene.store.commit([*moves, ClaimEnded(lease.expires_ms, lease.claim_id)])
    look_again(scene)
    assert scene.store.messages([ready.id, waiting.id, held.id]) == [None, None, None]
    assert scene.store.counters(WORK) == Counters()


def test_a_dropped_message_loses_its_state(scene: Scene) -> None:
    (message,) = scene.enqueue()
    (lease,) = scene.lease([message])
    move = retried(lease, first_place(8))
    assert move.target is not None
    scene.store.commit([move, ClaimEnded(lease.expires_ms, lease.claim_id)])
    scene.store.commit([Moved("dropped", message.id, move.target, None, None)])
    look_again(scene)
    assert scene.store.states([message.id]) == [None]


def test_a_retained_message_is_counted_as_done_until_it_is_dropped(scene: Scene) -> None:
    (message,) = scene.enqueue()
    (lease,) = scene.lease([message])
    done = in_done(message, NOW + 1)
    kept = Moved("completed", message.id, InLease(lease), done, MessageState(WORK, done_ms=NOW + 1))
    scene.store.commit([kept, ClaimEnded(lease.expires_ms, lease.claim_id)])
    look_again(scene)
    assert scene.store.counters(WORK) == Counters(done=1)
    assert scene.store.done(WORK, None, NOW + 1, 10) == [done]
    scene.store.commit([Moved("dropped", message.id, done, None, None)])
    look_again(scene)
    assert scene.store.counters(WORK) == Counters()
    assert scene.store.done(WORK, None, HELD, 10) == []
    assert scene.store.messages([message.id]) == [None]


def test_a_completed_message_that_is_kept_may_keep_its_dedup_key_and_loses_its_time_to_live(
    scene: Scene,
) -> None:
    (message,) = scene.enqueue(dedup_key="one", live_dedup=True, expires_ms=NOW + 50)
    (lease,) = scene.lease([message])
    done = in_done(message, NOW + 1, Flag.STATE | Flag.LIVE_DEDUP)
    kept = Moved("completed", message.id, InLease(lease), done, MessageState(WORK, done_ms=NOW + 1), NOW + 50)
    scene.store.commit([kept, ClaimEnded(lease.expires_ms, lease.claim_id)])
    look_again(scene)
    assert scene.store.dedup(WORK, ["one"]) == [(message.id, 0)]
    assert scene.store.expired(WORK, HELD, 10) == []
    scene.store.commit([Moved("expired", message.id, done, None, None, live_dedup=(WORK, "one"))])
    look_again(scene)
    assert scene.store.dedup(WORK, ["one"]) == [None]


def test_extended_leases_have_a_new_expiry_and_the_old_group_ends_by_its_own_fact(scene: Scene) -> None:
    first, second = scene.lease(scene.enqueue(2), NOW + 100)
    longer = msgspec.structs.replace(first, expires_ms=NOW + 900)
    scene.store.commit([Extended(scene.last_claim, [longer])])
    look_again(scene)
    assert sorted(scene.store.leases(), key=lambda lease: lease.id) == [longer, second]
    assert [expires_ms for expires_ms, _ in scene.store.claims()] == [NOW + 100, NOW + 900]
    also = msgspec.structs.replace(second, expires_ms=NOW + 900)
    scene.store.commit([Extended(scene.last_claim, [also]), ClaimEnded(NOW + 100, first.claim_id)])
    look_again(scene)
    assert [expires_ms for expires_ms, _ in scene.store.claims()] == [NOW + 900]


def test_a_started_lease_is_remembered_as_started(scene: Scene) -> None:
    (message,) = scene.enqueue()
    claim = scene.claim()
    lease = msgspec.structs.replace(leased(message, claim, NOW + 1), started=False)
    scene.store.commit([Leased(claim, [lease])])
    look_again(scene)
    assert [held.started for held in scene.store.leases()] == [False]
    scene.store.commit([Started([msgspec.structs.replace(lease, started=True)])])
    look_again(scene)
    assert [held.started for held in scene.store.leases()] == [True]


def test_a_queue_is_saved_changed_unlinked_and_cleared(scene: Scene) -> None:
    config = QueueConfig(
        visibility_timeout_ms=1,
        retry=RetryPolicy("none", 3),
        quantum=9,
        expired_to_dead=True,
        ordering="strict",
    )
    record = QueueRecord(9, "project/nine", config, NOW, dlq_id=10, paused=True)
    scene.store.commit([QueueSaved(record)])
    look_again(scene)
    assert scene.store.queues()[-1] == record
    changed = msgspec.structs.replace(record, paused=False)
    scene.store.commit([QueueSaved(changed)])
    assert scene.store.queues()[-1] == changed
    scene.store.commit([QueueUnlinked(9, "project/nine")])
    look_again(scene)
    assert scene.store.queues()[-1] == msgspec.structs.replace(changed, name="")
    scene.store.commit([QueueCleared(9)])
    look_again(scene)
    assert 9 not in [queue.queue_id for queue in scene.store.queues()]
    assert scene.store.last_queue_id == 9, "ids are never reused"


def test_a_cleared_queue_leaves_no_dedup_rows(scene: Scene) -> None:
    (message,) = scene.enqueue(queue_id=OTHER, dedup_key="d", dedup_until_ms=NOW + 5)
    scene.store.commit([Moved("dropped", message.id, in_ready(message), None, None)])
    assert scene.store.dedup(OTHER, ["d"]) == [(message.id, NOW + 5)]
    scene.store.commit([QueueUnlinked(OTHER, "other"), QueueCleared(OTHER)])
    look_again(scene)
    assert scene.store.dedup(OTHER, ["d"]) == [None]
    assert scene.store.next_dedup_end(OTHER) is None


def test_configuration_is_set_changed_and_deleted(scene: Scene) -> None:
    scene.store.commit(
        [ConfigSet("throttle:a:rate", "5"), ConfigSet("weight:q:ü", ""), ConfigSet("throttle:a:rate", "6")]
    )
    look_again(scene)
    assert scene.store.config() == {"throttle:a:rate": "6", "weight:q:ü": ""}
    scene.store.commit([ConfigDeleted("throttle:a:rate"), ConfigDeleted("never set")])
    look_again(scene)
    assert scene.store.config() == {"weight:q:ü": ""}


def test_the_last_mark_of_the_clock_counts(scene: Scene) -> None:
    assert scene.store.clock_mark() is None
    for closed in (False, True):
        mark = ClockMark(1, 1 << 62, 3, b"boot", 5, closed)
        scene.store.commit([ClockMarked(mark)])
        scene.reopen()
        assert scene.store.clock_mark() == mark


def test_levels_of_buckets_are_saved_changed_and_forgotten(scene: Scene) -> None:
    first, second = BucketLevel("ü", 0.1, NOW, 0.01, 1), BucketLevel("a", 2.5, NOW, 1e9, 1e300)
    scene.store.commit([BucketsSaved([first, second])])
    scene.reopen()
    assert scene.store.bucket_levels() == [second, first]
    changed = BucketLevel("ü", 0.0, NOW + 1, 0.01, 1)
    scene.store.commit([BucketsSaved([changed], ["a", "never was"])])
    assert scene.store.bucket_levels() == [changed]


def test_an_ended_window_forgets_its_dedup_key(scene: Scene) -> None:
    scene.enqueue(dedup_key="d", dedup_until_ms=NOW + 5)
    scene.store.commit([DedupForgotten([(WORK, "d", NOW + 5)])])
    look_again(scene)
    assert scene.store.dedup(WORK, ["d"]) == [None]
    assert scene.store.next_dedup_end(WORK) is None


def test_an_ended_window_leaves_a_newer_one_of_the_same_key_alone(scene: Scene) -> None:
    scene.enqueue(dedup_key="d", dedup_until_ms=NOW + 5)
    (again,) = scene.enqueue(dedup_key="d", dedup_until_ms=NOW + 50)
    scene.store.commit([DedupForgotten([(WORK, "d", NOW + 5)])])
    look_again(scene)
    assert scene.store.dedup(WORK, ["d"]) == [(again.id, NOW + 50)]
    assert scene.store.next_dedup_end(WORK) == NOW + 50


def test_a_window_may_end_and_begin_in_one_commit(scene: Scene) -> None:
    scene.enqueue(dedup_key="d", dedup_until_ms=NOW + 5)
    (again,) = scene.messages(dedup_key="d", dedup_until_ms=NOW + 50)
    scene.store.commit([Enqueued(WORK, [again]), DedupForgotten([(WORK, "d", NOW + 5)])])
    look_again(scene)
    assert scene.store.dedup(WORK, ["d"]) == [(again.id, NOW + 50)]


def test_a_time_to_live_row_ends_by_itself_while_its_message_is_leased(scene: Scene) -> None:
    (message,) = scene.enqueue(expires_ms=NOW + 50)
    scene.lease([message])
    scene.store.commit([TtlForgotten(WORK, NOW + 50, message.id)])
    look_again(scene)
    assert scene.store.next_expiry(WORK) is None
    assert scene.store.messages([message.id]) == [message]


def test_an_intent_is_saved_moved_on_and_ended(scene: Scene) -> None:
    intent = Intent(
        5,
        "redrive",
        DEAD,
        NOW,
        1 << 40,
        rate=2.5,
        filter={"reason": "poison_message", "min_attempts": 3, "header": ["a", "b"]},
    )
    purge = Intent(4, "purge", WORK, NOW, 7)
    scene.store.commit([IntentSaved(intent), IntentSaved(purge)])
    look_again(scene)
    assert scene.store.intents() == [purge, intent]
    scene.store.commit([IntentSaved(msgspec.structs.replace(intent, cursor=9, done=2)), IntentEnded(4)])
    look_again(scene)
    assert scene.store.intents() == [msgspec.structs.replace(intent, cursor=9, done=2)]


KEY = KeyRecord(
    "k1",
    "ü",
    b"\xff" * 32,
    NOW,
    "local",
    (Grant(Right.READ_PAYLOAD, "shop/*"), Grant(Right.ADMIN, "*")),
    NOW + 5,
    0,
)


def test_keys_are_saved_changed_and_dropped(scene: Scene) -> None:
    other = KeyRecord("k0", "", b"", NOW, "k1")
    scene.store.commit([KeySaved(KEY), KeySaved(other)])
    look_again(scene)
    assert scene.store.api_keys() == [other, KEY]
    used = msgspec.structs.replace(KEY, last_used_ms=NOW + 1, grants=())
    scene.store.commit([KeySaved(used), KeyDropped("k0"), KeyDropped("never there")])
    look_again(scene)
    assert scene.store.api_keys() == [used]


def test_the_audit_is_appended_completed_and_forgotten_from_its_beginning(scene: Scene) -> None:
    asked = [
        AuditRecord(number, NOW, "k1", "ü", "ipv4:127.0.0.1:1", "purge", "q", "asked", details={"a": "b"})
        for number in (1, 2, 300)
    ]
    assert scene.store.last_audit() == 0
    scene.store.commit([AuditSaved(record) for record in asked])
    done = msgspec.structs.replace(asked[1], outcome="done", count=7)
    scene.store.commit([AuditSaved(done)])
    look_again(scene)
    assert scene.store.audit(0, 10) == [asked[0], done, asked[2]]
    assert scene.store.audit(1, 1) == [done]
    assert scene.store.last_audit() == 300
    scene.store.commit([AuditForgotten(2)])
    look_again(scene)
    assert scene.store.audit(0, 10) == [done, asked[2]]
    scene.store.commit([AuditForgotten(301)])
    look_again(scene)
    assert (scene.store.audit(0, 10), scene.store.last_audit()) == ([], 0)


def test_a_runbook_replaces_the_one_of_its_project(scene: Scene) -> None:
    scene.store.commit([RunbookSaved("shop", "{}"), RunbookSaved("", "ü"), RunbookSaved("shop", "[]")])
    look_again(scene)
    assert scene.store.runbooks() == {"": "ü", "shop": "[]"}
