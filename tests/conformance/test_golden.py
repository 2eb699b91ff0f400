"""A directory written by every released format keeps opening, with everything in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlead.model.lane import row_id
from fairlead.model.names import Scoped
from fairlead.model.queue import Counters
from fairlead.store.rocks import RocksStore
from fairlead.store.rocks.layout import FAMILIES
from fairlead.store.verify import verify
from tests.conformance.golden import make

GOLDEN = Path(make.__file__).parent


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    copy = tmp_path / "data"
    shutil.copytree(GOLDEN / "format-1", copy)
    return copy


def test_the_directory_of_format_1_is_sound(directory: Path) -> None:
    report = verify(directory)
    assert report.problems == []
    assert (report.messages, report.queues, report.leases) == (10, 3, 1)


@pytest.mark.parametrize("how", ["read-only", "opened", "opened again"])
def test_the_directory_of_format_1_opens_with_everything_in_it(directory: Path, how: str) -> None:
    if how == "opened again":
        RocksStore.open(directory).close()
    store = RocksStore.open(directory, read_only=how == "read-only")
    everyone = [
        make.PLAIN,
        make.EXPIRING,
        make.WAITING,
        make.WINDOWED,
        make.LIVE,
        make.LEASED,
        make.BURIED,
        make.LATE,
        make.FRONT,
        make.BEHIND,
    ]
    assert store.messages([message.id for message in everyone]) == everyone
    assert store.queues() == make.QUEUES
    assert store.last_queue_id == make.GONE
    assert store.last_commit == 7
    assert store.boot == {"read-only": 2, "opened": 3, "opened again": 4}[how]
    in_order = [make.PLAIN, make.WINDOWED, make.LIVE, make.LATE, make.FRONT, make.EXPIRING]
    assert [row_id(spot.row) for spot in store.ready(make.WORK, b"", None, 10)] == [
        message.id for message in in_order
    ]
    assert store.ready(make.DEAD, b"", None, 10) == [make.DEAD_SPOT]
    assert [spot.due_ms for spot in store.waiting(make.WORK, None, 10)] == [make.WAITING.due_ms]
    assert store.states([make.BURIED.id, make.PLAIN.id]) == [make.DEAD_STATE, None]
    assert store.leases() == [make.LEASE]
    assert store.claims() == [(make.LEASE.expires_ms, make.CLAIM)]
    assert store.expired(make.WORK, make.NOW + 60_000, 10) == [(make.EXPIRING.expires_ms, make.EXPIRING.id)]
    assert store.dedup(make.WORK, ["order-4", "order-5"]) == [
        (make.WINDOWED.id, make.WINDOWED.dedup_until_ms),
        (make.LIVE.id, 0),
    ]
    assert store.config() == make.SETTINGS
    assert store.intents() == [make.INTENT]
    assert store.counters(make.WORK) == Counters(7, 1, 1, 0, sum(m.size for m in everyone) - make.BURIED.size)
    assert store.counters(make.DEAD) == Counters(ready=1, bytes=make.BURIED.size)
    assert store.streams(make.WORK, ["customer-ü"]) == [make.STREAM]
    assert store.stream_rows(make.WORK, "customer-ü", 0, 10) == [make.NEXT_ROW]
    assert store.request(make.REQUEST[0]) == make.REQUEST[1]
    etl = Scoped("q", "etl")
    claim = store.claim_members(etl, 1), store.claim_outcomes(etl, 1, 0, 9), store.claim_choice(etl, 1)
    assert (store.consumers(), *claim) == ([], [], [], ())
    store.close()


def test_what_is_made_today_is_what_was_made_then(tmp_path: Path) -> None:
    """The script still describes the directory; if the layout changed, the format number must change with it."""
    make.make(tmp_path / "now")
    then, now = (RocksStore.open(path, read_only=True) for path in (GOLDEN / "format-1", tmp_path / "now"))
    for family in FAMILIES:
        assert then._scan(family, b"", None, 1000) == now._scan(family, b"", None, 1000), family
    then.close()
    now.close()


def test_the_golden_directory_stays_small() -> None:
    assert sum(file.stat().st_size for file in (GOLDEN / "format-1").iterdir()) < 200_000
