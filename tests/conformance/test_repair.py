"""`repair`: nothing in the damaged directory changes, everything readable is saved, and what is missing is
listed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import fairlead
from fairlead import Complete, NewMessage
from fairlead.errors import InvalidRequest, StoreCorrupt, StoreLocked
from fairlead.model.ids import find_id, show_id
from fairlead.model.lane import PLACE_INDEX_BITS
from fairlead.salvage.report import RepairReport
from fairlead.store.rocks import RocksStore, codec
from fairlead.store.rocks.log_format import HEADER_BYTES, RecordWalk
from fairlead.store.rocks.marks import MARKS_FILE, read_mark, write_mark
from fairlead.store.rocks.mend import read_footer
from fairlead.store.verify import verify
from fairlead.testing import ManualClock
from tests.conformance.repair_scene import all_rows, fingerprint, flush, make_rich, payloads

Change = Callable[[Path], None]


class Ledger:
    """What was really there: every message ever enqueued, the commit that did it, and those completed."""

    def __init__(self) -> None:
        self.payload: dict[bytes, bytes] = {}
        self.commit: dict[bytes, int] = {}
        self.completed: set[bytes] = set()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ledger]:
    """Three tables of bodies and four live logs, left by a killed process, with completions in each."""
    base = tmp_path_factory.mktemp("made")
    ledger, rng = Ledger(), random.Random(5)
    broker = fairlead.open(base / "living", clock=ManualClock())
    broker.create_queue("work")
    for part in range(4):
        for _ in range(25):
            payloads = [rng.randbytes(rng.randrange(10, 1500)) for _ in range(4)]
            ids = broker.enqueue_many("work", [NewMessage(payload) for payload in payloads])
            commit = broker._core.store.last_commit
            for id, payload in zip(ids, payloads, strict=True):
                raw = find_id(id)
                assert raw is not None
                ledger.payload[raw], ledger.commit[raw] = payload, commit
        taken = broker.claim("work", limit=20)
        broker.settle([Complete(delivery) for delivery in taken])
        ledger.completed |= {raw for delivery in taken if (raw := find_id(delivery.id))}
        if part < 3:
            flush(broker, "messages")
    shutil.copytree(base / "living", base / "crashed")
    broker.close()
    return base / "crashed", ledger


@pytest.fixture
def damage(made: tuple[Path, Ledger], directory: Path) -> Callable[[Change], Path]:
    def change(how: Change) -> Path:
        path = directory / "damaged"
        shutil.copytree(made[0], path)
        how(path)
        return path

    return change


def logs(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def bodies(path: Path) -> list[Path]:
    return sorted(path.glob("*.sst"), key=lambda file: file.stat().st_size)


def flip(file: Path, at: int, mask: int = 0x10) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= mask
    file.write_bytes(content)


def flip_text(file: Path, text: bytes) -> None:
    flip(file, file.read_bytes().rindex(text))


def index_of(table: Path) -> int:
    places = read_footer(table.read_bytes())
    assert places is not None
    return places[2]


def flip_two(file: Path) -> None:
    for part in (1, 2):
        flip(file, file.stat().st_size * part // 4)


def header_of(log: Path, record: int) -> int:
    return [spans[0][0] - HEADER_BYTES for spans in RecordWalk(log.read_bytes())][record]


def saved(path: Path) -> dict[bytes, bytes]:
    store = RocksStore.open(path, read_only=True)
    try:
        return payloads(store)
    finally:
        store.close()


def check(damaged: Path, new: Path, ledger: Ledger, *, changes: bool = True) -> RepairReport:
    before = fingerprint(damaged)
    report = fairlead.repair(damaged, new)
    assert fingerprint(damaged) == before
    assert verify(new).problems == []
    found = saved(new)
    assert {id: ledger.payload[id] for id in found} == found, "a payload was invented or changed"
    missing = ledger.payload.keys() - ledger.completed - found.keys()
    named = {find_id(message.id) for message in report.gone}
    for id in missing - named:
        commit = ledger.commit[id]
        assert any(gap.first_commit <= commit <= (gap.last_commit or commit) for gap in report.gaps), (
            f"{show_id(id)} is missing and not listed"
        )
    back = found.keys() & ledger.completed
    unsure = any(not hurt.harmless and hurt.file.startswith("MANIFEST") for hurt in report.damages)
    allowed = {find_id(id) for id in report.redelivered}
    assert unsure or report.gaps or back <= allowed
    assert report.messages == len(found)
    if not changes:
        assert report.ok
        assert found.keys() == ledger.payload.keys() - ledger.completed
    with fairlead.open(new, clock=ManualClock()) as broker:
        broker.enqueue(
            "work" if any(info.name == "work" for info in broker.queues()) else broker.queues()[0].name,
            b"goes on",
        )
    return report


def lose(pick: Callable[[Path], Path]) -> Change:
    return lambda path: pick(path).unlink()


DAMAGES: dict[str, Change] = {
    "a wrong byte in a middle log": lambda path: flip(logs(path)[1], header_of(logs(path)[1], 7) + 40),
    "a wrong byte in the last log": lambda path: flip(logs(path)[-1], header_of(logs(path)[-1], 7) + 40),
    "a wrong checksum in a log": lambda path: flip(logs(path)[1], header_of(logs(path)[1], 7)),
    "a page of zeros in a log": lambda path: zero(logs(path)[1], 8192, 12288),
    "the first log is missing": lose(lambda path: logs(path)[0]),
    "a middle log is missing": lose(lambda path: logs(path)[1]),
    "the last log is missing": lose(lambda path: logs(path)[-1]),
    "a log is emptied": lambda path: os.truncate(logs(path)[1], 0),
    "the last log is emptied": lambda path: os.truncate(logs(path)[-1], 0),
    "a log is cut": lambda path: os.truncate(logs(path)[1], 20_000),
    "a wrong byte in a table": lambda path: flip(bodies(path)[-1], bodies(path)[-1].stat().st_size // 2),
    "two wrong bytes in a table": lambda path: flip_two(bodies(path)[-1]),
    "a wrong byte in the index of a table": lambda path: flip(bodies(path)[-1], index_of(bodies(path)[-1])),
    "a wrong byte in the metaindex of a table": lambda path: flip_text(
        bodies(path)[-1], b"rocksdb.properties"
    ),
    "a table is missing": lose(lambda path: bodies(path)[-1]),
    "the manifest is missing": lose(lambda path: next(path.glob("MANIFEST-*"))),
    "a wrong byte in the manifest": lambda path: flip(next(path.glob("MANIFEST-*")), 700),
    "the manifest is missing and a table has a wrong byte": lambda path: (
        next(path.glob("MANIFEST-*")).unlink(),
        flip(bodies(path)[-1], 5000),
    )[0],
    "the marks are missing": lose(lambda path: path / MARKS_FILE),
}

HARMLESS: dict[str, Change] = {
    "nothing": lambda path: None,
    "a wrong type in a middle log": lambda path: flip(logs(path)[1], header_of(logs(path)[1], 7) + 6, 4),
    "a wrong length in a middle log": lambda path: flip(logs(path)[1], header_of(logs(path)[1], 7) + 4, 8),
    "CURRENT is missing": lose(lambda path: path / "CURRENT"),
    "CURRENT is damaged": lambda path: flip(path / "CURRENT", 3),
    "the format file is missing": lose(lambda path: path / "FAIRLEAD_FORMAT"),
    "a wrong byte in the properties of a table": lambda path: flip_text(
        bodies(path)[-1], b"leveldb.BytewiseComparator"
    ),
    "properties of a table out of order": lambda path: flip_text(bodies(path)[-1], b"column.family.id"),
    "a wrong magic number of a table": lambda path: flip(bodies(path)[-1], -3),
}


def zero(file: Path, start: int, end: int) -> None:
    content = bytearray(file.read_bytes())
    content[start:end] = bytes(end - start)
    file.write_bytes(content)


def test_the_scene_has_several_live_logs_and_tables(made: tuple[Path, Ledger]) -> None:
    assert len(logs(made[0])) >= 3
    assert len(bodies(made[0])) >= 3
    assert verify(made[0]).ok


@pytest.mark.parametrize("how", DAMAGES)
def test_repair_saves_what_can_be_read_and_lists_the_rest(
    damage: Callable[[Change], Path], made: tuple[Path, Ledger], directory: Path, how: str
) -> None:
    damaged = damage(DAMAGES[how])
    assert not verify(damaged).ok
    report = check(damaged, directory / "new", made[1])
    assert not report.ok
    assert any(not hurt.harmless for hurt in report.damages)


@pytest.mark.parametrize("how", ["a wrong byte in a table", "two wrong bytes in a table"])
def test_damage_in_a_table_costs_only_the_rows_of_the_damaged_blocks(
    damage: Callable[[Change], Path], made: tuple[Path, Ledger], directory: Path, how: str
) -> None:
    report = check(damage(DAMAGES[how]), directory / "new", made[1])
    blocks = [hurt for hurt in report.damages if hurt.file.endswith(".sst")]
    lost = [raw for message in report.gone if (raw := find_id(message.id))]
    assert (
        0 < sum(len(made[1].payload[id]) for id in lost) <= sum(block.end - block.start for block in blocks)
    )


def test_repair_saves_every_row_of_a_table_whose_metaindex_is_damaged(
    damage: Callable[[Change], Path], made: tuple[Path, Ledger], directory: Path
) -> None:
    report = check(damage(DAMAGES["a wrong byte in the metaindex of a table"]), directory / "new", made[1])
    assert report.messages == len(made[1].payload.keys() - made[1].completed)
    (hurt,) = report.damages
    assert "deleted as a range" in hurt.what


@pytest.mark.parametrize("how", HARMLESS)
def test_repair_saves_everything_if_no_row_is_damaged(
    damage: Callable[[Change], Path], made: tuple[Path, Ledger], directory: Path, how: str
) -> None:
    check(damage(HARMLESS[how]), directory / "new", made[1], changes=False)


def test_repair_of_a_sound_directory_copies_every_row(directory: Path) -> None:
    make_rich(directory / "rich", ManualClock())
    report = fairlead.repair(directory / "rich", directory / "new")
    assert report.ok
    assert rows_of(directory / "new") == rows_of(directory / "rich")


def rows_of(path: Path) -> dict[str, dict[bytes, bytes]]:
    store = RocksStore.open(path, read_only=True)
    try:
        rows = all_rows(store)
        del rows["meta"]
        return rows
    finally:
        store.close()


@pytest.mark.parametrize(
    "family", ["messages", "state", "ready", "leases", "streams", "stream_rows", "queues", "waiting", "dedup"]
)
def test_any_family_of_rows_may_be_lost(directory: Path, family: str) -> None:
    """All rows of one family are gone, while those of the others are there."""
    make_rich(directory / "rich", ManualClock())
    before = rows_of(directory / "rich")
    store = RocksStore.open(directory / "rich")
    for key in before[family]:
        store._tables[family].delete(key)
    store.close()
    assert not verify(directory / "rich").ok
    report = fairlead.repair(directory / "rich", directory / "new")
    assert verify(directory / "new").problems == []
    assert not report.ok
    found = set(rows_of(directory / "new")["messages"])
    assert found == (set() if family == "messages" else set(before["messages"]))
    assert {find_id(message.id) for message in report.gone} == set(before["messages"]) - found
    with fairlead.open(directory / "new", clock=ManualClock()):
        pass


def test_places_and_lease_tokens_of_the_damaged_directory_do_not_come_again(
    damage: Callable[[Change], Path], directory: Path
) -> None:
    damaged = damage(DAMAGES["a wrong byte in the last log"])
    fairlead.repair(damaged, directory / "new")
    store = RocksStore.open(directory / "new")
    places = [codec.MESSAGE.unpack_from(raw)[4] for raw in all_rows(store)["messages"].values()]
    assert store.last_commit >= max(places) >> PLACE_INDEX_BITS
    assert store.boot > 1
    store.close()


def test_a_directory_in_use_and_a_target_with_content_are_refused(
    damage: Callable[[Change], Path], directory: Path
) -> None:
    damaged = damage(HARMLESS["nothing"])
    with fairlead.open(damaged), pytest.raises(StoreLocked):
        fairlead.repair(damaged, directory / "new")
    (directory / "full").mkdir()
    (directory / "full" / "file").write_text("")
    (directory / "empty").mkdir()
    for target in (directory / "full", damaged / "inside", directory / "full" / "file"):
        with pytest.raises(InvalidRequest):
            fairlead.repair(damaged, target)
    with pytest.raises(InvalidRequest):
        fairlead.repair(directory / "empty", directory / "new")
    assert not (directory / "new").exists()


def test_a_repair_that_is_killed_leaves_no_new_directory(
    damage: Callable[[Change], Path], made: tuple[Path, Ledger], directory: Path
) -> None:
    damaged = damage(DAMAGES["a wrong byte in a table"])
    before = fingerprint(damaged)
    for steps in (1, 3, 30):
        code = (
            "import fairlead.salvage.repair as r, os, sys; told = []\n"
            f"def progress(*what):\n told.append(what)\n if len(told) == {steps}: os.kill(os.getpid(), 9)\n"
            "r.repair(sys.argv[1], sys.argv[2], progress=progress)"
        )
        victim = subprocess.run(
            [sys.executable, "-c", code, str(damaged), str(directory / "new")], check=False
        )
        assert victim.returncode == -signal.SIGKILL
        assert not (directory / "new").exists()
        assert fingerprint(damaged) == before
    check(damaged, directory / "new", made[1])
    assert not list(directory.glob(".*")), "nothing is left beside the new directory"


@pytest.mark.parametrize("seed", range(16))
def test_any_damage_to_any_files_is_repaired_without_inventing_anything(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    make_rich(directory / "rich", ManualClock())
    truth = saved(directory / "rich")
    for _ in range(rng.choice((1, 1, 2, 3))):
        names = ("MANIFEST", "CURRENT", "FAIRLEAD")
        files = sorted(
            file
            for file in (directory / "rich").iterdir()
            if file.suffix in (".log", ".sst") or file.name.startswith(names)
        )
        spoil(rng.choice(files), rng)
    before = fingerprint(directory / "rich")
    report = fairlead.repair(directory / "rich", directory / "new")
    assert fingerprint(directory / "rich") == before
    found = saved(directory / "new")
    assert {id: truth.get(id, payload) for id, payload in found.items()} == found
    assert not report.ok or found.keys() == truth.keys()
    with fairlead.open(directory / "new", clock=ManualClock()) as broker:
        broker.run_due()


def spoil(file: Path, rng: random.Random) -> None:
    size = file.stat().st_size
    how = rng.choice(("flip", "flip", "cut", "zero", "empty", "delete"))
    if how == "delete":
        file.unlink()
    elif how == "empty" or not size:
        os.truncate(file, 0)
    elif how == "cut":
        os.truncate(file, rng.randrange(size))
    elif how == "flip":
        flip(file, rng.randrange(size), 1 << rng.randrange(8))
    else:
        at = rng.randrange(size)
        zero(file, at, min(size, at + 300))


# cut_unsynced


def other_boot(path: Path, **changes: int) -> None:
    """As if the machine had restarted since: what was written and not synced may be missing."""
    mark = replace(read_mark(path), boot=bytes(range(16)), **changes)
    (path / MARKS_FILE).unlink()
    write_mark(path, mark)


def first_sequence(log: Path, record: int) -> int:
    at = header_of(log, record) + HEADER_BYTES
    return int.from_bytes(log.read_bytes()[at : at + 8], "little")


def power_cut(path: Path) -> None:
    """The last log is synced up to its tenth record; a page behind it is lost, later ones are there."""
    last = logs(path)[-1]
    other_boot(path, sequence=first_sequence(last, 10) - 1)
    at = header_of(last, 15)
    zero(last, at, at + 500)


def test_cut_unsynced_keeps_everything_up_to_the_first_defect(
    damage: Callable[[Change], Path], made: tuple[Path, Ledger], directory: Path
) -> None:
    damaged = damage(power_cut)
    assert not verify(damaged).ok
    before = fingerprint(damaged)
    kept = made[0] / logs(made[0])[-1].name
    report = fairlead.repair(damaged, directory / "new", cut_unsynced=True)
    assert fingerprint(damaged) == before
    assert report.ok
    (dropped,) = report.dropped
    assert (dropped.file, dropped.kept_bytes) == (kept.name, header_of(kept, 15))
    assert dropped.kept_bytes + dropped.dropped_bytes == kept.stat().st_size
    assert dropped.batches > 0
    prefix = directory / "prefix"
    shutil.copytree(made[0], prefix)
    other_boot(prefix, sequence=first_sequence(kept, 10) - 1)
    os.truncate(prefix / kept.name, dropped.kept_bytes)
    assert rows_of(directory / "new") == rows_of(prefix)
    with fairlead.open(directory / "new", clock=ManualClock()):
        pass


def test_cut_unsynced_drops_the_log_behind_an_unsynced_end(directory: Path) -> None:
    """A power failure during a flush: the closed log lost its end, the next log has records, no sync covered
    either.
    """
    living, damaged = directory / "living", directory / "damaged"
    broker = fairlead.open(living, clock=ManualClock(), durability="os")
    broker.create_queue("work")
    ids = [broker.enqueue("work", b"first-%d" % n) for n in range(20)]
    (manifest,) = living.glob("MANIFEST-*")
    before_flush, tables = manifest.read_bytes(), set(living.glob("*.sst"))
    flush(broker, "messages")
    for n in range(20):
        broker.enqueue("work", b"second-%d" % n)
    shutil.copytree(living, damaged)
    broker.close()
    (damaged / manifest.name).write_bytes(before_flush)
    for table in set(damaged.glob("*.sst")) - {damaged / file.name for file in tables}:
        table.unlink()
    closed, last = logs(damaged)[-2:]
    other_boot(
        damaged,
        log=int(closed.stem),
        sequence=first_sequence(closed, 10) - 1,
        manifest_bytes=len(before_flush),
    )
    os.truncate(closed, header_of(closed, 15) + 20)
    assert not verify(damaged).ok
    report = fairlead.repair(damaged, directory / "new", cut_unsynced=True)
    assert [dropped.file for dropped in report.dropped] == [closed.name, last.name]
    assert (report.dropped[1].kept_bytes, report.dropped[1].batches) == (0, 20)
    found = saved(directory / "new")
    kept = {raw for id in ids if (raw := find_id(id)) in found}
    assert found.keys() == kept
    assert sorted(found.values()) == sorted(b"first-%d" % n for n in range(len(kept)))
    assert 10 <= len(kept) < 20


@pytest.mark.parametrize(
    "how",
    [
        "a wrong byte in a middle log",
        "a wrong byte in the last log",
        "the last log is emptied",
        "a page of zeros in a log",
    ],
)
def test_cut_unsynced_refuses_damage_before_the_mark(
    damage: Callable[[Change], Path], directory: Path, how: str
) -> None:
    damaged = damage(DAMAGES[how])
    with pytest.raises(StoreCorrupt, match="sync confirmed") as refused:
        fairlead.repair(damaged, directory / "new", cut_unsynced=True)
    assert how == "the last log is emptied" or refused.value.where.endswith(".log")
    assert not (directory / "new").exists()


@pytest.mark.parametrize("where", ["leased", "in a stream"])
def test_a_message_whose_dedup_window_is_over_is_saved_where_it_was(directory: Path, where: str) -> None:
    clock = ManualClock()
    stream = "s" if where == "in a stream" else None
    with fairlead.open(directory / "living", clock=clock) as broker:
        broker.create_queue("q", dedup="1s", visibility_timeout="1h")
        broker.enqueue_many("q", [NewMessage(b"%d" % n, dedup_key=f"k{n}", stream=stream) for n in range(6)])
        clock.advance(seconds=3)
        broker.run_due()
        leased = len(broker.claim("q", limit=2, max_per_stream=2))
    report = fairlead.repair(directory / "living", directory / "new")
    assert report.messages == 6
    assert verify(directory / "new").problems == []
    with fairlead.open(directory / "new", clock=clock) as broker:
        assert broker.stats("q").leased == leased == 2


def test_tables_that_stand_in_each_others_place_are_read_as_what_they_are(directory: Path) -> None:
    make_rich(directory / "rich", ManualClock())
    RocksStore.open(directory / "rich").close()
    first, *_, last = sorted((directory / "rich").glob("*.sst"))
    one, other = first.read_bytes(), last.read_bytes()
    first.write_bytes(other)
    last.write_bytes(one)
    with pytest.raises(StoreCorrupt):
        RocksStore.open(directory / "rich")
    report = fairlead.repair(directory / "rich", directory / "new")
    assert {damage.file for damage in report.damages} == {first.name, last.name}
    assert report.gone == []
    assert verify(directory / "new").problems == []


def test_cut_unsynced_copies_a_healthy_directory_that_was_closed(directory: Path) -> None:
    with fairlead.open(directory / "living", clock=ManualClock()) as broker:
        broker.create_queue("q")
        broker.enqueue_many("q", [NewMessage(b"x")] * 20)
    # Closing has put all of it into tables; opening and closing again leaves a log that nothing needs.
    report = fairlead.repair(directory / "living", directory / "new", cut_unsynced=True)
    assert (report.messages, report.dropped) == (20, [])
