"""A large payload is stored in pieces before its enqueue, which is one transaction all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fairlead import NewMessage
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import ahead
from fairlead.errors import InvalidRequest, QueueFull, QueueNotFound, StoreFull, Unavailable
from fairlead.records.chunk import PIECE_BYTES
from fairlead.request import LOCAL, Caller
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.store.kv.port import Batch, Table
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore, Killed
from fairlead.verbs.browse import Browse
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.queues import CreateQueue, DeleteQueue
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Ack
from fairlead.verbs.staging import StagingPublish, StagingStage

LARGE = b"".join(b"%07d\n" % n for n in range((3 * PIECE_BYTES + 1000) // 8))
PIECES = 4


class WatchedStore(DictionaryStore):
    """Knows how large each write was."""

    sizes: list[int]

    def write(self, batch: Batch, epoch: int, commit: int) -> bool:
        self.sizes.append(sum(len(value) for _, _, value in batch.puts))
        return super().write(batch, epoch, commit)


def open_engine(store: Any = None, clock: ManualClock | None = None, **options: Any) -> Engine:
    engine = Engine(store or DictionaryStore(), clock=clock or ManualClock())
    if not engine.memory.by_id:
        engine.do(CreateQueue("q", options))
    return engine


def payloads(engine: Engine) -> list[bytes]:
    assert broken_laws(engine) == []
    return [one.payload for one in engine.do(Claim("q", 1000))]


def looked_at(engine: Engine) -> list[bytes]:
    found: list[bytes] = []
    after = ""
    while page := engine.do(Browse("q", after=after)):
        found += [info.payload for info in page]
        after = page[-1].id
    return found


def reopened(engine: Engine) -> Engine:
    engine.stop_working()
    return open_engine(engine.store)


def numbered(number: int) -> Caller:
    return LOCAL._replace(session="s", number=number)


enqueues = pytest.mark.parametrize(
    "request_",
    [
        Enqueue("q", LARGE),
        Enqueue("q", LARGE, headers={"a": "b"}, throttle_keys=["t"], dedup_key="d", ttl="1h"),
        EnqueueMany("q", [NewMessage(b"a"), NewMessage(LARGE * 3), NewMessage(b"c" * 20_000)]),
    ],
    ids=["bare", "with everything", "many"],
)


@enqueues
def test_no_write_is_much_larger_than_a_piece(request_: Any) -> None:
    store = WatchedStore()
    store.sizes = []
    engine = open_engine(store)
    engine.do(request_)
    assert len(store.sizes) > PIECES
    assert max(store.sizes) < 1.1 * PIECE_BYTES
    assert not engine.memory.staged.writes


@enqueues
def test_it_is_read_as_it_was_given(request_: Any) -> None:
    given = [one.payload for one in getattr(request_, "messages", [request_])]
    engine = open_engine()
    engine.do(request_)
    assert looked_at(engine) == given
    engine = reopened(engine)
    assert looked_at(engine) == given
    assert payloads(reopened(engine)) == given


def test_a_staged_chunk_is_stored_in_pieces_too() -> None:
    store = WatchedStore()
    store.sizes = []
    engine = open_engine(store)
    engine.do(StagingStage("t", "c", "q", [NewMessage(LARGE)]))
    engine.do(StagingPublish("t", "q", ["c"]))
    assert max(store.sizes) < 1.1 * PIECE_BYTES
    assert payloads(reopened(engine)) == [LARGE]


def test_the_pieces_go_with_their_message() -> None:
    engine = open_engine()
    message_id = engine.do(Enqueue("q", LARGE))
    assert len(engine.store.scan(Table.PAGES, limit=100)) == PIECES
    engine.do(Claim("q"))
    engine.do(Ack("q", message_id))
    assert engine.store.scan(Table.PAGES, limit=100) == []
    assert broken_laws(engine) == []


def test_a_repeat_in_a_session_and_a_twin_leave_no_pieces() -> None:
    engine = open_engine(dedup="1m")
    engine.do(OpenSession("s"))
    request = Enqueue("q", LARGE, dedup_key="d")
    first = engine.do(request, numbered(1))
    assert engine.do(request, numbered(1)) == first
    assert engine.do(Enqueue("q", LARGE, dedup_key="d")) == first
    assert not engine.memory.staged.writes
    assert payloads(engine) == [LARGE]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Enqueue("q", LARGE, delay="soon"), InvalidRequest),
        (Enqueue("other", LARGE), QueueNotFound),
        (Enqueue("q.dlq", LARGE), InvalidRequest),
        (Enqueue("q", LARGE), QueueFull),
    ],
)
def test_what_is_refused_leaves_no_pieces(request_: Any, error: Any) -> None:
    engine = open_engine(max_bytes=100)
    with pytest.raises(error):
        engine.do(request_)
    assert engine.store.scan(Table.PAGES, limit=100) == []
    assert not engine.memory.staged.writes
    assert broken_laws(engine) == []


def test_the_same_enqueue_of_two_callers_makes_two_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine()
    request = Enqueue("q", LARGE)
    stage_part = ahead.stage_part

    def stage_and_enqueue(*arguments: Any) -> None:
        stage_part(*arguments)
        monkeypatch.setattr(ahead, "stage_part", stage_part)
        engine.do(request)

    monkeypatch.setattr(ahead, "stage_part", stage_and_enqueue)
    engine.do(request)
    assert payloads(engine) == [LARGE, LARGE]


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_queue_that_is_deleted_meanwhile_takes_the_pieces_with_it(
    is_made_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    engine = open_engine(clock=clock)
    stage_part = ahead.stage_part

    def stage_and_delete(*arguments: Any) -> None:
        stage_part(*arguments)
        engine.do(DeleteQueue("q"))
        clock.advance(ms=1000)
        engine.run_due()
        if is_made_again:
            engine.do(CreateQueue("q"))

    monkeypatch.setattr(ahead, "stage_part", stage_and_delete)
    with suppress(QueueNotFound):
        engine.do(Enqueue("q", LARGE))
    assert not engine.memory.staged.writes
    assert broken_laws(engine) == []
    if is_made_again:
        assert payloads(engine) == [LARGE]


def faults() -> Iterator[tuple[str, int]]:
    for fault in ("fail", "die_before", "die_after", "power_cut"):
        for step in range(1, 100):
            yield fault, step


def test_a_fault_at_every_step_leaves_the_message_or_nothing() -> None:
    over: set[str] = set()
    outcomes: set[tuple[str, int]] = set()
    for fault, step in faults():
        if fault in over:
            continue
        clock = ManualClock()
        store = FaultyStore(DictionaryStore(), forgets=True)
        engine = open_engine(store, clock)
        engine.confirm()
        store.arm(step, fault, only=("batch", "write", "sync") if fault == "fail" else ())  # type: ignore[arg-type]
        is_confirmed = False
        with suppress(StoreFull, Killed, Unavailable):
            is_confirmed = bool(engine.do(Enqueue("q", LARGE)))
        if not store.struck:
            assert step > PIECES
            over.add(fault)
            continue
        engine.stop_working()
        again = open_engine(store.inner, clock)
        assert broken_laws(again) == [], f"{fault} at step {step}"
        clock.advance(ms=601_000)
        again.run_due()
        assert not again.memory.staged.writes, f"{fault} at step {step}"
        found = payloads(again)
        assert found in ([], [LARGE]), f"{fault} at step {step}"
        assert found or not is_confirmed, f"{fault} at step {step}"
        outcomes.add((fault, len(found)))
    assert len(outcomes) == 8
