"""The laws themselves: a sound store and a sound memory break none, and each kind of unsoundness is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.verify import verify_store
from fairlead.records.chunk import GONE, Columns
from fairlead.records.consumer import RecordedCall
from fairlead.records.ids import BLOCK_MASK, COMMIT_SHIFT, id_of
from fairlead.records.state import Counts, DedupRow
from fairlead.records.stream import StreamRow
from fairlead.schedule.throttle import Bucket
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.store.kv.port import Batch, KeyValueStore, Table
from fairlead.store.rows import (
    KEY_SHAPES,
    TABLES_OF_A_QUEUE,
    decode_value,
    encode_value,
    made_key,
    read_table,
)
from fairlead.testing import ManualClock
from tests.conformance.engines.rich_scene import ORDERED, make_rich

Rows = dict[Table, dict[bytes, bytes]]
Break = Callable[[Rows], object]
#: A number that no message and no queue has.
UNKNOWN = 77 << COMMIT_SHIFT


def make() -> tuple[Engine, DictionaryData]:
    data = DictionaryData()
    return make_rich(DictionaryStore(data), ManualClock()).engine, data


@pytest.fixture(scope="module")
def sound() -> Rows:
    engine, data = make()
    assert broken_laws(engine) == []
    engine.stop_working()
    store = DictionaryStore(data)
    return {table: dict(read_table(store, table)) for table in Table}


def stored(rows: Rows) -> KeyValueStore:
    store = DictionaryStore()
    batch = Batch()
    for table, content in rows.items():
        for key, value in content.items():
            batch.put(table, key, value)
    store.write(batch, store.acquire(), 1)
    return store


def problems_after(sound: Rows, break_it: Break) -> list[str]:
    rows = {table: dict(content) for table, content in sound.items()}
    break_it(rows)
    assert rows != sound, "nothing was broken"
    return verify_store(stored(rows)).problems


def key_of(rows: Rows, table: Table, wanted: Callable[[Any], bool], prefix: bytes = b"") -> bytes:
    """The first row of a table whose value is wanted."""
    for key, value in sorted(rows[table].items()):
        if key.startswith(prefix) and wanted(decode_value(table, value)):
            return key
    raise AssertionError(f"the scene has no such row in {table.name}")


def anything(value: Any) -> bool:
    return True


def drop(table: Table, wanted: Callable[[Any], bool] = anything, *prefix: int) -> Break:
    return lambda rows: rows[table].pop(key_of(rows, table, wanted, made_key(*prefix)))


#: Of a chunk without messages.
NO_MESSAGES = Columns((("default",),), None, 1, None, [])


def change(table: Table, wanted: Callable[[Any], bool] = anything, *prefix: int, **fields: Any) -> Break:
    def change_row(rows: Rows) -> None:
        key = key_of(rows, table, wanted, made_key(*prefix))
        value = decode_value(table, rows[table][key])
        changed = value._replace(**fields) if isinstance(value, Bucket) else replace(value, **fields)
        rows[table][key] = encode_value(changed)

    return change_row


def put(table: Table, key: bytes, value: Any) -> Break:
    raw = value if isinstance(value, bytes) else encode_value(value)
    return lambda rows: rows[table].update({key: raw})


def move(table: Table, key: Callable[[bytes], bytes]) -> Break:
    """The first row of the table stands under another key too."""

    def copy_row(rows: Rows) -> None:
        first = min(rows[table])
        rows[table][key(first)] = rows[table][first]

    return copy_row


def states(change_them: Callable[[bytes], bytes]) -> Break:
    def change_states(rows: Rows) -> None:
        key = key_of(rows, Table.STATES, anything, made_key(ORDERED))
        rows[Table.STATES][key] = change_them(rows[Table.STATES][key])

    return change_states


def lease_nothing(rows: Rows) -> None:
    key = key_of(rows, Table.LEASES, lambda row: row.terms.consumer == "c")
    row = decode_value(Table.LEASES, rows[Table.LEASES][key])
    rows[Table.LEASES][key] = encode_value(replace(row, runs=[(UNKNOWN, 1)]))


def bring_to_life(rows: Rows) -> None:
    """The dedup key of a dead letter comes back."""
    key = key_of(rows, Table.OWN, lambda state: state.dead_since_ms, made_key(ORDERED))
    number = int.from_bytes(key[8:], "big")
    head = decode_value(Table.CHUNKS, rows[Table.CHUNKS][made_key(ORDERED, number & ~BLOCK_MASK)])
    row = DedupRow(id_of(head.prefix, number), 0)
    rows[Table.DEDUP][made_key(ORDERED) + b"again"] = encode_value(row)


def stranger(rows: Rows) -> None:
    key = key_of(rows, Table.OUTCOMES, lambda said: isinstance(said, RecordedCall))
    call = decode_value(Table.OUTCOMES, rows[Table.OUTCOMES][key])
    said = [replace(call.recorded[0], id=bytes(16))]
    rows[Table.OUTCOMES][key] = encode_value(replace(call, recorded=said))


def another_claim(rows: Rows) -> None:
    key = key_of(rows, Table.LEASES, lambda row: row.terms.is_numbered)
    row = decode_value(Table.LEASES, rows[Table.LEASES][key])
    rows[Table.LEASES][key] = encode_value(replace(row, terms=replace(row.terms, claim_id=UNKNOWN)))


def done_again(rows: Rows) -> None:
    """The write that is done is decided once more."""
    (key,) = rows[Table.PUBLISHED]
    (half,) = rows[Table.PUBLISHING].values()
    record = decode_value(Table.PUBLISHING, half)
    rows[Table.PUBLISHING][key] = encode_value(replace(record, token="done", chunks=(), offset=0))


def stage_again(rows: Rows) -> None:
    """The write that is done has a chunk."""
    key = key_of(rows, Table.STAGED, lambda chunk: chunk.token == "open")
    chunk = decode_value(Table.STAGED, rows[Table.STAGED][key])
    (done,) = rows[Table.PUBLISHED]
    rows[Table.STAGED][done + b"a"] = encode_value(replace(chunk, token="done", chunk="a", count=0, parts=()))


def is_open(chunk: Any) -> bool:
    return bool(chunk.token == "open")


UNSOUND_ROWS: dict[str, tuple[Break, str]] = {
    "a counter that is wrong": (change(Table.COUNTERS, anything, ORDERED, ready=99), "ordered: counted"),
    "a counter that is lost": (drop(Table.COUNTERS), "counted"),
    "a counter of no queue": (put(Table.COUNTERS, made_key(UNKNOWN), Counts()), "COUNTERS"),
    "a chunk without its payloads": (
        change(Table.CHUNKS, lambda head: head.inline, inline=None),
        "has no payloads",
    ),
    "a page that is lost": (drop(Table.PAGES, anything, ORDERED), "of its payloads is missing"),
    "a page with too few payloads": (
        lambda rows: rows[Table.PAGES].update({min(rows[Table.PAGES]): b""}),
        "has another size",
    ),
    "a page of no chunk": (put(Table.PAGES, made_key(ORDERED, UNKNOWN) + b"\0\0", [b"x"]), "page "),
    "states that are too short": (states(lambda raw: raw[:-1]), "and the states"),
    "a state that is none": (states(lambda raw: b"\7" + raw[1:]), "and the states"),
    "a chunk of which all is gone": (states(lambda raw: bytes([GONE]) * len(raw)), "has no live message"),
    "a message that is gone and counted": (states(lambda raw: bytes([GONE]) + raw[1:]), "counted"),
    "states of no chunk": (put(Table.STATES, made_key(ORDERED, UNKNOWN), b"\0"), "states "),
    "a message without its own row": (drop(Table.OWN), "has no row of its own"),
    "an own row of an implied message": (states(lambda raw: bytes(len(raw))), "own row of"),
    "an own row of no message": (move(Table.OWN, lambda key: key[:8] + made_key(UNKNOWN)), "own row of"),
    "a wait that nobody finds": (drop(Table.DUE), "due "),
    "a wait of no message": (put(Table.DUE, made_key(ORDERED, 5, UNKNOWN), b""), "leads nowhere"),
    "a wait at another time": (change(Table.OWN, lambda state: state.due_ms, due_ms=5), "is missing"),
    "a completed message that nobody finds": (drop(Table.DONE), "done "),
    "a completed message at another time": (
        change(Table.OWN, lambda state: state.done_ms, done_ms=5),
        "done ",
    ),
    "a life that nobody ends": (drop(Table.LIVES), "lives "),
    "a life of no message": (put(Table.LIVES, made_key(ORDERED, 5, UNKNOWN), b""), "leads nowhere"),
    "a lane that does not lead to its chunk": (drop(Table.RUNS, lambda run: run.count > 0), "runs "),
    "a lane that does not lead to a message": (drop(Table.RUNS, lambda run: not run.count), "runs "),
    "a lane that leads nowhere": (
        move(Table.RUNS, lambda key: key[:-9] + made_key(UNKNOWN) + b"\1"),
        "leads nowhere",
    ),
    "a lease that is lost": (drop(Table.LEASES, lambda row: row.terms.consumer == "c"), "counted"),
    "a lease of a message that is not there": (lease_nothing, "leases without members"),
    "a window that never ends": (drop(Table.DEDUP_END), "never ends"),
    "the dedup key of a live message": (drop(Table.DEDUP, lambda row: not row.until_ms), "is lost"),
    "the dedup key of another message": (
        change(Table.DEDUP, lambda row: not row.until_ms, raw_id=bytes(16)),
        "a message that is gone",
    ),
    "the dedup key of a dead letter": (bring_to_life, "stands for a dead letter"),
    "a stream without messages": (
        put(Table.STREAMS, made_key(ORDERED) + b"none", StreamRow((), 5)),
        "'none'",
    ),
    "more tokens than the burst": (change(Table.BUCKETS, tokens=6.0), "has 6.0 of 5.0 tokens"),
    "fewer tokens than none": (change(Table.BUCKETS, tokens=-1.0), "has -1.0 of 5.0 tokens"),
    # Numbered claims
    "a member that is not leased": (drop(Table.LEASES, lambda row: row.terms.is_numbered), "has 0 members"),
    "members of another claim": (another_claim, "has no consumer"),
    "a consumer that is lost": (drop(Table.CONSUMERS), "has no consumer"),
    "outcomes without a consumer": (
        put(Table.OUTCOMES, made_key(UNKNOWN, 1), RecordedCall("", [])),
        f"outcomes of claim {UNKNOWN:x} have no consumer",
    ),
    "a count of members": (change(Table.CONSUMERS, messages=4), "its record says otherwise"),
    "a count of bytes": (change(Table.CONSUMERS, bytes=99), "its record says otherwise"),
    "a count of outcomes": (change(Table.CONSUMERS, recorded=3), "its record says 3"),
    "outcomes that are lost": (
        drop(Table.OUTCOMES, lambda said: isinstance(said, RecordedCall)),
        "has outcomes of calls [2]",
    ),
    "an outcome of another message": (stranger, "messages that are not in it"),
    "an idle consumer with a claim": (change(Table.CONSUMERS, phase="idle"), "is idle, with claim id"),
    "a claim without a number": (change(Table.CONSUMERS, number=0), "with claim id"),
    "turns of slices without a claim": (
        change(Table.CONSUMERS, claim_id=0, phase="idle", number=0, turns=(1,)),
        "has turns of slices, but no claim",
    ),
    # Staged writes
    "a part that is lost": (drop(Table.STAGED_PARTS, lambda part: not part.deaths), "lacks messages"),
    "a part with too few messages": (
        change(Table.STAGED_PARTS, lambda part: not part.deaths, columns=NO_MESSAGES),
        "lacks messages",
    ),
    "a part of no chunk": (
        move(Table.STAGED_PARTS, lambda key: key[:8] + made_key(UNKNOWN)),
        "belongs to nothing",
    ),
    "a staged page that is lost": (
        lambda rows: rows[Table.PAGES].pop(max(rows[Table.PAGES])),
        "pages",
    ),
    "a dead part that tells no reason": (
        change(Table.STAGED_PARTS, lambda part: part.deaths, deaths=[]),
        "has 0 deaths",
    ),
    "a chunk with another count": (change(Table.STAGED, is_open, count=3), "the 3 messages it counts"),
    "a chunk that is still to come": (
        drop(Table.STAGED, lambda chunk: chunk.token == "half"),
        "are not there",
    ),
    "a chunk that comes twice": (change(Table.PUBLISHING, chunks=("b", "b")), "still to come twice"),
    "a publication behind the end of a chunk": (change(Table.PUBLISHING, offset=3), "without that message"),
    "a write that is done and to be done": (done_again, "is done, and still to be done"),
    "a write that is done and staged": (stage_again, "is done, and still has staged chunks"),
    "a done write that is never forgotten": (drop(Table.PUBLISHED_END), "not forgotten when they should be"),
    "a done write that is forgotten too early": (change(Table.PUBLISHED, until_ms=5), "not forgotten when"),
}


@pytest.mark.parametrize("what", UNSOUND_ROWS)
def test_rows_that_are_unsound_are_named(sound: Rows, what: str) -> None:
    break_it, sentence = UNSOUND_ROWS[what]
    problems = problems_after(sound, break_it)
    assert any(sentence in problem for problem in problems), problems


def test_the_scene_has_rows_in_every_table_that_is_broken(sound: Rows) -> None:
    elsewhere = {
        Table.API_KEYS,
        Table.RUNBOOKS,
        Table.EXTERNAL_QUEUES,
        Table.AUDIT,
        Table.ANSWERS,
        Table.SESSION_ENDS,
        Table.INTENTS,
    }
    assert {table for table, rows in sound.items() if not rows} == elsewhere


@pytest.mark.parametrize("table", TABLES_OF_A_QUEUE, ids=lambda table: table.name.lower())
def test_a_row_of_a_queue_that_never_was_is_named(sound: Rows, table: Table) -> None:
    problems = problems_after(sound, move(table, lambda key: made_key(UNKNOWN) + key[8:]))
    assert any(table.name.lower() in problem and f"no queue {UNKNOWN}" in problem for problem in problems)


@pytest.mark.parametrize(
    "table",
    [table for table, (length, _) in KEY_SHAPES.items() if length],
    ids=lambda table: table.name.lower(),
)
def test_a_key_of_the_wrong_length_is_named(sound: Rows, table: Table) -> None:
    (problem,) = problems_after(
        sound, put(table, b"\1", sound[table].get(min(sound[table], default=b""), b"\1"))
    )
    assert problem.startswith(f"table {table.name.lower()}, row 01: expected a key of")


# Memory

Memory = Any


def lane_of(memory: Memory, queue: str) -> Any:
    return next(iter(memory.by_name[queue].schedule.lanes()))


def lose_lane(memory: Memory, queue: str) -> None:
    schedule = memory.by_name[queue].schedule
    lane, numbers = next((lane, numbers) for lane, numbers in schedule.lanes().items() if numbers)
    schedule.remove(lane, numbers[0])


def insert_held(memory: Memory) -> None:
    number = next(number for number, lease in memory.held.items() if lease.terms.queue_id == ORDERED)
    memory.by_name["ordered"].schedule.insert(("default",), 1, number)


def first_lease(memory: Memory) -> Any:
    return next(lease for lease in memory.held.values() if lease.terms.consumer == "c")


def numbered(memory: Memory) -> Any:
    return next(lease for lease in memory.held.values() if lease.is_numbered)


def set_count(memory: Memory) -> None:
    memory.by_name["ordered"].counts.ready += 1


def set_record(memory: Memory) -> None:
    queue = memory.by_name["ordered"]
    queue.record = replace(queue.record, paused=True)


def set_in(where: Callable[[Memory], Any], name: str, value: Any) -> Callable[[Memory], object]:
    return lambda memory: setattr(where(memory), name, value)


def add_to(name: str) -> Callable[[Memory], object]:
    return lambda memory: setattr(memory, name, getattr(memory, name) + 1)


def say_more(memory: Memory) -> None:
    (outcomes,) = memory.consumers.outcomes.values()
    outcomes.outcomes.clear()


def queue_of(name: str) -> Callable[[Memory], Any]:
    return lambda memory: memory.by_name[name]


UNSOUND_MEMORY: dict[str, tuple[Callable[[Memory], object], str]] = {
    "a queue that is lost": (lambda memory: memory.by_name.pop("plain"), "after a reopening"),
    "a count": (set_count, "ordered: in memory Counts(ready="),
    "a record": (set_record, "ordered: its record differs"),
    "a stream": (
        lambda memory: memory.by_name["ordered"].streams.by_name.popitem(),
        "memory knows nothing of it",
    ),
    "a lane of an ordered queue": (
        lambda memory: lose_lane(memory, "ordered"),
        "and must have",
    ),
    "a lane": (lambda memory: lose_lane(memory, "plain"), "and must have"),
    "a lane that goes on on disk": (
        lambda memory: memory.by_name["plain"].schedule.end_cold(lane_of(memory, "plain")),
        "and must have",
    ),
    "a message in two places": (insert_held, "in more than one place"),
    "a record beside the messages": (
        lambda memory: memory.records[Table.STAGED].popitem(),
        "records beside the messages",
    ),
    "the configuration": (lambda memory: memory.config.popitem(), "the configuration differs"),
    "a weight": (lambda memory: memory.weights["ordered"].update(a=3), "the configuration differs"),
    "a bucket": (lambda memory: memory.buckets.set("t", None), "token buckets differ"),
    "a wait": (
        set_in(queue_of("ordered"), "next_due_ms", 0),
        "ordered: nobody looks when the next wait ends",
    ),
    "a life": (
        set_in(queue_of("ordered"), "next_life_ms", 0),
        "ordered: nobody looks when the next life ends",
    ),
    "a window": (
        set_in(queue_of("plain"), "next_window_ms", 0),
        "plain: nobody looks when the next window ends",
    ),
    "a completed message": (set_in(queue_of("plain"), "first_done_ms", 0), "has been kept long enough"),
    "a wait that is looked at too late": (
        set_in(queue_of("ordered"), "next_due_ms", 1 << 60),
        "the next wait ends",
    ),
    "a state": (lambda memory: memory.own.popitem(), "the states in memory are not those"),
    "a hot chunk": (lambda memory: memory.chunks.pop(min(memory.chunks)), "the hot chunks in memory"),
    "a chunk's content": (
        lambda memory: add_to("live")(memory.chunks[min(memory.chunks)]),
        "in memory is not what is stored",
    ),
    "hot messages": (add_to("hot_messages"), "messages are said to be hot"),
    "cached messages": (add_to("cached_messages"), "messages are said to be kept in memory"),
    "payloads in memory": (add_to("body_bytes"), "bytes of payloads are said to be in memory"),
    "cold chunks": (add_to("cold_count"), "chunks are said to be cold"),
    "a lease": (lambda memory: memory.held.pop(max(memory.held)), "leases differ after a reopening"),
    "a lease that never expires": (lambda memory: memory.expiries.clear(), "nobody looks when it expires"),
    "the members of a lease": (lambda memory: add_to("live")(first_lease(memory)), "members, and has"),
    "the leases of a consumer": (lambda memory: memory.by_consumer.pop("c"), "the leases by consumer"),
    "the leases under a token": (lambda memory: memory.by_token.clear(), "the leases by token"),
    "the leases of a queue": (
        lambda memory: memory.by_name["ordered"].leases.popitem(),
        "the leases by queue",
    ),
    "the order of a numbered claim": (
        lambda memory: set_in(numbered, "numbers", numbered(memory).numbers[::-1])(memory),
        "the members of numbered claims",
    ),
    "the holder of a numbered claim": (
        lambda memory: memory.consumers.holders.clear(),
        "the holders of numbered claims",
    ),
    "the outcomes of a claim": (say_more, "has other outcomes in memory than in the store"),
    "a consumer that is away": (
        lambda memory: setattr(memory.consumers, "next_look_ms", None),
        "ends without anybody looking",
    ),
    "the bytes of staged writes": (
        lambda memory: setattr(memory.staged, "stored_bytes", 0),
        "staged writes differ after a reopening",
    ),
}


@pytest.mark.parametrize("what", UNSOUND_MEMORY)
def test_memory_that_is_unsound_is_named(what: str) -> None:
    engine, _ = make()
    break_it, sentence = UNSOUND_MEMORY[what]
    break_it(engine.memory)
    problems = broken_laws(engine)
    assert any(sentence in problem for problem in problems), problems


def test_what_a_reopening_would_lack_is_named() -> None:
    """The engine in hand knows when the next wait ends; the row that would tell the next one is lost."""
    engine, data = make()
    data.tables[Table.DUE].delete(data.tables[Table.DUE].keys[0])
    assert any(
        problem.startswith("after a reopening, ordered: nobody looks") for problem in broken_laws(engine)
    )


def test_rows_that_do_not_fit_together_are_reported_and_not_raised(sound: Rows) -> None:
    """Each row is sound by itself: a dead letter is in a queue that does not exist."""
    (problem,) = problems_after(sound, change(Table.OWN, lambda state: state.dead_since_ms, queue_id=UNKNOWN))
    assert f"is in queue {UNKNOWN}, which does not exist" in problem
