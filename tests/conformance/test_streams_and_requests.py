"""Streams and remembered requests, on every store, in the life that committed them and in later ones."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.errors import FairleadError
from fairlead.model.facts import (
    ClaimEnded,
    Completed,
    Enqueued,
    InLease,
    InReady,
    InStream,
    InWaiting,
    Leased,
    Moved,
    RequestRemembered,
    RequestsForgotten,
    StreamEnded,
    StreamJoined,
    StreamLeft,
    StreamSaved,
)
from fairlead.model.lane import Flag, move_row
from fairlead.model.lease import Lease
from fairlead.model.message import HELD, Message, MessageState
from fairlead.model.queue import Counters
from fairlead.model.stream import StreamRecord, StreamRow
from tests.conformance.scene import NOW, OTHER, WORK, Scene, row


@pytest.fixture(params=["at once", "reopened", "crashed"], autouse=True)
def life(request: pytest.FixtureRequest, scene: Scene) -> None:
    scene.next_life = {"at once": lambda: None, "reopened": scene.reopen, "crashed": scene.crash}[
        request.param
    ]  # type: ignore[attr-defined]


def look_again(scene: Scene) -> None:
    scene.next_life()  # type: ignore[attr-defined]


def stream_row(message: Message) -> StreamRow:
    return StreamRow(message.lane, row(message))


def enqueue_stream(scene: Scene, count: int, *, queue_id: int = WORK, name: str = "s") -> list[Message]:
    """Messages of one stream, the first of them at its front."""
    plain = scene.messages(count, queue_id=queue_id, stream=name)
    messages = [msgspec.structs.replace(message, seq=message.place) for message in plain]
    rows = [stream_row(message) for message in messages]
    scene.store.commit(
        [
            Enqueued(queue_id, messages, frozenset(message.id for message in messages[1:])),
            *(StreamJoined(queue_id, name, behind) for behind in rows[1:]),
            StreamSaved(queue_id, name, StreamRecord("k", count, rows[0], rows[0].seq)),
        ]
    )
    return messages


def test_a_stream_stands_in_the_ready_rows_with_its_front_only_and_all_are_counted(scene: Scene) -> None:
    first, second, third = enqueue_stream(scene, 3)
    look_again(scene)
    store = scene.store
    assert store.ready(WORK, b"", None, 10) == [InReady(WORK, first.lane, row(first))]
    assert store.counters(WORK) == Counters(ready=3, bytes=first.size + second.size + third.size)
    assert store.streams(WORK, ["s", "none"]) == [StreamRecord("k", 3, stream_row(first), first.seq), None]
    assert store.stream_rows(WORK, "s", 0, 10) == [stream_row(second), stream_row(third)]
    assert store.stream_rows(WORK, "s", second.seq, 10) == [stream_row(third)]
    assert store.stream_rows(WORK, "s", 0, 1) == [stream_row(second)]
    assert store.streams(OTHER, ["s"]) == [None]


def test_streams_of_a_queue_are_listed_each_once_in_pages(scene: Scene) -> None:
    names = ["a", "aa", "b", "stream-100", "ü"]
    for name in names:
        enqueue_stream(scene, 1, name=name)
    enqueue_stream(scene, 1, queue_id=OTHER, name="elsewhere")
    look_again(scene)
    found: list[str] = []
    while page := scene.store.streams_after(WORK, found[-1] if found else "", 2):
        found += [name for name, _ in page]
        assert len(page) <= 2
    assert sorted(found) == sorted(names)
    assert len(found) == len(names)


def test_names_that_begin_alike_do_not_see_each_others_rows(scene: Scene) -> None:
    enqueue_stream(scene, 2, name="s")
    longer = enqueue_stream(scene, 3, name="s1")
    look_again(scene)
    assert [found.id for found in scene.store.stream_rows(WORK, "s1", 0, 10)] == [
        message.id for message in longer[1:]
    ]
    assert len(scene.store.stream_rows(WORK, "s", 0, 10)) == 1


def test_a_run_is_leased_from_the_ready_row_and_from_the_stream(scene: Scene) -> None:
    first, second = enqueue_stream(scene, 2)
    claim = scene.claim()
    leases = [
        Lease(WORK, message.lane, row(message), claim.claim_id, NOW + 30_000, 1, True)
        for message in (first, second)
    ]
    scene.store.commit([Leased(claim, leases[:1], leases[1:])])
    look_again(scene)
    assert sorted(lease.row for lease in scene.store.leases()) == [row(first), row(second)]
    assert scene.store.ready(WORK, b"", None, 10) == []
    assert scene.store.counters(WORK) == Counters(leased=2, bytes=first.size + second.size)


def test_the_next_of_a_stream_is_promoted_when_the_first_is_done(scene: Scene) -> None:
    first, second = enqueue_stream(scene, 2)
    claim = scene.claim()
    lease = Lease(WORK, first.lane, row(first), claim.claim_id, NOW + 30_000, 1, True)
    scene.store.commit([Leased(claim, [lease])])
    scene.store.commit(
        [
            Completed([lease], []),
            ClaimEnded(lease.expires_ms, claim.claim_id),
            StreamLeft(WORK, "s", second.seq),
            Moved(
                "promoted",
                second.id,
                InStream(WORK, second.lane, row(second)),
                InReady(WORK, second.lane, row(second)),
                None,
            ),
            StreamSaved(WORK, "s", StreamRecord("k", 1, stream_row(second), second.seq)),
        ]
    )
    look_again(scene)
    assert scene.store.ready(WORK, b"", None, 10) == [InReady(WORK, second.lane, row(second))]
    assert scene.store.stream_rows(WORK, "s", 0, 10) == []
    assert scene.store.counters(WORK) == Counters(ready=1, bytes=second.size)


def test_a_waiting_message_of_a_stream_comes_back_with_its_name_and_is_due_last_when_held(
    scene: Scene,
) -> None:
    first, _ = enqueue_stream(scene, 2)
    claim = scene.claim()
    lease = Lease(WORK, first.lane, row(first), claim.claim_id, NOW + 30_000, 1, True)
    scene.store.commit([Leased(claim, [lease])])
    waits = InWaiting(WORK, NOW + 5000, first.lane, move_row(row(first), 0, Flag.STATE))
    state = MessageState(WORK, due_ms=NOW + 5000, attempts=1)
    record = StreamRecord("k", 2, stream_row(first), 0, (7, 9), 3)
    delayed = Moved("delayed", first.id, InLease(lease), waits, state)
    scene.store.commit([delayed, ClaimEnded(NOW + 30_000, claim.claim_id), StreamSaved(WORK, "s", record)])
    look_again(scene)
    assert scene.store.due(WORK, NOW + 5000, 10) == [waits]
    assert scene.store.last_due(WORK) == scene.store.next_due(WORK) == NOW + 5000
    assert scene.store.streams(WORK, ["s"]) == [record]
    held = InWaiting(WORK, HELD, first.lane, waits.row)
    scene.store.commit([Moved("held", first.id, waits, held, MessageState(WORK, due_ms=HELD, attempts=1))])
    assert scene.store.last_due(WORK) is None


def test_an_ended_stream_is_gone(scene: Scene) -> None:
    (only,) = enqueue_stream(scene, 1)
    scene.store.commit(
        [Moved("dropped", only.id, InReady(WORK, only.lane, row(only)), None, None), StreamEnded(WORK, "s")]
    )
    look_again(scene)
    assert scene.store.streams(WORK, ["s"]) == [None]
    assert scene.store.streams_after(WORK, "", 10) == []
    assert scene.store.counters(WORK) == Counters()


def test_the_latest_due_time_is_that_of_the_queue_asked_for(scene: Scene) -> None:
    for due_ms in (NOW + 9000, NOW + 1000, NOW + 5000):
        scene.enqueue(due_ms=due_ms)
    scene.enqueue(queue_id=OTHER, due_ms=NOW + 99_000)
    look_again(scene)
    assert scene.store.last_due(WORK) == NOW + 9000
    assert scene.store.last_due(OTHER) == NOW + 99_000


def test_forgetting_a_request_that_nobody_made_changes_nothing_else(scene: Scene) -> None:
    known, unknown = b"\x01" * 16, b"\x02" * 16
    scene.store.commit([RequestRemembered(known, b"so")])
    scene.store.commit([RequestsForgotten([unknown])])
    assert scene.store.request(known) == b"so"
    scene.store.commit([RequestsForgotten([unknown, known])])
    assert scene.store.requests_before(b"\xff" * 16, 10) == []


def test_what_a_request_answered_is_remembered_until_it_is_forgotten(scene: Scene) -> None:
    old, new = scene.ids.next(NOW, 2)
    scene.store.commit([RequestRemembered(old, b"first"), RequestRemembered(new, b"second")])
    look_again(scene)
    assert [scene.store.request(old), scene.store.request(new), scene.store.request(b"\0" * 16)] == [
        b"first",
        b"second",
        None,
    ]
    assert scene.store.requests_before(new, 10) == [old]
    assert scene.store.requests_before(b"\xff" * 16, 1) == [old]
    scene.store.commit([RequestsForgotten([old])])
    look_again(scene)
    assert scene.store.request(old) is None
    assert scene.store.requests_before(b"\xff" * 16, 10) == [new]


def test_a_commit_that_fails_leaves_no_trace_of_a_stream_or_request(scene: Scene) -> None:
    (first,) = enqueue_stream(scene, 1)
    before, request = scene.store.last_commit, scene.ids.next(NOW, 1)[0]
    with pytest.raises(FairleadError):
        scene.store.commit(
            [
                RequestRemembered(request, b"x"),
                StreamEnded(WORK, "s"),
                Enqueued(99, scene.messages(queue_id=99)),
            ]
        )
    look_again(scene)
    assert scene.store.last_commit == before
    assert scene.store.request(request) is None
    assert scene.store.streams(WORK, ["s"]) == [StreamRecord("k", 1, stream_row(first), first.seq)]


def test_a_message_that_returns_within_its_time_to_live_gets_its_row_back(scene: Scene) -> None:
    (message,) = scene.enqueue(expires_ms=NOW + 60_000)
    (lease,) = scene.lease([message])
    target = InReady(WORK, message.lane, move_row(lease.row, message.place, Flag.TTL | Flag.STATE))
    moved = Moved(
        "released",
        message.id,
        InLease(lease),
        target,
        MessageState(WORK, message.place, deliveries=1),
        NOW + 60_000,
    )
    scene.store.commit([moved, ClaimEnded(lease.expires_ms, lease.claim_id)])
    look_again(scene)
    assert scene.store.expired(WORK, NOW + 60_000, 10) == [(NOW + 60_000, message.id)]
