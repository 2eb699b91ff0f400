"""Commits: all or nothing, numbered, durable; and what a life of a store is."""

from __future__ import annotations

import pytest

from fairlead.errors import BrokenInvariant, BrokerClosed
from fairlead.model.facts import (
    ClaimEnded,
    Completed,
    ConfigSet,
    Enqueued,
    InReady,
    Leased,
    Moved,
    QueueSaved,
    QueueUnlinked,
)
from fairlead.model.lane import first_place
from fairlead.model.message import MessageState
from fairlead.model.queue import Counters, QueueConfig, QueueRecord
from fairlead.store.port import Store
from tests.conformance.scene import NOW, WORK, Scene, in_ready, leased


def everything(store: Store) -> tuple[object, ...]:
    queue_ids = [queue.queue_id for queue in store.queues()]
    ids = store.ids_between(b"\0" * 16, b"\xff" * 16, 1000)
    return (
        store.last_commit,
        store.last_queue_id,
        store.queues(),
        store.config(),
        store.intents(),
        store.messages(ids),
        store.states(ids),
        store.leases(),
        store.claims(),
        [
            (
                store.counters(q),
                store.ready(q, b"", None, 1000),
                list(store.lanes(q)),
                store.waiting(q, None, 1000),
            )
            for q in queue_ids
        ],
        [
            (store.next_due(q), store.next_expiry(q), store.next_dedup_end(q), store.dedup(q, ["d"]))
            for q in queue_ids
        ],
    )


def test_commits_are_numbered_without_gaps_across_lives(scene: Scene) -> None:
    before = scene.store.last_commit
    assert [scene.store.commit([ConfigSet("a", str(n))]) for n in range(3)] == [
        before + 1,
        before + 2,
        before + 3,
    ]
    scene.reopen()
    assert scene.store.last_commit == before + 3
    scene.crash()
    assert scene.store.commit([]) == before + 4


def test_each_life_has_the_next_boot_number(scene: Scene) -> None:
    assert scene.store.boot == 1
    scene.reopen()
    assert scene.store.boot == 2
    scene.crash()
    assert scene.store.boot == 3


BAD_FACTS = [
    pytest.param(lambda scene: "not a fact", id="something that is no fact"),
    pytest.param(lambda scene: Enqueued(77, scene.messages(2, queue_id=77)), id="an unknown queue"),
    pytest.param(lambda scene: QueueUnlinked(77, "nobody"), id="unlinking an unknown queue"),
    pytest.param(
        lambda scene: Completed([leased(m, scene.claim(), NOW) for m in scene.messages(2)], []),
        id="completing what is not leased",
    ),
    pytest.param(lambda scene: Moved("dropped", b"\1" * 16, "nowhere", None, None), id="a spot that is none"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("bad_fact", BAD_FACTS)
def test_a_failing_fact_in_the_middle_of_a_commit_leaves_nothing_of_it(scene: Scene, bad_fact) -> None:  # type: ignore[no-untyped-def]
    ready, other = scene.enqueue(2, expires_ms=NOW + 9)
    scene.enqueue(dedup_key="d", dedup_until_ms=NOW + 9)
    before = everything(scene.store)
    claim = scene.claim()
    facts = [
        QueueSaved(QueueRecord(50, "fifty", QueueConfig(), NOW)),
        Enqueued(WORK, scene.messages(3, dedup_key="d", dedup_until_ms=NOW + 99)),
        Leased(claim, [leased(ready, claim, NOW + 5)]),
        Moved("dropped", other.id, in_ready(other), None, None, NOW + 9),
        ConfigSet("a", "b"),
        bad_fact(scene),
        ConfigSet("c", "d"),
    ]
    with pytest.raises((BrokenInvariant, TypeError, AttributeError)):
        scene.store.commit(facts)
    assert everything(scene.store) == before
    scene.reopen()
    assert everything(scene.store) == before
    assert scene.store.commit([ConfigSet("a", "b")]) == before[0] + 1


def test_facts_of_one_commit_build_on_each_other(scene: Scene) -> None:
    (message,) = scene.messages()
    claim = scene.claim()
    lease = leased(message, claim, NOW + 5)
    scene.store.commit(
        [
            Enqueued(WORK, [message]),
            Leased(claim, [lease]),
            Completed([lease], []),
            ClaimEnded(NOW + 5, claim.claim_id),
        ]
    )
    assert scene.store.counters(WORK) == Counters()
    assert scene.store.messages([message.id]) == [None]


def test_a_place_can_be_left_and_taken_in_one_commit(scene: Scene) -> None:
    (message,) = scene.enqueue()
    (second,) = scene.enqueue()
    new = InReady(WORK, message.lane, message.row(first_place(9), 1))
    state = MessageState(WORK, place=first_place(9))
    scene.store.commit(
        [
            Moved("released", message.id, in_ready(message), new, state),
            Moved("dropped", second.id, in_ready(second), None, None),
        ]
    )
    assert scene.store.ready(WORK, b"", None, 10) == [new]


def test_everything_answered_is_answered_alike_after_a_reopen_and_after_a_crash(scene: Scene) -> None:
    scene.enqueue(5, key="a", expires_ms=NOW + 7)
    scene.enqueue(2, due_ms=NOW + 8)
    scene.lease(scene.enqueue(3))
    before = everything(scene.store)
    scene.reopen()
    assert everything(scene.store) == before
    scene.crash()
    assert everything(scene.store) == before


def test_a_commit_may_carry_the_epochs_of_its_queues(scene: Scene) -> None:
    epoch = scene.store.acquire(WORK)
    assert scene.store.commit([ConfigSet("a", "b")], {WORK: epoch}) == scene.store.last_commit


def test_a_synced_commit_can_be_synced_again(scene: Scene) -> None:
    commit = scene.store.commit([ConfigSet("a", "b")])
    scene.store.sync(commit)
    scene.store.sync(commit)
    assert scene.store.config() == {"a": "b"}


def test_a_closed_store_takes_no_commits_and_closes_again_quietly(scene: Scene) -> None:
    old = scene.store
    scene.reopen()
    with pytest.raises(BrokerClosed):
        old.commit([ConfigSet("a", "b")])
    old.close()


def test_an_empty_batch_changes_nothing_but_the_commit_number(scene: Scene) -> None:
    before = scene.store.last_commit
    scene.store.commit([Enqueued(WORK, []), Completed([], [])])
    assert scene.store.last_commit == before + 1
    assert scene.store.counters(WORK) == Counters()
