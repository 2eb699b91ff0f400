"""The promise of the disk reserve, on a small disk: whatever was tried before, requests that free space fit,
and so does a restart.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead import Complete, Fail, NewMessage, Settings
from fairlead.errors import StoreFull
from fairlead.store.rocks.reserve import FLOOR_BYTES, MIN_DISK_RESERVE_BYTES
from tests.conformance.filling import LEASES

MIB = 1 << 20
SMALLEST = Settings(disk_reserve_bytes=MIN_DISK_RESERVE_BYTES)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "fairlead-test", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        why = f"mounting a small tmpfs needs rights: {mounted.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def free(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def test_after_everything_was_tried_and_a_kill_all_completes_a_purge_and_a_restart_succeed(
    disk: Path,
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.conformance.filling",
        str(disk / "data"),
        str(MIN_DISK_RESERVE_BYTES),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as filling:
        assert filling.stdout is not None
        ids, last = filling.stdout.readline().split(), filling.stdout.readline().strip()
        filling.kill()
    assert last == "refused"
    assert len(ids) == LEASES
    assert free(disk) > FLOOR_BYTES, "nothing but requests that free space may use the floor"
    with fairlead.open(disk / "data", durability="os", settings=SMALLEST) as broker:
        with pytest.raises(StoreFull):
            broker.enqueue("q", b"x" * 10_000)
        assert {broker.ack("q", message_id).outcome for message_id in ids} == {"completed"}
        assert broker.purge("q") > 0
    with fairlead.open(disk / "data", durability="os", settings=SMALLEST) as broker:
        stats = broker.stats("q")
        assert (stats.ready, stats.waiting, stats.leased) == (0, 0, 0)
    assert fairlead.verify(disk / "data").ok


def test_in_the_floor_of_the_reserve_only_what_frees_space_goes_on(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with fairlead.open(disk / "data", durability="os", settings=SMALLEST) as broker:
        broker.create_queue("q", visibility_timeout="1h")
        broker.enqueue_many("q", [NewMessage(b"x")] * 5)
        first, second = broker.claim("q", limit=2)
        (disk / "ballast").write_bytes(b"x" * (free(disk) - FLOOR_BYTES + MIB))
        for refused in (
            lambda: broker.claim("q"),
            lambda: broker.audit_trail.begin("who", "name", "from", "peek", "q"),
        ):
            with pytest.raises(StoreFull) as error:
                refused()
            assert error.value.reserve_bytes == FLOOR_BYTES
            assert error.value.free_bytes < error.value.needed_bytes
        with caplog.at_level(logging.WARNING, logger="fairlead.audit"):
            record = broker.audit_trail.begin("who", "name", "from", "purge", "q")
            broker.audit_trail.finish(record, "done", 3)
        assert [entry.verb for entry in broker.audit.read()] == []
        assert [message.fields["outcome"] for message in caplog.records] == ["asked", "done"]  # type: ignore[attr-defined]
        assert [result.outcome for result in broker.settle([Complete(first), Fail(second, "error")])] == [
            "completed",
            "retry",
        ]
        assert broker.purge("q") == 4
    with fairlead.open(disk / "data", durability="os", settings=SMALLEST) as broker:
        assert broker.stats("q").ready == 0


def fill(broker: fairlead.Broker, batch: list[NewMessage]) -> None:
    for _ in range(10_000):
        broker.enqueue_many("q", batch)


@pytest.mark.parametrize("left", ["the reserve", "the floor of the reserve"])
def test_space_that_was_freed_comes_back_by_itself(disk: Path, left: str) -> None:
    with fairlead.open(disk / "data", durability="os", settings=SMALLEST) as broker:
        broker.create_queue("q")
        batch = [NewMessage(os.urandom(10_000)) for _ in range(100)]
        with pytest.raises(StoreFull):
            fill(broker, batch)
        if left == "the floor of the reserve":
            (disk / "ballast").write_bytes(b"x" * (free(disk) - FLOOR_BYTES - MIB))
        broker.purge("q")
        give_up_at = time.monotonic() + 30
        while time.monotonic() < give_up_at:
            try:
                broker.enqueue_many("q", batch)
                break
            except StoreFull:
                # Tables are compacted in the background: give that thread its turn.
                time.sleep(0.01)
        assert broker.stats("q").ready == 100
