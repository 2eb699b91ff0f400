"""Staged writes of the engine: steps, reopenings, and a fault at each step."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from fairlead import Complete, NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import publish_steps, staging
from fairlead.errors import QueueFull, StagedChunkMissing, StoreFull
from fairlead.model.limits import PUBLISHED_KEPT_MS
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Table
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore, Killed
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle
from fairlead.verbs.staging import StagingDiscard, StagingList, StagingPublish, StagingStage


class Writer:
    def __init__(self, store: Any = None, **options: Any) -> None:
        self.clock = ManualClock()
        self.engine = Engine(store or DictionaryStore(), clock=self.clock)
        self.engine.do(CreateQueue("q", options))

    def do(self, request: Any) -> Any:
        return self.engine.do(request)

    def stage(self, chunk: str, payloads: list[bytes], token: str = "w", **options: Any) -> None:
        self.do(StagingStage(token, chunk, "q", [NewMessage(payload) for payload in payloads], **options))

    def publish(self, *chunks: str, token: str = "w") -> tuple[str, int]:
        result = self.do(StagingPublish(token, "q", chunks))
        return result.outcome, result.count

    def take_all(self) -> list[bytes]:
        found = self.do(Claim("q", 100_000))
        self.do(Settle([Complete(delivery) for delivery in found]))
        return [delivery.payload for delivery in found]

    def rows(self, *tables: Table) -> int:
        return sum(len(self.engine.store.scan(table, limit=10_000)) for table in tables)

    def reopen(self, store: Any) -> None:
        self.engine.stop_working()
        self.engine = Engine(store, clock=self.clock)


STAGED = (Table.STAGED, Table.STAGED_PARTS, Table.PUBLISHING, Table.PAGES)


def large(count: int, size: int = 3000) -> list[bytes]:
    """More than fits in the head of a chunk."""
    return [b"%d" % n + b"." * size for n in range(count)]


def test_payloads_stay_in_the_pages_where_they_were_staged() -> None:
    writer = Writer()
    writer.stage("a", large(20))
    before = writer.engine.store.scan(Table.PAGES, limit=100)
    assert len(before) > 1
    writer.publish("a")
    assert writer.engine.store.scan(Table.PAGES, limit=100) == before
    writer.reopen(writer.engine.store)
    assert writer.take_all() == large(20)
    assert broken_laws(writer.engine) == []
    assert writer.rows(*STAGED, Table.CHUNKS) == 0


def test_a_chunk_that_is_staged_again_replaces_the_first() -> None:
    writer = Writer()
    writer.stage("a", large(20))
    writer.stage("a", [b"second"])
    assert writer.rows(Table.PAGES) == 0
    writer.publish("a")
    assert writer.take_all() == [b"second"]


def test_tokens_and_chunks_whose_names_run_together_are_told_apart() -> None:
    writer = Writer()
    writer.stage("c", [b"of ab"], token="ab")
    writer.stage("bc", [b"of a"], token="a")
    writer.reopen(writer.engine.store)
    assert writer.publish("bc", token="a") == ("published", 1)
    assert writer.take_all() == [b"of a"]
    assert [write.token for write in writer.do(StagingList()) if not write.published] == ["ab"]
    assert writer.publish("c", token="ab") == ("published", 1)
    assert writer.take_all() == [b"of ab"]
    assert broken_laws(writer.engine) == []


def test_a_large_write_keeps_its_order() -> None:
    writer = Writer()
    payloads = [b"%d" % n for n in range(9_000)]
    writer.stage("b", payloads[8_999:])
    writer.stage("a", payloads[:8_999])
    assert writer.publish("a", "b") == ("published", 9_000)
    assert broken_laws(writer.engine) == []
    assert writer.take_all() == payloads


def test_a_duplicate_is_left_out_and_its_page_goes_with_its_neighbours() -> None:
    writer = Writer()
    writer.do(Enqueue("q", b"first", dedup_key="d"))
    messages = [NewMessage(payload, dedup_key=key) for payload, key in zip(large(8), "adbdaefd", strict=True)]
    writer.do(StagingStage("w", "a", "q", messages))
    writer.publish("a")
    assert broken_laws(writer.engine) == []
    assert writer.take_all() == [b"first", *[large(8)[at] for at in (0, 2, 5, 6)]]
    assert writer.rows(*STAGED, Table.CHUNKS) == 0


def test_a_write_of_duplicates_leaves_nothing_behind() -> None:
    writer = Writer()
    writer.do(Enqueue("q", b"first", dedup_key="d"))
    writer.do(StagingStage("w", "a", "q", [NewMessage(payload, dedup_key="d") for payload in large(8)]))
    writer.publish("a")
    assert writer.take_all() == [b"first"]
    assert writer.rows(*STAGED) == 0


def test_a_write_that_nobody_publishes_goes_with_its_youngest_chunk() -> None:
    writer = Writer()
    writer.stage("a", large(9), ttl="10s")
    writer.clock.advance(ms=9_000)
    writer.stage("b", [b"x"], ttl="10s")
    writer.clock.advance(ms=9_999)
    assert len(writer.do(StagingList())) == 1
    writer.clock.advance(ms=1)
    assert writer.do(StagingList()) == []
    assert writer.rows(*STAGED) == 0


def test_a_published_write_is_remembered_for_seven_days_over_a_reopening() -> None:
    writer = Writer()
    writer.stage("a", [b"x"])
    assert writer.publish("a") == ("published", 1)
    writer.reopen(writer.engine.store)
    writer.clock.advance(ms=PUBLISHED_KEPT_MS - 1)
    assert writer.publish("a") == ("already", 1)
    assert [write.published for write in writer.do(StagingList())] == [True]
    writer.clock.advance(ms=1)
    assert writer.rows(Table.PUBLISHED, Table.PUBLISHED_END) == 0
    with pytest.raises(StagedChunkMissing):
        writer.publish("a")


def test_a_discard_drops_every_row() -> None:
    writer = Writer()
    for chunk in "abcde":
        writer.stage(chunk, large(9))
    assert writer.do(StagingDiscard("w", "q")) == 5
    assert writer.rows(*STAGED) == 0


def test_room_for_a_write_under_way_is_kept_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_steps, "STEP_MESSAGES", 2)
    store = FaultyStore(DictionaryStore())
    writer = Writer(store, max_messages=5)
    for chunk in "ab":
        writer.stage(chunk, [b"x", b"y"])
    store.arm(2, "fail", only=("write",))
    with pytest.raises(StoreFull):
        writer.publish("a", "b")
    assert writer.do(Stats("q")).ready == 2
    writer.do(Enqueue("q", b"fifth"))
    with pytest.raises(QueueFull):
        writer.do(Enqueue("q", b"sixth"))
    writer.engine.run_due()
    assert writer.do(Stats("q")).ready == 5


# A fault at each step


def work(writer: Writer) -> None:
    for at, chunk in enumerate("abc"):
        writer.stage(chunk, large(4, size=6000 * (at % 2)))
    writer.stage("dead", [b"bad"], dead=("validation_failure", "no"))
    writer.publish("a", "b", "dead")
    writer.stage("x", large(5, size=6000), token="other")
    writer.do(StagingDiscard("other", "q"))


@pytest.mark.parametrize("fault", ["fail", "die_before", "die_after", "power_cut"])
def test_a_fault_at_each_step_publishes_all_or_nothing_and_once(
    fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_steps, "STEP_MESSAGES", 3)
    monkeypatch.setattr(publish_steps, "STEP_CHUNKS", 1)
    for step in range(1, 300):
        store = FaultyStore(DictionaryStore(), forgets=True)
        writer = Writer(store)
        store.sync()
        store.arm(step, fault)
        try:
            work(writer)
        except (StoreFull, Killed):
            if fault != "fail":
                writer.reopen(store.inner)
            assert broken_laws(writer.engine) == [], f"{fault} at step {step}"
            writer.engine.run_due()
            assert broken_laws(writer.engine) == [], f"{fault} at step {step}"
            stats = writer.do(Stats("q"))
            assert (stats.ready, stats.dead) in ((0, 0), (8, 1)), f"{fault} at step {step}"
            work(writer)
        has_struck = store.struck
        store.arm(0, "fail")
        assert writer.take_all() == large(4, size=0) + large(4, size=6000), f"{fault} at step {step}"
        assert writer.do(Stats("q")).dead == 1
        assert broken_laws(writer.engine) == []
        writer.clock.advance(ms=2 * 24 * 3600 * 1000)
        assert writer.rows(*STAGED) == 0, f"{fault} at step {step}"
        if not has_struck:
            break
    assert 10 < step < 299


# A chunk that is staged in steps


def test_a_chunk_of_several_parts_is_staged_in_short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PART_MESSAGES", 3)
    writer = Writer()
    before = writer.engine.store.last_commit
    writer.stage("a", large(10))
    assert writer.engine.store.last_commit - before == 5
    assert [write.messages for write in writer.do(StagingList())] == [10]
    assert broken_laws(writer.engine) == []
    writer.publish("a")
    assert writer.take_all() == large(10)
    assert writer.rows(*STAGED, Table.CHUNKS) == 0


def test_a_chunk_is_replaced_at_once_by_one_that_is_staged_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PART_MESSAGES", 2)
    writer = Writer()
    writer.stage("a", [b"first"])
    stage_part = staging.stage_part

    def look(*arguments: Any) -> None:
        stage_part(*arguments)
        assert [write.messages for write in writer.do(StagingList())] == [1]

    monkeypatch.setattr(staging, "stage_part", look)
    writer.stage("a", large(5))
    writer.publish("a")
    assert writer.take_all() == large(5)
    assert writer.rows(*STAGED) == 0


def test_a_fault_while_a_chunk_is_staged_in_steps_leaves_the_chunk_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "PART_MESSAGES", 2)
    found = set()
    for fault in ("fail", "die_before", "die_after"):
        for step in range(1, 20):
            store = FaultyStore(DictionaryStore(), forgets=True)
            writer = Writer(store)
            writer.stage("a", [b"first"])
            store.arm(step, fault, only=("write",))
            with suppress(StoreFull, Killed):
                writer.stage("a", large(5))
            if not store.struck:
                break
            writer.reopen(store.inner)
            assert broken_laws(writer.engine) == [], f"{fault} at step {step}"
            writer.publish("a")
            messages = writer.take_all()
            assert messages in ([b"first"], large(5)), f"{fault} at step {step}"
            found.add((fault, len(messages)))
            writer.clock.advance(ms=601_000)
            assert writer.rows(Table.STAGED, Table.STAGED_PARTS, Table.PAGES) == 0, f"{fault} at step {step}"
        assert step == 5
    assert found == {("fail", 1), ("die_before", 1), ("die_after", 1), ("die_after", 5)}


def test_a_chunk_that_has_no_room_is_refused_before_its_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PART_MESSAGES", 2)
    writer = Writer(max_messages=4)
    before = writer.engine.store.last_commit
    with pytest.raises(QueueFull):
        writer.stage("a", large(5))
    assert writer.engine.store.last_commit == before
