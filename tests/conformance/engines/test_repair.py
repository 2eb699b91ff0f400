"""A repair saves what can be read of a damaged directory, invents nothing, and says what is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead import Complete, Extend, Fail, NewMessage
from fairlead.cli.restoring import restore
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.verify import verify
from fairlead.errors import StoreCorrupt
from fairlead.salvage.repair import repair
from fairlead.salvage.report import RepairReport
from fairlead.store.kv.port import Table
from fairlead.store.kv.rocks import RocksKeyValueStore
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigGet, ConfigSet
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.queues import CreateQueue, ListQueues
from fairlead.verbs.settle import Goodbye, Settle

#: Opening needs none of these.
UNNEEDED = ("LOG", "LOCK", "IDENTITY", "OPTIONS", "rocksdict")
Messages = dict[str, bytes]


@dataclass
class Made:
    """`unsynced`: a directory with everything in its log. `tables`: the same rows in tables."""

    unsynced: Path
    tables: Path
    live: Messages
    completed: Messages


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    home = tmp_path_factory.mktemp("repair")
    store = RocksKeyValueStore.open(home / "data")
    engine = Engine(store, clock=ManualClock())
    engine.do(CreateQueue("live", {"dedup": "live", "visibility_timeout": "1h"}))
    engine.do(CreateQueue("window", {"dedup": "1h", "visibility_timeout": "1h"}))
    engine.do(ConfigSet("throttle.t", "5,5"))
    messages: Messages = {}
    for queue, sizes in (
        ("live", (3000,) * 30),
        ("window", (5,) * 40),
        ("live", (1,)),
        ("window", (9000,) * 7),
    ):
        bodies = [
            b"%s %d " % (queue.encode(), len(messages) + at) + b"." * size for at, size in enumerate(sizes)
        ]
        ids = engine.do(
            EnqueueMany(
                queue,
                [
                    NewMessage(
                        body,
                        fairness_key=f"k{at % 3}",
                        dedup_key=f"d{len(messages) + at}",
                        delay="1h" if at == 2 else None,
                    )
                    for at, body in enumerate(bodies)
                ],
            )
        )
        messages |= dict(zip(ids, bodies, strict=True))
    bodies = [b"stream %d" % at for at in range(9)]
    streamed = [NewMessage(body, stream=f"s{at % 2}") for at, body in enumerate(bodies)]
    messages |= dict(zip(engine.do(EnqueueMany("window", streamed)), bodies, strict=True))
    completed: Messages = {}
    for queue in ("live", "window"):
        first, second, third, fourth, *_ = engine.do(Claim(queue, 9, consumer="c", started=False))
        engine.do(
            Settle([Complete(first), Fail(second), Fail(third, dead=True), Extend(fourth, "10m", progress=2)])
        )
        completed[first.id] = messages.pop(first.id)
    shutil.copytree(home / "data", home / "unsynced")
    for table in Table:
        store.flush_table(table)
    engine.close()
    return Made(home / "unsynced", home / "data", messages, completed)


def contents(path: Path) -> Messages:
    """Everything that a reopened engine delivers, after its laws were checked."""
    clock = ManualClock()
    engine = Engine(RocksKeyValueStore.open(path), clock=clock)
    assert broken_laws(engine) == []
    engine.do(Goodbye("c"))
    clock.advance(seconds=7200)
    found: Messages = {}
    for queue in [info.name for info in engine.do(ListQueues(""))]:
        while claimed := engine.do(Claim(queue, 1000, consumer="reader")):
            assert not found.keys() & {one.id for one in claimed}, "one message, two places"
            found |= {one.id: bytes(one.payload) for one in claimed}
            # The next message of a stream follows a completed one.
            engine.do(Settle([Complete(one) for one in claimed]))
    assert broken_laws(engine) == []
    engine.close()
    return found


def repaired(damaged: Path, into: Path) -> tuple[RepairReport, Messages]:
    report = repair(damaged, into)
    found = contents(into)
    assert report.messages == len(found)
    return report, found


def flip(file: Path, share: float = 0.5) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[int(share * len(content))] ^= 0x10
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_somewhere(file: Path) -> None:
    """Another part of each file: its data, its index, its end."""
    flip(file, (0.1, 0.5, 0.8, 0.97)[len(file.read_bytes()) % 4])


CHANGES: dict[str, Callable[[Path], None]] = {"delete": Path.unlink, "cut": cut, "flip": flip_somewhere}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("unsynced", "delete"),
        ("unsynced", "cut"),
        ("unsynced", "flip"),
        ("tables", "delete"),
        ("tables", "flip"),
    ],
)
def test_a_repair_saves_what_can_be_read_and_invents_nothing(
    made: Made, tmp_path: Path, kind: str, change: str
) -> None:
    base: Path = getattr(made, kind)
    everything = made.live | made.completed
    names = [file.name for file in sorted(base.iterdir()) if not file.name.startswith(UNNEEDED)]
    sound = 0
    for name in names:
        damaged = Path(shutil.copytree(base, tmp_path / name / "damaged"))
        CHANGES[change](damaged / name)
        report, found = repaired(damaged, tmp_path / name / "new")
        assert found.items() <= everything.items(), f"{name}: a message that nobody enqueued, or a wrong body"
        if report.ok:
            assert found == made.live, f"{name}: something is lost, and the report does not say so"
            sound += 1
        else:
            lost = made.live.keys() - found.keys()
            told = {one.id for one in report.gone}
            assert lost <= told or report.other or report.gaps, f"{name}: {report}"
    assert sound, "some files can be missed"


def test_a_sound_directory_is_copied(made: Made, tmp_path: Path) -> None:
    report, found = repaired(made.tables, tmp_path / "new")
    assert report.ok
    assert found == made.live
    assert {queue.queue: queue.saved for queue in report.queues}.keys() == {
        "live",
        "live.dlq",
        "window",
        "window.dlq",
    }


def test_ids_leases_and_settings_outlive_a_repair(made: Made, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(made.tables, tmp_path / "damaged"))
    (damaged / "CURRENT").unlink()
    before = RocksKeyValueStore.open(made.tables, read_only=True)
    commit = before.last_commit
    before.close()
    repair(damaged, tmp_path / "new")
    store = RocksKeyValueStore.open(tmp_path / "new")
    engine = Engine(store, clock=ManualClock())
    assert store.last_commit > commit, "numbers that were given out are not given again"
    assert engine.do(ConfigGet("throttle.t")) == "5,5"
    (again,) = engine.do(EnqueueMany("live", [NewMessage(b"twin", dedup_key="d20")]))
    assert again in made.live, "a dedup key still stands for its message"
    assert engine.do(Goodbye("c")) == 12
    assert broken_laws(engine) == []
    engine.close()


def test_a_checkpoint_can_be_restored(made: Made, tmp_path: Path) -> None:
    store = RocksKeyValueStore.open(shutil.copytree(made.unsynced, tmp_path / "data"))
    store.checkpoint(tmp_path / "backup")
    store.close()
    report = restore(tmp_path / "backup", tmp_path / "restored", began=lambda *_: None, copied=lambda _: None)
    assert report.messages == len(made.live)
    assert verify(tmp_path / "restored").ok
    assert contents(tmp_path / "restored") == made.live


def test_a_damaged_backup_is_not_restored(made: Made, tmp_path: Path) -> None:
    backup = Path(shutil.copytree(made.tables, tmp_path / "backup"))
    flip(max(backup.glob("*.sst"), key=lambda file: file.stat().st_size))
    with pytest.raises(StoreCorrupt):
        restore(backup, tmp_path / "restored", began=lambda *_: None, copied=lambda _: None)
    assert not (tmp_path / "restored").exists()


def test_streams_of_which_a_part_is_cold_outlive_a_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "HOT_MESSAGES", 400)
    engine = Engine(RocksKeyValueStore.open(tmp_path / "data"))
    engine.do(CreateQueue("q", {"visibility_timeout": "1h"}))
    for _ in range(3):
        messages = [NewMessage(b"", stream=f"s{at % 20}" if at % 4 else None) for at in range(40)]
        engine.do(EnqueueMany("q", messages))
        found = engine.do(Claim("q", 9, consumer="c"))
        failed = [Fail(one, dead=at % 3 == 0, retry_in="1h") for at, one in enumerate(found[:6])]
        engine.do(Settle([*failed, Complete(found[6])]))
    before = engine.do(ListQueues())
    engine.close()
    repair(tmp_path / "data", tmp_path / "new")
    repaired_engine = Engine(RocksKeyValueStore.open(tmp_path / "new"))
    assert broken_laws(repaired_engine) == []
    assert repaired_engine.do(ListQueues()) == before
    repaired_engine.close()
