"""A store that is rebuilt from its rows is the same store."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.salvage.rebuild import rebuild
from fairlead.salvage.report import RepairReport
from fairlead.store.rocks import RocksStore, codec
from fairlead.store.rocks.salvage import Salvage
from fairlead.store.verify import verify
from fairlead.testing import ManualClock
from tests.conformance.repair_scene import all_rows, make_rich

GOLDEN = Path(__file__).parent / "golden" / "format-1"


@pytest.fixture
def rich(directory: Path) -> Path:
    make_rich(directory / "rich", ManualClock())
    return directory / "rich"


def rebuilt(path: Path, directory: Path) -> tuple[RocksStore, RepairReport]:
    scratch = directory / "scratch"
    scratch.mkdir()
    report = RepairReport()
    source = Salvage(path, scratch, step=lambda name: None)
    store = RocksStore.open(directory / "rebuilt")
    rebuild(source, store, report, step=lambda family, rows: None)
    report.damages, report.gaps = source.damages, source.gaps
    source.close()
    return store, report


@pytest.mark.parametrize("which", ["rich", "golden"])
def test_the_rebuilt_rows_of_a_sound_directory_are_the_same_rows(
    rich: Path, directory: Path, which: str
) -> None:
    path = rich if which == "rich" else GOLDEN
    before_store = RocksStore.open(path, read_only=True)
    before = all_rows(before_store)
    before_store.close()
    store, report = rebuilt(path, directory)
    after = all_rows(store)
    numbers = before.pop("meta"), after.pop("meta")
    try:
        assert report.ok, report
        assert after == before
        for name in (b"boot", b"last_commit", b"last_queue_id"):
            was, now = (codec.META.unpack(meta[name])[1] for meta in numbers)
            assert now >= was
    finally:
        store.close()
    assert verify(directory / "rebuilt").problems == []
