"""The laws themselves: a sound store breaks none, and each kind of unsoundness is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fairlead.model.clock_mark import BucketLevel
from fairlead.model.facts import ClaimEnded, InLease, Moved
from fairlead.model.lane import DEAD_LETTER_LANE, first_place, row_id
from fairlead.model.message import MessageState
from fairlead.model.queue import Counters
from fairlead.store.laws import check_laws
from fairlead.store.memory import MemoryStore, _Data
from fairlead.store.rocks import RocksStore
from fairlead.store.rocks.codec import COUNTERS, V1, VERSION
from fairlead.store.rocks.layout import queue_key, timed_key
from fairlead.store.verify import verify
from tests.conformance.scene import (
    DEAD,
    NOW,
    OTHER,
    WORK,
    MemoryFactory,
    RocksFactory,
    Scene,
    buried,
    in_done,
    in_ready,
    retried,
    row,
)
from tests.conformance.test_damage import write_raw


@pytest.fixture
def lively() -> Scene:
    """One of everything: ready, waiting, leased, retried, dead, done; with times to live and both kinds of
    dedup.
    """
    return fill(Scene(MemoryFactory()))


def fill(scene: Scene) -> Scene:
    scene.make_queues()
    scene.enqueue(3, expires_ms=NOW + 50)
    scene.enqueue(dedup_key="window", dedup_until_ms=NOW + 9)
    scene.enqueue(dedup_key="live", live_dedup=True)
    scene.enqueue(due_ms=NOW + 70)
    failed, dead = scene.lease(scene.enqueue(2))
    scene.store.commit(
        [
            retried(failed, first_place(50)),
            buried(dead, first_place(51)),
            ClaimEnded(failed.expires_ms, failed.claim_id),
        ]
    )
    scene.lease(scene.enqueue(2, key="other"))
    (kept,) = scene.enqueue()
    (lease,) = scene.lease([kept])
    done = Moved(
        "completed", kept.id, InLease(lease), in_done(kept, NOW + 3), MessageState(WORK, done_ms=NOW + 3)
    )
    scene.store.commit([done, ClaimEnded(lease.expires_ms, lease.claim_id)])
    return scene


def data_of(scene: Scene) -> _Data:
    assert isinstance(scene.store, MemoryStore)
    return scene.store._data


def test_a_sound_store_breaks_no_law(lively: Scene) -> None:
    assert check_laws(lively.store) == []


def first(table: object) -> object:
    return table.order[0]  # type: ignore[attr-defined]


def done_again(data: _Data, done_ms: int) -> None:
    spot = data.done.rows[first(data.done)]
    data.done.put((WORK, done_ms, row_id(spot.row)), replace(spot, done_ms=done_ms))


UNSOUND: list[tuple[str, Callable[[_Data], object], str]] = [
    ("a message in no place", lambda d: d.ready.remove(first(d.ready)), "in no place"),
    ("a row without a message", lambda d: d.messages.remove(d.messages.order[0]), "not stored"),
    ("a lease without a message", lambda d: d.messages.remove(first(d.leases)), "not stored"),
    (
        "a message in two places",
        lambda d: d.ready.put((WORK, b"x", 9), d.ready.rows[first(d.ready)]),
        "second place",
    ),
    (
        "a row at another place than its record",
        lambda d: d.states.put(first(d.states), MessageState(WORK, place=3)),
        "its record says",
    ),
    (
        "a state nobody knows of",
        lambda d: d.states.put(first(d.messages), MessageState(WORK, place=first_place(2))),
        "its row says otherwise",
    ),
    (
        "a counter that lies",
        lambda d: d.counters.put(WORK, Counters(1, 2, 3, 0, 4)),
        "counters of queue id 1",
    ),
    ("a lease without its group", lambda d: d.claims.remove(first(d.claims)), "has no group"),
    (
        "a group without a lease",
        lambda d: d.claims.put((NOW + 5, 99), d.claims.rows[first(d.claims)]),
        "without a lease",
    ),
    ("a lost time to live", lambda d: d.ttl.remove(first(d.ttl)), "no time-to-live row"),
    (
        "a time to live of nobody",
        lambda d: d.ttl.put((WORK, NOW, b"\1" * 16), None),
        "is gone, but its time to live",
    ),
    ("a lost live key", lambda d: d.dedup.remove((WORK, "live")), "should hold dedup key"),
    ("a window without its row", lambda d: d.dedup.remove((WORK, "window")), "without its row"),
    ("a done message in no place", lambda d: d.done.remove(first(d.done)), "in no place"),
    ("a done message that is done twice", lambda d: done_again(d, NOW + 4), "second place"),
    (
        "a done row without a message",
        lambda d: d.messages.remove(row_id(d.done.rows[first(d.done)].row)),
        "not stored",
    ),
    (
        "done at another time than its record",
        lambda d: d.states.put(first(d.done)[2], MessageState(WORK, done_ms=NOW)),
        "its record says done",
    ),
    (
        "done, and ready by its place",
        lambda d: d.states.put(first(d.done)[2], MessageState(WORK, place=7, done_ms=NOW + 3)),
        "its record says",
    ),
    (
        "done and uncounted",
        lambda d: d.counters.put(WORK, replace(d.counters.rows[WORK], done=0)),
        "counters of queue id 1",
    ),
    (
        "more tokens than the burst",
        lambda d: d.buckets.put("t", BucketLevel("t", 2.0, NOW, 1.0, 1.0)),
        "holds 2.0 tokens",
    ),
    ("messages in a queue that is gone", lambda d: d.queues.remove(WORK), "in no place"),
]


@pytest.mark.parametrize(("unsound", "told"), [pytest.param(*rest, id=name) for name, *rest in UNSOUND])
def test_what_is_unsound_is_told(lively: Scene, unsound: Callable[[_Data], object], told: str) -> None:
    unsound(data_of(lively))
    assert any(told in problem for problem in check_laws(lively.store))


def test_verify_finds_a_counter_that_lies(rocks: RocksFactory) -> None:
    fill(Scene(rocks)).store.close()
    assert verify(rocks.path).ok
    write_raw(rocks.path, "counters", queue_key(WORK), COUNTERS.pack(VERSION, 1, 1, 1, 0, 1))
    assert any("counters of queue id 1" in problem for problem in verify(rocks.path).problems)


@pytest.mark.parametrize("family", ["ttl", "dedup_end", "waiting", "done"])
def test_verify_finds_rows_of_a_queue_that_never_was(rocks: RocksFactory, family: str) -> None:
    fill(Scene(rocks)).store.close()
    write_raw(rocks.path, family, timed_key(77, NOW, b"\1" * 16), V1 + b"\0" * 8)
    assert any(
        f"{family} " in problem and "queue id 77" in problem for problem in verify(rocks.path).problems
    )


def test_verify_finds_a_state_without_a_message(rocks: RocksFactory) -> None:
    fill(Scene(rocks)).store.close()
    write_raw(rocks.path, "state", b"\1" * 16, V1 + b"\x91\x01")
    assert any("has no message" in problem for problem in verify(rocks.path).problems)


def test_both_stores_answer_alike_after_the_same_facts(rocks: RocksFactory) -> None:
    disk, memory = fill(Scene(rocks)), fill(Scene(MemoryFactory()))
    assert isinstance(disk.store, RocksStore)
    for queue_id in (WORK, DEAD, OTHER):
        for ask in ("counters", "next_due", "next_expiry", "next_dedup_end", "next_done"):
            assert getattr(disk.store, ask)(queue_id) == getattr(memory.store, ask)(queue_id)
        assert disk.store.ready(queue_id, b"", None, 100) == memory.store.ready(queue_id, b"", None, 100)
        assert disk.store.done(queue_id, None, NOW + 99, 9) == memory.store.done(queue_id, None, NOW + 99, 9)
    assert disk.store.ready(DEAD, DEAD_LETTER_LANE, None, 9) == memory.store.ready(DEAD, b"", None, 9)
    assert disk.store.leases() == memory.store.leases()
    disk.store.close()


def test_a_row_is_ready_where_its_message_says(lively: Scene) -> None:
    (message,) = lively.enqueue(queue_id=OTHER)
    assert lively.store.ready(OTHER, b"", None, 9) == [in_ready(message)]
    assert lively.store.rows_after(OTHER, message.lane, 0, 9) == [row(message)]
