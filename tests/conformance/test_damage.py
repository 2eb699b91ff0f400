"""Damaged files: the store says so and where. Never a wrong payload, never silently fewer messages."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Rdict, WriteBatch

from fairlead.errors import StoreCorrupt
from fairlead.model.lane import row_id
from fairlead.model.message import Message
from fairlead.store.port import Store
from fairlead.store.rocks import RocksStore
from fairlead.store.verify import verify
from tests.conformance.scene import WORK, RocksFactory, Scene


@pytest.fixture
def crashed(rocks_scene: Scene, rocks: RocksFactory) -> tuple[Path, list[Message]]:
    """Sixty commits in the write-ahead log, nothing flushed."""
    messages = [
        message for _ in range(60) for message in rocks_scene.enqueue(3, payload=bytes(range(256)) * 3)
    ]
    copy = rocks.directory / "crashed"
    shutil.copytree(rocks.path, copy)
    return copy, messages


@pytest.fixture
def flushed(rocks_scene: Scene, rocks: RocksFactory) -> tuple[Path, list[Message]]:
    """The same in tables, after an orderly close."""
    messages = [
        message for _ in range(60) for message in rocks_scene.enqueue(3, payload=bytes(range(256)) * 3)
    ]
    rocks_scene.store.close()
    return rocks.path, messages


def damaged(path: Path, change: Callable[[bytearray], None], file: Path) -> Path:
    copy = path.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    content = bytearray(file.read_bytes())
    change(content)
    (copy / file.name).write_bytes(content)
    return copy


def flip(at: int, mask: int = 0x10) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[at] ^= mask

    return change


def stored(store: Store) -> list[Message | None]:
    return store.messages([row_id(spot.row) for spot in store.ready(WORK, b"", None, 100_000)])


def the_log(path: Path) -> Path:
    return max(path.glob("*.log"))


@pytest.mark.parametrize("tenth", range(10))
def test_a_flipped_byte_in_the_write_ahead_log_stops_the_opening_and_names_the_file(
    crashed: tuple[Path, list[Message]], tenth: int
) -> None:
    path, _ = crashed
    log = the_log(path)
    broken = damaged(path, flip(log.stat().st_size * tenth // 10 + 13), log)
    with pytest.raises(StoreCorrupt, match=log.name):
        RocksStore.open(broken)
    assert not verify(broken).ok


def test_a_flipped_length_at_the_end_of_the_log_is_not_taken_for_a_torn_write(
    crashed: tuple[Path, list[Message]],
) -> None:
    path, _ = crashed
    log = the_log(path)
    for at in record_starts(log.read_bytes())[-3:]:
        broken = damaged(path, flip(at + 5, 0x40), log)
        with pytest.raises(StoreCorrupt, match=log.name):
            RocksStore.open(broken)


def test_a_torn_tail_of_the_log_is_a_crash_and_opens_with_what_came_before(
    crashed: tuple[Path, list[Message]],
) -> None:
    path, messages = crashed
    log = the_log(path)
    last = record_starts(log.read_bytes())[-1]
    for cut in (log.stat().st_size - 1, log.stat().st_size - 500, last + 3):
        torn = damaged(path, lambda content, cut=cut: content.__delitem__(slice(cut, None)), log)  # type: ignore[misc]
        assert verify(torn).problems == []
        store = RocksStore.open(torn)
        assert stored(store) == messages[:-3]
        assert store.counters(WORK).ready == len(messages) - 3
        store.close()


def test_a_flipped_byte_in_a_table_is_said_and_never_read_as_data(
    flushed: tuple[Path, list[Message]],
) -> None:
    path, messages = flushed
    for table in sorted(path.glob("*.sst")):
        size = table.stat().st_size
        for at in (size // 5, size // 2, size - 20):
            broken = damaged(path, flip(at), table)
            report = verify(broken)
            assert read_or_refuse(broken, messages) in ("intact", "refused")
            assert report.ok == (read_or_refuse(broken, messages) == "intact")


def read_or_refuse(path: Path, messages: list[Message]) -> str:
    store = None
    try:
        store = RocksStore.open(path)
        return (
            "intact" if stored(store) == messages and store.counters(WORK).ready == len(messages) else "wrong"
        )
    except StoreCorrupt:
        return "refused"
    finally:
        if store is not None:
            store.close()


def test_a_damaged_body_is_refused_by_every_question_that_meets_it(
    flushed: tuple[Path, list[Message]],
) -> None:
    path, messages = flushed
    bodies = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    broken = damaged(path, flip(bodies.stat().st_size // 2), bodies)
    store = RocksStore.open(broken)
    for ask in (
        lambda: store.messages([message.id for message in messages]),
        lambda: store.ids_between(b"\0" * 16, b"\xff" * 16, 10_000),
    ):
        with pytest.raises(StoreCorrupt, match=bodies.name):
            ask()
    store.close()


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT"])
def test_a_damaged_or_lost_administration_file_is_corrupt(
    flushed: tuple[Path, list[Message]], name: str
) -> None:
    path, _ = flushed
    (file,) = path.glob(name)
    for at in (0, file.stat().st_size // 2, file.stat().st_size - 2):
        with pytest.raises(StoreCorrupt):
            RocksStore.open(damaged(path, flip(at), file))
    lost = damaged(path, flip(0), file)
    (lost / file.name).unlink()
    with pytest.raises(StoreCorrupt):
        RocksStore.open(lost)


def test_a_lost_table_is_corrupt(flushed: tuple[Path, list[Message]]) -> None:
    path, _ = flushed
    for table in path.glob("*.sst"):
        lost = damaged(path, flip(0), table)
        (lost / table.name).unlink()
        assert not verify(lost).ok


FAMILIES = [
    "messages",
    "state",
    "ready",
    "waiting",
    "leases",
    "lease_expiry",
    "dedup",
    "queues",
    "counters",
    "intents",
    "meta",
]
OWN_KEYS = {"queues": b"\0\0\0\1", "counters": b"\0\0\0\1", "meta": b"boot"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("record", [b"", b"\x63later version", b"\1\xc1"])
def test_a_record_that_does_not_decode_is_corrupt_with_family_and_key(
    flushed: tuple[Path, list[Message]], family: str, record: bytes
) -> None:
    path, messages = flushed
    key = messages[0].id if family == "messages" else OWN_KEYS.get(family, b"\0\0\0\1" + b"k" * 24)
    write_raw(path, family, key, record)
    report = verify(path)
    assert not report.ok
    assert any(family in problem and key.hex() in problem for problem in report.problems)


def test_a_record_of_a_later_version_stops_the_question_that_meets_it(
    flushed: tuple[Path, list[Message]],
) -> None:
    path, messages = flushed
    write_raw(path, "messages", messages[5].id, b"\2" + b"\0" * 60)
    store = RocksStore.open(path)
    with pytest.raises(StoreCorrupt, match="messages " + messages[5].id.hex()):
        store.messages([messages[5].id])
    store.close()


def write_raw(path: Path, family: str, key: bytes, record: bytes) -> None:
    """Past the store, as only a bug or another program could."""
    store = RocksStore.open(path)
    batch = WriteBatch(raw_mode=True)
    batch.put(key, record, store._handles[family])
    db: Rdict = store._db
    db.write(batch)
    del db
    store.close()


def record_starts(log: bytes) -> list[int]:
    starts, at = [], 0
    while at + 7 <= len(log):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        starts.append(at)
        at += 7 + struct.unpack_from("<H", log, at + 4)[0]
    return starts
