"""Numbered claims of the engine: steps, reopenings, and a fault at each step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Release, Start
from fairlead.decide.slices import slice_of
from fairlead.engine import consumer_steps
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import consumer_claims, consumer_read
from fairlead.errors import ClaimClosed, ClaimReleased, InvalidRequest, StoreFull
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Row, Table
from fairlead.testing import ManualClock
from fairlead.testing.faulty import READS, FaultyStore, Killed
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import (
    ConsumersBeginSlice,
    ConsumersCeiling,
    ConsumersChoose,
    ConsumersClaim,
    ConsumersClose,
    ConsumersDrop,
    ConsumersHeartbeat,
    ConsumersList,
    ConsumersRead,
    ConsumersRecord,
    ConsumersRegister,
    ConsumersRelease,
    ConsumersShow,
)
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.inspect import Stats
from fairlead.verbs.operate import Drop
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Ack, Goodbye, Settle


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_claims, "PIECE", 4)
    monkeypatch.setattr(consumer_read, "PAGE_MESSAGES", 3)
    monkeypatch.setattr(consumer_steps, "OUTCOMES_STEP", 2)
    monkeypatch.setattr(consumer_steps, "RELEASE_STEP", 3)
    monkeypatch.setattr(consumer_steps, "_ROWS_STEP", 2)


class Reader:
    """Consumer `etl` of queue `q`, on an engine that can be opened again."""

    def __init__(self, store: Any = None, messages: int = 20, **options: Any) -> None:
        self.clock = ManualClock()
        self.engine = Engine(store or DictionaryStore(), clock=self.clock)
        self.engine.do(CreateQueue("q"))
        keys = [f"k{n * 3 // messages}" for n in range(messages)]
        self.engine.do(EnqueueMany("q", [NewMessage(b"%d" % n, fairness_key=k) for n, k in enumerate(keys)]))
        self.generation = self.do(ConsumersRegister("etl", "q", **options)).generation

    def do(self, request: Any) -> Any:
        return self.engine.do(request)

    def claim(self, number: int = 1, **options: Any) -> int:
        return int(self.do(ConsumersClaim("etl", "q", self.generation, number, **options)).count)

    def read(self, number: int = 1, **options: Any) -> list[Delivery]:
        pages = self.do(ConsumersRead("etl", "q", self.generation, number, **options))
        return [delivery for page in pages for delivery in page]

    def record(self, *items: Any, part: str = "") -> None:
        self.do(ConsumersRecord("etl", "q", self.generation, 1, items, part))

    def close(self, number: int = 1) -> dict[str, int]:
        settled: dict[str, int] = self.do(ConsumersClose("etl", "q", self.generation, number)).settled
        return settled

    def counts(self) -> tuple[int, int, int, int]:
        stats = self.do(Stats("q"))
        return stats.ready, stats.waiting, stats.leased, stats.dead

    def reopen(self, store: Any) -> None:
        self.engine.stop_working()
        self.engine = Engine(store, clock=self.clock)


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in deliveries]


@pytest.mark.usefixtures("small_steps")
def test_a_claim_reads_in_the_same_order_after_a_reopening() -> None:
    data = DictionaryData()
    reader = Reader(DictionaryStore(data))
    assert reader.claim(limit=15) == 15
    before = payloads(reader.read())
    assert before != sorted(before, key=int)
    reader.reopen(DictionaryStore(data))
    assert payloads(reader.read()) == before
    assert payloads(reader.read(after=reader.read()[6].raw_id)) == before[7:]
    assert broken_laws(reader.engine) == []


def test_slices_share_a_claim_without_overlap() -> None:
    reader = Reader()
    reader.claim()
    parts = [payloads(reader.read(slice=at, slices=3)) for at in range(3)]
    assert sorted(payload for part in parts for payload in part) == sorted(payloads(reader.read()))
    assert all(parts)


@pytest.mark.usefixtures("small_steps")
def test_a_claim_ends_with_the_message_that_reaches_its_bytes() -> None:
    reader = Reader()
    reader.claim(max_bytes=9)
    sizes = [len(payload) for payload in payloads(reader.read())]
    assert sum(sizes[:-1]) < 9 <= sum(sizes)
    assert broken_laws(reader.engine) == []


def test_a_claim_takes_nothing_behind_its_ceiling() -> None:
    reader = Reader(messages=3)
    ceiling = reader.do(ConsumersCeiling("etl", "q", reader.generation))
    reader.do(EnqueueMany("q", [NewMessage(b"later")]))
    assert reader.claim(up_to=ceiling) == 3


@pytest.mark.usefixtures("small_steps")
def test_a_reader_on_its_way_is_told_that_the_claim_is_over() -> None:
    reader = Reader()
    reader.claim()
    pages = reader.do(ConsumersRead("etl", "q", reader.generation, 1))
    assert len(next(pages)) == 3
    reader.close()
    with pytest.raises(ClaimClosed):
        next(pages)


def test_a_claim_closed_between_the_look_and_the_read_is_over_for_its_reader() -> None:
    data = DictionaryData()
    store = FaultyStore(DictionaryStore(data))
    reader = Reader(store, messages=600)
    reader.do(EnqueueMany("q", [NewMessage(b"x" * 1000) for _ in range(40)]))
    reader.claim(limit=640)
    # A reopened engine has no payloads of a large chunk in memory.
    reader.reopen(store)
    closed = []
    store.on_delay = lambda method: closed.append(reader.close())
    store.arm(1, "delay", only=("get_many",))
    with pytest.raises(ClaimClosed):
        reader.read()
    assert closed == [{"completed": 640}]


@pytest.mark.usefixtures("small_steps")
def test_a_consumer_that_is_away_lets_go_of_its_claim_and_the_timer_does_the_steps() -> None:
    reader = Reader(ttl="1m")
    reader.claim()
    reader.clock.advance(ms=59_000)
    reader.do(ConsumersHeartbeat("etl", "q", reader.generation))
    reader.clock.advance(ms=59_999)
    assert reader.counts() == (0, 0, 20, 0)
    reader.clock.advance(ms=1)
    assert reader.counts() == (20, 0, 0, 0)
    assert broken_laws(reader.engine) == []
    with pytest.raises(ClaimReleased, match="not seen for 1m"):
        reader.close()
    assert reader.claim(2) == 20


def test_time_and_settles_pass_a_numbered_claim_by() -> None:
    reader = Reader(messages=3, ttl="365d")
    reader.claim()
    reader.clock.advance(ms=30 * 24 * 3600 * 1000)
    reader.engine.run_due()
    assert reader.counts() == (0, 0, 3, 0)
    assert reader.engine.memory.expiries == []


def test_outcomes_under_a_part_count_when_it_is_chosen() -> None:
    reader = Reader(messages=3)
    reader.claim()
    first, second, _ = reader.read()
    reader.record(Fail(first, dead=True), part="a")
    reader.record(Fail(second, dead=True), part="b")
    reader.do(ConsumersChoose("etl", "q", reader.generation, 1, ["b"]))
    assert reader.close() == {"completed": 2, "dead": 1}
    assert [one.payload for one in reader.do(Claim("q.dlq", 5))] == [second.payload]


def test_a_member_of_another_claim_spoils_the_call() -> None:
    reader = Reader(messages=3)
    reader.claim(limit=2)
    (plain,) = reader.do(Claim("q", 5))
    with pytest.raises(InvalidRequest, match="about messages of claim 1"):
        reader.record(Complete(reader.read()[0]), Complete(plain))
    assert reader.engine.memory.consumers.outcomes == {}


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_what_is_claimed_recorded_and_closed_survives_a_power_cut(durability: Any) -> None:
    store = FaultyStore(DictionaryStore(), forgets=True)
    reader = Reader(store, messages=4)
    store.sync()
    reader.engine = Engine(store, clock=reader.clock, durability=durability)
    for act in (reader.claim, lambda: reader.record(Release(reader.read()[0])), reader.close):
        act()
        before, record = reader.counts(), reader.engine.memory.records[Table.CONSUMERS]
        store.cut_power()
        store = FaultyStore(store.inner, forgets=True)
        reader.engine = Engine(store, clock=reader.clock, durability=durability)
        assert reader.counts() == before
        assert reader.engine.memory.records[Table.CONSUMERS] == record
        assert broken_laws(reader.engine) == []


def test_nobody_else_settles_or_moves_a_member() -> None:
    reader = Reader(messages=2)
    reader.claim()
    members = reader.read()
    why = "in claim 1 of consumer 'etl': `fairlead consumer release q etl` lets go of it"
    for item in (Complete, Fail, Release, Extend, Start):
        (result,) = reader.do(Settle([item(members[0])]))
        assert (result.outcome, result.error) == ("invalid", why)
    assert reader.do(Ack("q", members[0].id)).error == why
    assert dict(reader.do(Drop("q", [members[1].id])).skipped) == {members[1].id: why}
    assert reader.do(Goodbye("etl")) == 0
    assert payloads(reader.read()) == payloads(members)


def test_only_a_member_that_was_begun_counts_as_delivered_when_it_goes_back() -> None:
    reader = Reader(messages=2, default_outcome="release")
    reader.claim()
    begun, _ = reader.read()
    reader.record(Start(begun))
    assert reader.close() == {"released": 2}
    assert [one.deliveries for one in reader.do(Claim("q", 2))] == [2, 1]


def test_a_worker_that_lags_behind_changes_no_carry() -> None:
    reader = Reader(messages=1)
    reader.claim()
    (member,) = reader.read()
    reader.record(Extend(member, progress=3 << 20, carry=b"new"))
    reader.record(Extend(member, progress=1 << 20, carry=b"old"))
    (member,) = reader.read()
    assert (int(member.progress), member.carry) == (3 << 20, b"new")


# A fault at each step


def work(reader: Reader, done: list[str]) -> None:
    """Two claims with every kind of outcome; `done` has what was answered."""
    members: list[Delivery] = []

    def say() -> None:
        members[:] = reader.read()
        reader.record(Start(members[0]), Start(members[1]), Fail(members[2]), Fail(members[3], dead=True))
        reader.record(Release(members[4]), Extend(members[5], progress=1, carry=b"c"))
        reader.record(Complete(members[6]), part="a")

    steps: dict[str, Callable[[], Any]] = {
        "claimed": lambda: reader.claim(limit=14),
        "said": say,
        "slice begun": lambda: reader.do(ConsumersBeginSlice("etl", "q", reader.generation, 1)),
        "chosen": lambda: reader.do(ConsumersChoose("etl", "q", reader.generation, 1, ["a"])),
        "closed": lambda: reader.close(),
        "claimed again": lambda: reader.claim(2, limit=7),
        "dropped": lambda: reader.do(ConsumersDrop("etl", "q")),
    }
    for name, step in steps.items():
        if name not in done:
            step()
            done.append(name)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("default_outcome", ["complete", "release"])
@pytest.mark.parametrize("fault", ["fail", "die_before", "die_after", "power_cut"])
def test_a_fault_at_each_step_loses_nothing_and_the_work_can_go_on(fault: Any, default_outcome: str) -> None:
    def left(reader: Reader) -> tuple[int, int, int, int]:
        reader.clock.advance(ms=3_600_000)
        reader.engine.run_due()
        assert broken_laws(reader.engine) == []
        return reader.counts()

    def open_reader(store: Any) -> Reader:
        reader = Reader(store, default_outcome=default_outcome)
        reader.engine.random = Random(1)
        return reader

    expected_reader = open_reader(DictionaryStore())
    work(expected_reader, [])
    expected = left(expected_reader)
    for step in range(1, 500):
        store = FaultyStore(DictionaryStore(), forgets=True)
        reader, done = open_reader(store), list[str]()
        # No room for more leases is no fault: the claim is answered with what it has.
        store.arm(step, fault, only=(*READS, "write", "sync"))
        try:
            work(reader, done)
        except (StoreFull, Killed):
            if fault != "fail":
                reader.reopen(store.inner)
            assert broken_laws(reader.engine) == [], f"{fault} at step {step}, after {done}"
            go_on(reader, done)
        has_struck = store.struck
        store.arm(0, "fail")
        assert left(reader) == expected, f"{fault} at step {step}, after {done}"
        if not has_struck:
            break
    assert 30 < step < 499


def go_on(reader: Reader, done: list[str]) -> None:
    """As a program would: it asks what is over, and goes on behind it."""
    reader.engine.run_due()
    if not reader.do(ConsumersList()):
        done.append("dropped")
    elif "closed" not in done and reader.do(ConsumersShow("etl", "q")).last_closed == 1:
        done.append("closed")
    work(reader, done)


@pytest.mark.usefixtures("small_steps")
def test_a_release_that_broke_off_is_finished_by_the_timer() -> None:
    store = FaultyStore(DictionaryStore())
    reader = Reader(store)
    reader.claim()
    store.arm(3, "die_before", only=("write",))
    with pytest.raises(Killed):
        reader.do(ConsumersRelease("etl", "q"))
    reader.reopen(store.inner)
    ready = reader.counts()[0]
    assert 0 < ready < 20
    reader.engine.run_due()
    assert reader.counts() == (20, 0, 0, 0)
    assert broken_laws(reader.engine) == []


def test_a_claim_waits_for_the_first_message_and_its_consumer_is_seen_to_wait() -> None:
    reader = Reader(messages=1)
    reader.do(Claim("q"))
    waits = threading.Event()

    def enqueue_when_it_waits() -> None:
        while not waits.wait(0.001):
            if reader.engine.waiters:
                assert reader.do(Stats("q")).consumers == 2
                reader.do(EnqueueMany("q", [NewMessage(b"late")]))
                waits.set()

    thread = threading.Thread(target=enqueue_when_it_waits)
    thread.start()
    assert reader.claim(wait="1h") == 1
    thread.join()
    assert payloads(reader.read()) == [b"late"]


# Streams over several pieces


def stream_reader(store: Any = None) -> Reader:
    """Two streams of ten messages, and nothing else."""
    reader = Reader(store, messages=1)
    reader.do(Claim("q"))
    for stream in "st":
        names = [f"{stream}{n}".encode() for n in range(10)]
        reader.do(EnqueueMany("q", [NewMessage(name, stream=stream) for name in names]))
    return reader


@pytest.mark.usefixtures("small_steps")
def test_a_run_of_a_stream_goes_on_over_pieces_in_order() -> None:
    reader = stream_reader()
    reader.claim(limit=15)
    expected = [b"s%d" % n for n in range(10)] + [b"t%d" % n for n in range(5)]
    assert payloads(reader.read()) == expected
    assert broken_laws(reader.engine) == []


@pytest.mark.usefixtures("small_steps")
def test_few_of_a_stream_are_few_also_where_a_crash_broke_its_run_off() -> None:
    store = FaultyStore(DictionaryStore())
    reader = stream_reader(store)
    store.arm(2, "die_before", only=("write",))
    with pytest.raises(Killed):
        reader.claim(max_per_stream=6)
    reader.reopen(store.inner)
    assert reader.claim(max_per_stream=6) == 12
    expected = [b"s%d" % n for n in range(6)] + [b"t%d" % n for n in range(6)]
    assert payloads(reader.read()) == expected
    assert broken_laws(reader.engine) == []


def test_a_stream_is_in_one_slice() -> None:
    reader = stream_reader()
    reader.claim()
    for slice in range(3):
        found = {payload[:1] for payload in payloads(reader.read(slice=slice, slices=3))}
        assert found & {b"s"} == ({b"s"} if slice_of(0, 20, "s", 3) == slice else set())


def test_what_is_behind_a_failure_in_its_stream_is_left_out_of_what_is_unsettled() -> None:
    reader = stream_reader()
    reader.engine.do(ConsumersDrop("etl", "q"))
    reader.generation = reader.do(ConsumersRegister("etl", "q", default_outcome="release")).generation
    reader.claim()
    members = {delivery.payload: delivery for delivery in reader.read()}
    reader.record(Complete(members[b"s0"]), Fail(members[b"s2"]), Complete(members[b"t0"]))
    left = payloads(reader.read(unsettled=True))
    assert left == [b"s1", *[b"t%d" % n for n in range(1, 10)]]


# What was recorded is read without the lock


def watch_outcomes(reader: Reader, monkeypatch: pytest.MonkeyPatch, read: Callable[[], None]) -> list[bool]:
    """Whether each read of recorded outcomes had the lock; `read` is called after the first that finds no more."""
    engine, had_lock, is_read = reader.engine, list[bool](), list[bool]()
    scan = engine.store.scan

    def watched(table: Table, *arguments: Any, **options: Any) -> list[Row]:
        rows = scan(table, *arguments, **options)
        if table is Table.OUTCOMES:
            had_lock.append(engine.lock.is_owned)
            if not rows and not is_read:
                is_read.append(True)
                read()
        return rows

    monkeypatch.setattr(engine.store, "scan", watched)
    return had_lock


def recorded_by_two_calls() -> tuple[Reader, list[Delivery]]:
    reader = Reader()
    reader.claim(limit=6)
    members = reader.read()
    reader.record(Fail(members[0], "no"))
    reader.record(Fail(members[1], "no"))
    reader.engine.memory.consumers.outcomes.clear()
    return reader, members


def test_a_close_reads_what_was_recorded_without_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = recorded_by_two_calls()
    had_lock = watch_outcomes(reader, monkeypatch, lambda: None)
    assert reader.close() == {"completed": 4, "retry": 2}
    assert had_lock
    assert not any(had_lock)
    assert broken_laws(reader.engine) == []


@pytest.mark.parametrize("part", ["", "chosen"])
def test_outcomes_that_are_recorded_while_a_close_reads_them_count(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    reader, members = recorded_by_two_calls()
    if part:
        reader.record(Fail(members[2], "no"), part=part)

    def more() -> None:
        if part:
            reader.do(ConsumersChoose("etl", "q", reader.generation, 1, (part,)))
        else:
            reader.record(Fail(members[2], "no"))

    watch_outcomes(reader, monkeypatch, more)
    assert reader.close() == {"completed": 3, "retry": 3}
    assert broken_laws(reader.engine) == []
