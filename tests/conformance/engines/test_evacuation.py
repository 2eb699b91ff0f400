"""Chunks of which little is left are written anew without the rest: what is left stays as it was, wherever it is, for
everybody who reads it meanwhile, and whatever happens at the write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from fairlead import Complete, Delivery, Extend, Fail, NewMessage, Settings
from fairlead.engine import cold, evacuation, thinning, timer
from fairlead.engine.broker import Broker
from fairlead.engine.laws import broken_laws
from fairlead.engine.verify import verify, verify_store
from fairlead.errors import BrokenInvariant, StoreFull
from fairlead.model.views import MessageInfo
from fairlead.records.chunk import Chunk
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Batch, Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.store.rows import read_payloads, read_table
from fairlead.testing import ManualClock
from fairlead.testing.engine import forget_bodies
from fairlead.testing.faulty import Fault, FaultyStore, Killed
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue
from tests.conformance.engines.memory_sizes import evacuate

COUNT = 40
SIZE = 2000
#: A message with its headers and rows takes less than this beside its payload.
SLACK = 1000
#: Rows with messages in them.
BODIES = (Table.CHUNKS, Table.COLD, Table.PAGES)
#: Rows that go with the last message of a queue.
OF_MESSAGES = (*BODIES, Table.STATES, Table.OWN, Table.RUNS, Table.MEMBERS, Table.LIVES, Table.DUE)


def payload(n: int, size: int = SIZE) -> bytes:
    return b"%04d" % n + b"." * (size - 4)


@pytest.fixture(autouse=True)
def looks_follow_each_other() -> Iterator[None]:
    with patch.multiple(evacuation, LOOK_MS=0, SCAN_MS=0):
        yield


class Scene:
    """A queue on a store that can be opened again."""

    def __init__(self, **options: object) -> None:
        self.clock, self.data = ManualClock(), DictionaryData()
        self.store = FaultyStore(DictionaryStore(self.data), forgets=True)
        self.broker = Broker(self.store, clock=self.clock)
        given = {"visibility_timeout": "1h", "retry": {"policy": "fixed", "cooldown": "1h"}, **options}
        self.broker.create_queue("q", **given)

    def reopen(self, **settings: int) -> None:
        self.broker.engine.stop_working()
        self.store = FaultyStore(DictionaryStore(self.data), forgets=True)
        self.broker = Broker(self.store, clock=self.clock, settings=Settings(**settings))

    def check(self) -> None:
        assert broken_laws(self.broker.engine) == []
        assert verify_store(DictionaryStore(self.data)).problems == []

    def evacuate(self) -> None:
        evacuate(self.broker.engine)
        self.check()

    @property
    def stored_bytes(self) -> int:
        return sum(len(raw) for table in BODIES for _, raw in read_table(self.store.inner, table))

    @property
    def rows(self) -> dict[Table, dict[bytes, bytes]]:
        return {table: dict(read_table(self.store.inner, table)) for table in BODIES}

    @property
    def chunks(self) -> list[Chunk]:
        return list(self.broker.engine.memory.chunks.values())

    def enqueue(self, count: int = COUNT, size: int = SIZE, **fields: object) -> list[str]:
        messages = [NewMessage(payload(n, size), {"n": str(n)}, **fields) for n in range(count)]  # type: ignore[arg-type]
        return self.broker.enqueue_many("q", messages)

    def complete(self, deliveries: list[Delivery]) -> None:
        self.broker.settle([Complete(one) for one in deliveries])

    def shown(self) -> list[MessageInfo]:
        return [*self.broker.browse("q"), *self.broker.browse("q", view="dead")]


# What pins a chunk


def leave_dead(scene: Scene) -> None:
    scene.enqueue()
    *others, last = scene.broker.claim("q", limit=COUNT)
    scene.broker.settle([Fail(last, dead=True)])
    scene.complete(others)


def leave_held(scene: Scene) -> None:
    ids = scene.enqueue()
    scene.broker.hold("q", [ids[20]])
    scene.complete(scene.broker.claim("q", limit=COUNT))


def leave_leased(scene: Scene) -> None:
    scene.enqueue()
    scene.complete(scene.broker.claim("q", limit=COUNT)[1:])


def leave_waiting(scene: Scene) -> None:
    scene.enqueue(dedup_key=None, ttl="2h")
    *others, last = scene.broker.claim("q", limit=COUNT)
    scene.broker.settle([Fail(last, retry_in="1h")])
    scene.complete(others)


def leave_ready(scene: Scene) -> None:
    scene.enqueue()
    scene.complete(scene.broker.claim("q", limit=COUNT - 1))


def leave_done(scene: Scene) -> None:
    scene.enqueue()
    *others, last = scene.broker.claim("q", limit=COUNT)
    scene.complete(others)
    scene.broker.update_queue("q", retain_completed="3h")
    scene.complete([last])


def leave_parked(scene: Scene) -> None:
    scene.broker.config.set("throttle.t", "0.0001,1")
    parked = [NewMessage(payload(n), throttle_keys=["t"]) for n in (0, 1)]
    others = [NewMessage(payload(n), fairness_key=f"k{n % 3}") for n in range(2, COUNT)]
    scene.broker.enqueue_many("q", [*others[:10], *parked, *others[10:]])
    scene.complete(scene.broker.claim("q", limit=COUNT))


def leave_in_stream(scene: Scene) -> None:
    messages = [NewMessage(payload(n), stream=f"s{n // 2}", fairness_key=f"k{n // 2}") for n in range(COUNT)]
    ids = scene.broker.enqueue_many("q", messages)
    scene.broker.hold("q", [ids[20]])
    for _ in range(2):
        scene.complete(scene.broker.claim("q", limit=COUNT))


def leave_behind_in_stream(scene: Scene) -> None:
    """The first message of the stream is gone; two are left, one of which can be claimed."""
    messages = [NewMessage(payload(n), stream=f"s{n // 4}") for n in range(COUNT)]
    scene.broker.enqueue_many("q", messages)
    found = scene.broker.claim("q", limit=COUNT, max_per_stream=4)
    assert len(found) == COUNT
    scene.complete([one for one in found if one.stream != "s5"])
    of_stream = [one for one in found if one.stream == "s5"]
    scene.complete(of_stream[:2])
    scene.broker.goodbye("")


def leave_redriven(scene: Scene) -> None:
    leave_dead(scene)
    scene.broker.redrive("q.dlq")


PINS: dict[str, Callable[[Scene], None]] = {
    "a dead letter": leave_dead,
    "a held message": leave_held,
    "a leased message": leave_leased,
    "a message that waits": leave_waiting,
    "a ready message": leave_ready,
    "a message that is kept": leave_done,
    "a parked lane": leave_parked,
    "a blocked stream": leave_in_stream,
    "the end of a stream": leave_behind_in_stream,
    "a message that was redriven": leave_redriven,
}


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
@pytest.mark.parametrize("pin", PINS)
def test_what_is_left_of_a_chunk_takes_its_own_room_and_stays_as_it_was(pin: str, hot: int) -> None:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=0):
        scene = Scene()
        PINS[pin](scene)
        scene.check()
        before, left = scene.shown(), len(scene.shown())
        assert 1 <= left <= 2
        assert scene.stored_bytes > COUNT * SIZE
        scene.evacuate()
        assert scene.stored_bytes < left * SIZE + SLACK
        assert scene.shown() == before
        rows = scene.rows
        scene.reopen()
        scene.check()
        assert scene.shown() == before
        scene.evacuate()
        assert scene.rows == rows, "there is nothing left to do"


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
@pytest.mark.parametrize("pin", PINS)
def test_what_is_left_goes_on_and_leaves_nothing_behind(pin: str, hot: int) -> None:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=0):
        scene = Scene()
        PINS[pin](scene)
        scene.evacuate()
        expected = {info.id: info.payload for info in scene.shown() if not info.done_at}
        scene.broker.goodbye("")
        scene.broker.config.set("throttle.t", "1000,1000")
        scene.broker.unhold("q", list(expected))
        scene.clock.advance(seconds=3660)
        found: dict[str, bytes] = {}
        for _ in range(3):
            for queue in ("q", "q.dlq"):
                deliveries = scene.broker.claim(queue, limit=COUNT)
                found |= {one.id: one.payload for one in deliveries}
                scene.check()
                scene.complete(deliveries)
        assert found == expected
        scene.clock.advance(seconds=4 * 3600)
        scene.check()
        left = {table.name for table in OF_MESSAGES if [*read_table(scene.store.inner, table)]}
        assert left == set()


def test_a_chunk_that_loses_more_is_written_anew_again() -> None:
    scene = Scene()
    ids = scene.enqueue()
    sizes = [scene.stored_bytes]
    while len(ids) > 1:
        scene.broker.drop("q", ids[len(ids) // 2 :])
        ids = ids[: len(ids) // 2]
        scene.evacuate()
        sizes.append(scene.stored_bytes)
        assert scene.stored_bytes <= 2 * len(ids) * (SIZE + 20) + thinning.MIN_DEAD_BYTES + SLACK
        assert [info.payload for info in scene.shown()] == [payload(n) for n in range(len(ids))]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
def test_the_pages_of_what_is_left_go_with_its_last_message(hot: int) -> None:
    with patch.object(cold, "HOT_MESSAGES", hot):
        scene = Scene()
        ids = scene.enqueue()
        scene.broker.drop("q", ids[:25])
        scene.evacuate()
        (pages,) = [rows for table, rows in scene.rows.items() if table is Table.PAGES]
        assert len(pages) == 2
        with patch.object(cold, "CACHED_MESSAGES", 0):
            scene.broker.drop("q", ids[25:30])
        scene.check()
        scene.broker.drop("q", ids[30:])
        assert scene.stored_bytes == 0
        scene.check()


def test_a_chunk_that_lost_little_stays_as_it_is() -> None:
    scene = Scene()
    ids = scene.enqueue()
    before = scene.stored_bytes
    scene.broker.drop("q", ids[: COUNT // 2 - 1])
    scene.evacuate()
    assert scene.stored_bytes == before
    scene.broker.drop("q", ids[COUNT // 2 - 1 : COUNT // 2 + 1])
    scene.evacuate()
    assert scene.stored_bytes < before / 2


def test_many_lanes_and_names_of_messages_that_are_gone_go_with_them() -> None:
    scene = Scene()
    messages = [
        NewMessage(payload(n), {"n": str(n)}, f"key {n}", n + 1, stream=f"stream {n}", ttl="1h")
        for n in range(300)
    ]
    ids = scene.broker.enqueue_many("q", messages)
    scene.broker.drop("q", ids[:150] + ids[151:])
    scene.evacuate()
    (chunk,) = scene.chunks
    # The first message of all keeps its lane, which costs a name.
    assert chunk.columns.lanes == (("key 0",), ("key 150",))
    assert chunk.columns.weights == 151
    assert {*(chunk.columns.streams or ())} == {"", "stream 150"}
    (info,) = scene.shown()
    assert (info.fairness_key, info.stream, info.headers) == ("key 150", "stream 150", {"n": "150"})


def test_a_chunk_that_has_no_stream_any_more_takes_less_memory() -> None:
    scene = Scene()
    streams = [f"s{n}" if n else None for n in range(COUNT)]
    ids = scene.broker.enqueue_many("q", [NewMessage(payload(0), stream=name) for name in streams])
    scene.broker.drop("q", ids[1:])
    scene.evacuate()
    assert scene.broker.engine.memory.hot_messages == 1


def test_ends_of_lives_of_messages_that_are_gone_are_forgotten() -> None:
    scene = Scene()
    ids = scene.broker.enqueue_many("q", [NewMessage(payload(n), ttl=f"{n + 1}h") for n in range(COUNT)])
    scene.broker.drop("q", ids[:10] + ids[11:])
    scene.evacuate()
    assert len([*read_table(scene.store.inner, Table.LIVES)]) == 1
    scene.clock.advance(seconds=11 * 3600)
    assert scene.stored_bytes == 0


def test_payloads_that_were_staged_go_and_what_is_left_moves() -> None:
    scene = Scene()
    broker = scene.broker
    broker.staging.stage("w", "a", "q", [NewMessage(payload(n)) for n in range(COUNT)])
    broker.staging.publish("w", "q", ["a"])
    ids = [info.id for info in broker.browse("q")]
    broker.drop("q", ids[1:])
    scene.evacuate()
    assert scene.stored_bytes < SIZE + SLACK
    scene.reopen()
    assert [one.payload for one in scene.broker.claim("q")] == [payload(0)]


def test_duplicates_of_a_publication_take_no_room() -> None:
    scene = Scene(dedup="1h")
    scene.broker.enqueue_many("q", [NewMessage(b"x", dedup_key=f"d{n}") for n in range(1, COUNT)])
    scene.broker.staging.stage(
        "w", "a", "q", [NewMessage(payload(n), dedup_key=f"d{n}") for n in range(COUNT)]
    )
    scene.broker.staging.publish("w", "q", ["a"])
    scene.evacuate()
    assert scene.stored_bytes < SIZE + 2 * SLACK
    assert payload(0) in [info.payload for info in scene.shown()]


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
def test_messages_that_end_while_their_chunk_is_copied_go_with_the_next_look(hot: int) -> None:
    with patch.multiple(cold, HOT_MESSAGES=hot):
        scene = Scene()
        ids = scene.enqueue()
        scene.broker.drop("q", ids[10:])
        scene.reopen()
        sizes, get_many = list[int](), scene.store.get_many

        def end_others(table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
            if table is Table.PAGES:
                scene.broker.drop("q", ids[1:10])
            return get_many(table, keys)

        with patch.object(scene.store, "get_many", end_others):
            while scene.broker.engine.evacuation.next_ms() is not None:
                scene.broker.engine.evacuation.run_step()
                sizes.append(scene.stored_bytes)
        scene.check()
        assert any(10 * SIZE < size < 11 * SIZE for size in sizes), "what was read is written"
        assert sizes[-1] < SIZE + SLACK
        assert [info.payload for info in scene.shown()] == [payload(0)]


# When


def test_a_chunk_is_taken_up_one_look_after_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evacuation, "LOOK_MS", 1000)
    scene = Scene()
    leave_dead(scene)
    before = scene.stored_bytes
    scene.clock.advance(ms=1)
    assert scene.stored_bytes == before
    scene.clock.advance(ms=998)
    assert scene.stored_bytes == before
    scene.clock.advance(ms=1001)
    assert scene.stored_bytes < before
    assert scene.broker.engine.evacuation.next_ms() is None, "an idle engine need not wake up"
    scene.check()


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
def test_a_reopened_engine_finds_sparse_chunks_again(hot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evacuation, "SCAN_CHUNKS", 2)
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=0):
        scene = Scene()
        for _ in range(5):
            leave_held(scene)
        scene.reopen()
        scene.evacuate()
        assert scene.stored_bytes < 5 * (SIZE + SLACK)
        assert scene.broker.engine.evacuation.next_ms() is None, "an idle engine need not wake up"


def test_the_timer_wakes_up_for_a_sparse_chunk_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evacuation, "LOOK_MS", 1000)
    scene = Scene()
    until_next_event = scene.broker.engine._timer._until_next_event
    scene.clock.advance(ms=1)
    assert until_next_event() == timer.MAX_SLEEP_MS
    leave_held(scene)
    assert until_next_event() == 1000
    scene.clock.advance(ms=1000)
    assert until_next_event() == 1000
    scene.clock.advance(ms=1000)
    assert until_next_event() == timer.MAX_SLEEP_MS


def test_nothing_is_written_anew_in_the_middle_of_a_transaction() -> None:
    scene = Scene()
    leave_held(scene)
    before = scene.rows
    with scene.broker.engine.transaction():
        for _ in range(3):
            assert not scene.broker.engine.evacuation.run_step()
    assert scene.rows == before


def test_nobody_waits_until_an_evacuation_is_synced() -> None:
    scene = Scene()
    scene.enqueue()
    first, *others = scene.broker.claim("q", limit=COUNT)
    scene.complete(others)
    before = scene.store.calls["sync"]
    scene.evacuate()
    (extended,) = scene.broker.settle([Extend(first, "2h")])
    assert extended.outcome == "extended"
    assert scene.store.calls["sync"] == before


def test_payloads_that_were_read_to_be_written_anew_do_not_stay_in_memory() -> None:
    scene = Scene()
    scene.broker.drop("q", scene.enqueue()[:30])
    scene.reopen()
    scene.evacuate()
    assert scene.stored_bytes < 10 * (SIZE + 30) + SLACK
    assert scene.broker.engine.memory.body_bytes == 0


def test_a_chunk_with_much_that_lives_waits_until_less_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "MAX_LIVE_BYTES", 4 * SIZE)
    scene = Scene()
    ids = scene.enqueue()
    before = scene.stored_bytes
    scene.broker.drop("q", ids[5:])
    scene.evacuate()
    assert scene.stored_bytes == before
    scene.broker.drop("q", ids[3:5])
    scene.evacuate()
    assert scene.stored_bytes < before / 10


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
def test_a_chunk_with_a_member_of_a_numbered_claim_waits_for_the_end_of_the_claim(hot: int) -> None:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=0):
        scene = Scene()
        ids = scene.enqueue()
        consumers = scene.broker.consumers
        generation = consumers.register("etl", "q").generation
        consumers.claim("etl", "q", generation, 1, limit=3)
        scene.broker.drop("q", ids[3:])
        before = scene.stored_bytes
        pages = consumers.read("etl", "q", generation, 1)
        evacuate(scene.broker.engine)
        assert scene.broker.engine.evacuation.next_ms() is None, "an idle engine need not wake up"
        scene.check()
        assert scene.stored_bytes == before
        members = list(pages)
        assert [one.payload for one in members] == [payload(n) for n in range(3)]
        consumers.record("etl", "q", generation, 1, [Fail(members[0], dead=True)])
        consumers.close("etl", "q", generation, 1)
        scene.evacuate()
        assert scene.stored_bytes < SIZE + SLACK
        assert [info.payload for info in scene.shown()] == [payload(0)]


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
def test_a_chunk_whose_numbered_claim_is_given_up_is_written_anew(hot: int) -> None:
    with patch.multiple(cold, HOT_MESSAGES=hot):
        scene = Scene()
        ids = scene.enqueue()
        consumers = scene.broker.consumers
        generation = consumers.register("etl", "q").generation
        consumers.claim("etl", "q", generation, 1, limit=2)
        scene.broker.drop("q", ids[2:])
        evacuate(scene.broker.engine)
        consumers.drop("etl", "q")
        scene.evacuate()
        assert scene.stored_bytes < 2 * SIZE + SLACK
        assert [one.payload for one in scene.broker.claim("q", limit=3)] == [payload(0), payload(1)]


# Readers without the lock


@pytest.fixture(params=["cold", "hot"])
def sparse(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Four of forty messages are left, and memory has no payloads."""
    with patch.multiple(
        cold, HOT_MESSAGES=0 if request.param == "cold" else cold.HOT_MESSAGES, CACHED_MESSAGES=0
    ):
        scene = Scene()
        ids = scene.enqueue()
        scene.broker.drop("q", ids[4:])
        scene.reopen(body_cache_bytes=0)
        yield scene


def stop_reader(scene: Scene, meanwhile: Callable[[], object], read: str = "get_many") -> None:
    """The next reader waits before its first read of a page, while `meanwhile` happens."""
    scene.store.arm(1, "delay", only=(read,))

    def on_delay(method: str) -> None:
        if scene.broker.engine.lock.is_owned:
            # It reads heads or states.
            scene.store.arm(1, "delay", only=(read,))
        else:
            meanwhile()

    scene.store.on_delay = on_delay


@pytest.mark.parametrize("times", [1, 2])
def test_a_claim_that_was_stopped_before_it_read_finds_the_payloads_where_they_are_now(
    sparse: Scene, times: int
) -> None:
    ids = [info.id for info in sparse.broker.browse("q")]

    def move() -> None:
        sparse.evacuate()
        if times == 2:
            # It reads the new place, and is stopped again.
            sparse.broker.drop("q", ids[2:])
            stop_reader(sparse, sparse.evacuate)

    stop_reader(sparse, move)
    found = sparse.broker.exchange([Claim("q", 2), Enqueue("q", b"new")])[0]
    assert [one.payload for one in found] == [payload(0), payload(1)]
    assert [one.headers for one in found] == [{"n": "0"}, {"n": "1"}]
    sparse.check()


def test_a_claim_does_not_deliver_what_was_gone_when_its_chunk_was_written_anew(sparse: Scene) -> None:
    ids = [info.id for info in sparse.broker.browse("q")]

    def end_and_move() -> None:
        sparse.broker.drop("q", ids[1:3])
        sparse.evacuate()

    stop_reader(sparse, end_and_move)
    assert [one.payload for one in sparse.broker.claim("q", limit=4)] == [payload(0), payload(3)]
    sparse.check()


def test_a_claim_finds_nothing_if_its_chunk_was_written_anew_and_ended(sparse: Scene) -> None:
    ids = [info.id for info in sparse.broker.browse("q")]

    def move_and_end() -> None:
        sparse.evacuate()
        sparse.broker.drop("q", ids)

    stop_reader(sparse, move_and_end)
    assert sparse.broker.claim("q", limit=4) == []
    sparse.check()


@pytest.mark.parametrize("left", [1, 4])
def test_payloads_in_the_head_are_found_in_the_head_that_is_there_now(left: int) -> None:
    """Memory has them always, unless a test drops them."""
    scene = Scene()
    ids = scene.enqueue(size=300)
    scene.broker.drop("q", ids[4:])
    forget_bodies(scene.broker)

    def end_and_move() -> None:
        scene.broker.drop("q", ids[left:4])
        for chunk in scene.chunks:
            chunk.payloads = read_payloads(scene.store.inner, chunk)
        scene.evacuate()

    stop_reader(scene, end_and_move, "get")
    found = scene.broker.claim("q", limit=4)
    assert [one.payload for one in found] == [payload(n, 300) for n in range(left)]


LOOKS: dict[str, Callable[[Broker], list[MessageInfo]]] = {
    "peek": lambda broker: broker.peek("q", limit=10),
    "browse": lambda broker: broker.browse("q"),
    "find": lambda broker: [broker.find(broker.peek("q", limit=1)[0].id)],
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_that_was_stopped_before_it_read_finds_the_payloads_where_they_are_now(
    sparse: Scene, look: str
) -> None:
    expected = LOOKS[look](sparse.broker)
    assert all(info.payload for info in expected)
    stop_reader(sparse, sparse.evacuate)
    assert LOOKS[look](sparse.broker) == expected


def test_a_look_does_not_show_what_was_gone_when_its_chunk_was_written_anew(sparse: Scene) -> None:
    ids = [info.id for info in sparse.broker.browse("q")]

    def end_and_move() -> None:
        sparse.broker.drop("q", ids[1:3])
        sparse.evacuate()

    stop_reader(sparse, end_and_move)
    assert [info.payload for info in sparse.broker.browse("q")] == [payload(0), payload(3)]


def test_deliveries_and_messages_that_were_met_stay_as_they_were(sparse: Scene) -> None:
    """Somebody who has a delivery or a chunk in hand sees no blank message."""
    found = sparse.broker.claim("q", limit=4)
    (before,) = sparse.chunks or [None]
    columns = None if before is None else list(before.columns.sizes)
    sparse.complete(found[1:3])
    sparse.evacuate()
    states = None if before is None else bytes(before.states or b"")
    sparse.complete(found[3:])
    assert [one.payload for one in found] == [payload(n) for n in range(4)]
    assert [one.headers for one in found] == [{"n": str(n)} for n in range(4)]
    if before is not None:
        assert (before.columns.sizes, before.states) == (columns, states)


# Trouble at the write


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
@pytest.mark.parametrize("fault", ["die_before", "die_after", "power_cut"])
@pytest.mark.parametrize("pin", ["a dead letter", "a parked lane", "a blocked stream"])
def test_a_crash_at_the_write_leaves_nothing_behind(pin: str, fault: Fault, hot: int) -> None:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=0):
        scene = Scene()
        PINS[pin](scene)
        before = scene.shown()
        # The power cut undoes what was not synced.
        scene.store.inner.sync()
        scene.broker.engine.store.sync()
        scene.store.arm(1, fault, only=("write",))
        with pytest.raises(Killed):
            evacuate(scene.broker.engine)
        assert scene.store.struck
        scene.reopen()
        assert scene.shown() == before
        scene.evacuate()
        assert scene.stored_bytes < 2 * SIZE + SLACK
        assert scene.shown() == before


@pytest.mark.parametrize("hot", [0, cold.HOT_MESSAGES], ids=["cold", "hot"])
@pytest.mark.parametrize("method", ["write", "check_room"])
def test_a_full_disk_postpones_it(hot: int, method: str) -> None:
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=0):
        scene = Scene()
        leave_leased(scene)
        leave_dead(scene)
        before, shown = scene.stored_bytes, scene.shown()
        full = patch.object(scene.store, method, side_effect=StoreFull("the simulated disk", 0, 1))
        with full as refused:
            for _ in range(5):
                scene.clock.advance(ms=1)
            assert refused.call_count == 1
            scene.broker.run_due()
        assert scene.stored_bytes == before
        scene.check()
        assert [info.id for info in scene.shown()] == [info.id for info in shown]
        scene.clock.advance(ms=evacuation.RETRY_MS)
        scene.clock.advance(ms=1)
        assert scene.stored_bytes < 2 * (SIZE + SLACK)
        scene.check()


def test_a_message_that_lives_and_of_which_nothing_is_left_is_named() -> None:
    """As if the states of a chunk were of an earlier time than its head."""
    scene = Scene()
    scene.broker.drop("q", scene.enqueue()[1:])
    scene.evacuate()
    scene.broker.engine.stop_working()
    store = scene.store.inner
    (key,) = dict(read_table(store, Table.STATES))
    batch = Batch()
    batch.put(Table.STATES, key, bytes(COUNT))
    store.write(batch, store.acquire(), store.last_commit + 1)
    problems = verify_store(store).problems
    assert len(problems) == COUNT - 1
    assert all("an evacuation left nothing of it" in problem for problem in problems)


def test_a_page_that_is_lost_leaves_the_chunk_as_it_is() -> None:
    scene = Scene()
    scene.broker.drop("q", scene.enqueue()[1:])
    store = scene.store.inner
    rows = dict(read_table(store, Table.PAGES))
    batch = Batch()
    batch.delete(Table.PAGES, min(rows))
    store.write(batch, store.acquire(), store.last_commit + 1)
    del rows[min(rows)]
    scene.reopen()
    evacuate(scene.broker.engine)
    assert dict(read_table(scene.store.inner, Table.PAGES)) == rows
    with pytest.raises(BrokenInvariant):
        scene.broker.claim("q")


def test_on_rocksdb_a_directory_is_sound_after_evacuations(tmp_path: Path) -> None:
    clock = ManualClock()

    def opened() -> Broker:
        return Broker(RocksKeyValueStore.open(tmp_path / "data"), clock=clock)

    broker = opened()
    broker.create_queue("q", visibility_timeout="1h")
    for _ in range(3):
        broker.enqueue_many("q", [NewMessage(payload(n)) for n in range(COUNT)])
        *others, last = broker.claim("q", limit=COUNT)
        broker.settle([Fail(last, dead=True), *map(Complete, others)])
    evacuate(broker.engine)
    broker.close()
    assert verify(tmp_path / "data").problems == []
    broker = opened()
    assert [info.payload for info in broker.browse("q", view="dead")] == [payload(COUNT - 1)] * 3
    assert sum(len(raw) for table in BODIES for _, raw in read_table(broker.engine.store, table)) < 3 * (
        SIZE + SLACK
    )
    broker.close()
