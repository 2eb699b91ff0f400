"""Many messages at once in the engine: large requests, and work that is taken in steps. `TEST_SIZE=10000` in the
environment makes the cases as large as in production.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, Delivery, Extend, Fail, NewMessage
from fairlead.engine import moves, operations, short_ways
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import large, settle
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Batch
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore

SIZE = int(os.environ.get("TEST_SIZE", "300"))
PART = max(20, SIZE // 10)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "CLAIM_PART", PART)
    monkeypatch.setattr(large, "SETTLE_PART", PART)
    monkeypatch.setattr(large, "COMPLETE_PART", PART)
    for module in (moves, operations, settle):
        monkeypatch.setattr(module, "STEP_MESSAGES", PART)
    monkeypatch.setattr(operations, "_PURGE_STEP", PART)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store() -> FaultyStore:
    """Without a fault; it counts."""
    return FaultyStore(DictionaryStore())


@pytest.fixture
def broker(store: FaultyStore, clock: ManualClock) -> Broker:
    broker = Broker(store, clock=clock)
    broker.create_queue("q", visibility_timeout="10s", retry="immediate")
    for start in range(0, SIZE, 70):
        some = range(start, min(SIZE, start + 70))
        broker.enqueue_many("q", [NewMessage(b"%d" % n, fairness_key=f"k{n % 3}") for n in some])
    return broker


def commits(broker: Broker, work: Callable[[], Any]) -> int:
    before = broker.engine.store.last_commit
    work()
    return broker.engine.store.last_commit - before


def claim_all(broker: Broker, **options: Any) -> list[Delivery]:
    found = broker.claim("q", limit=SIZE, **options)
    assert len({one.id for one in found}) == len(found) == SIZE
    return found


def counts(broker: Broker) -> tuple[int, int, int]:
    stats = broker.stats("q")
    return stats.ready, stats.leased, stats.dead


def test_a_large_claim_is_filled_in_parts_in_the_order_of_a_whole_one(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_ways, "MAX_MESSAGES", PART)
    found: list[Delivery] = []
    assert commits(broker, lambda: found.extend(claim_all(broker, token="t"))) == SIZE // PART
    assert [one.id for one in claim_all(broker, token="t")] == [one.id for one in found]
    assert broken_laws(broker.engine) == []
    broker.goodbye("")
    monkeypatch.setattr(large, "CLAIM_PART", SIZE)
    assert [one.id for one in claim_all(broker)] == [one.id for one in found]


@pytest.mark.parametrize("part", [PART, SIZE])
def test_a_claim_in_parts_takes_one_queue_after_the_other_and_the_next_claim_begins_with_the_other(
    broker: Broker, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "CLAIM_PART", part)
    broker.create_queue("other")
    broker.enqueue_many("other", [NewMessage(b"%d" % n) for n in range(SIZE)])
    limit = PART * 3 // 2
    claims = [[one.queue for one in broker.claim(["q", "other"], limit=limit)] for _ in range(4)]
    assert claims == [["other"] * limit, ["q"] * limit] * 2
    rest = [one.queue for one in broker.claim(["q", "other"], limit=2 * SIZE)]
    assert rest == ["other"] * (SIZE - 2 * limit) + ["q"] * (SIZE - 2 * limit)
    assert broken_laws(broker.engine) == []


def test_a_claim_settled_one_by_one_from_the_back(
    broker: Broker, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, most, reads = claim_all(broker), 0, 0
    write = store.write
    for at, delivery in enumerate(reversed(found)):
        batches, before = list[Batch](), store.reads.total()

        def watched(batch: Batch, epoch: int, commit: int, into: list[Batch] = batches) -> bool:
            into.append(batch)
            return write(batch, epoch, commit)

        monkeypatch.setattr(store, "write", watched)
        assert broker.settle([Complete(delivery)])[0].outcome == "completed"
        most = max(most, sum(len(one.puts) + len(one.deletes) for one in batches))
        reads += store.reads.total() - before
        if at % PART == 0:
            assert broken_laws(broker.engine) == []
    # The states and the counts; at the end of a chunk or a lease its own rows go too.
    assert (most <= 6, reads) == (True, 0)
    assert counts(broker) == (0, 0, 0)
    assert broken_laws(broker.engine) == []


def test_every_second_member_is_extended_and_the_others_expire(broker: Broker, clock: ManualClock) -> None:
    found = claim_all(broker)
    assert commits(broker, lambda: broker.settle([Extend(one, "1h") for one in found[::2]])) > 1
    clock.advance(ms=10_000)
    assert counts(broker) == (SIZE // 2, SIZE // 2, 0)
    results = broker.settle([Complete(one) for one in found])
    assert [one.outcome for one in results] == ["completed", "lost_lease"] * (SIZE // 2)
    assert broken_laws(broker.engine) == []


def test_many_leases_that_expire_at_once_end_in_steps_and_in_order(
    broker: Broker, clock: ManualClock
) -> None:
    found = claim_all(broker)
    assert commits(broker, lambda: clock.advance(ms=10_000)) >= SIZE // PART
    again = claim_all(broker)
    assert [one.attempts for one in again] == [1] * SIZE
    first = [one.payload for one in found if one.fairness_key == "k0"]
    assert [one.payload for one in again if one.fairness_key == "k0"] == first
    assert broken_laws(broker.engine) == []


def test_many_leases_of_one_message_that_expire_at_once_take_few_commits_and_one_read(
    broker: Broker, store: FaultyStore, clock: ManualClock
) -> None:
    found = [one for _ in range(SIZE) for one in broker.claim("q")]
    before = store.reads.total()
    # One transaction more finds that nothing is left.
    assert commits(broker, lambda: clock.advance(ms=10_000)) <= SIZE // PART + 1
    assert store.reads.total() - before <= 1
    assert counts(broker) == (SIZE, 0, 0)
    assert [one.outcome for one in broker.settle([Complete(one) for one in found])] == ["lost_lease"] * SIZE
    assert [one.id for one in claim_all(broker)] == [one.id for one in found]
    assert broken_laws(broker.engine) == []


def test_of_a_run_only_the_first_message_fails_also_where_a_step_ends_in_the_run(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "CLAIM_PART", SIZE)
    broker = Broker(DictionaryStore(), clock=clock)
    broker.create_queue("q", visibility_timeout="10s", retry="immediate", retry_in_stream="immediate")
    broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(SIZE)])
    claim_all(broker, max_per_stream=SIZE)
    clock.advance(ms=10_000)
    found = claim_all(broker, max_per_stream=SIZE)
    assert [one.attempts for one in found] == [1] + [0] * (SIZE - 1)
    assert broken_laws(broker.engine) == []


def test_failures_of_a_large_settle_all_count_once(broker: Broker) -> None:
    found = claim_all(broker)
    results = broker.settle([*[Fail(one) for one in found], *[Complete(one) for one in found]])
    assert [one.outcome for one in results] == ["retry"] * SIZE + ["lost_lease"] * SIZE
    assert counts(broker) == (SIZE, 0, 0)
    assert broken_laws(broker.engine) == []


def test_a_goodbye_releases_in_steps_and_in_order(broker: Broker) -> None:
    found = claim_all(broker, consumer="c")
    done: list[int] = []
    assert commits(broker, lambda: done.append(broker.goodbye("c"))) >= SIZE // PART
    assert done == [SIZE]
    assert [one.id for one in claim_all(broker)] == [one.id for one in found]
    assert broken_laws(broker.engine) == []


def test_purge_redrive_and_delete_across_chunks(broker: Broker) -> None:
    found = claim_all(broker)
    broker.settle([Fail(one, dead=True) for one in found[::2]])
    broker.settle([Fail(one) for one in found[1::2]])
    assert commits(broker, lambda: broker.purge("q")) >= SIZE // 2 // PART
    assert counts(broker) == (0, 0, SIZE // 2)
    assert commits(broker, lambda: broker.redrive("q")) >= SIZE // 2 // PART
    assert counts(broker) == (SIZE // 2, 0, 0)
    assert broken_laws(broker.engine) == []
    broker.delete_queue("q")
    assert broker.queues() == []
    assert broken_laws(broker.engine) == []
