"""A copy made while running opens elsewhere with the same content."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import fairlead
from fairlead import Complete, Fail, NewMessage, Settings, errors
from tests.integration.world import World


def content(broker: fairlead.Broker, queue: str) -> list[object]:
    found: list[object] = [broker.stats(queue).ready, broker.stats(queue).bytes]
    for where in ("ready", "waiting", "leased"):
        found += broker.peek(queue, where=where, limit=1000)
    return found


def test_a_checkpoint_opens_elsewhere_with_the_same_content_and_verifies(disk_world: World) -> None:
    world = disk_world
    world.fill("q", key="a", payload=b"x" * 2000, count=50)
    world.broker.enqueue("q", b"", delay="1h", headers={"h": "1"}, ttl="2h", dedup_key="d")
    world.broker.config.set("throttle:t:rate", 5)
    claimed = world.broker.claim("q", limit=5, consumer="ann")
    world.broker.settle([Fail(claimed[0], dead=True), Fail(claimed[1]), Complete(claimed[2])])
    expected = [content(world.broker, queue) for queue in ("q", "q.dlq")]
    world.broker.checkpoint(world.path / "copy")
    world.broker.purge("q")
    assert fairlead.verify(world.path / "copy").problems == []
    with fairlead.open(world.path / "copy", durability="os", clock=world.clock) as copy:
        assert [content(copy, queue) for queue in ("q", "q.dlq")] == expected
        assert copy.config.list() == {"throttle:t:rate": "5"}
        assert copy.settle([Complete(claimed[3])])[0].outcome == "completed", "leases are part of it"
        copy.enqueue("q", b"")
    report = fairlead.verify(world.path / "copy")
    assert (report.ok, report.messages) == (True, 50)


def test_a_checkpoint_under_traffic_is_consistent(disk_world: World) -> None:
    world = disk_world
    stop = threading.Event()

    def traffic() -> None:
        while not stop.is_set():
            world.broker.enqueue_many(
                "q", [NewMessage(b"x" * 100, fairness_key=f"k{at}") for at in range(20)]
            )
            claimed = world.broker.claim("q", limit=20)
            world.broker.settle(
                [Complete(delivery) if at % 3 else Fail(delivery) for at, delivery in enumerate(claimed)]
            )

    worker = threading.Thread(target=traffic, daemon=True)
    worker.start()
    try:
        for number in range(3):
            world.broker.checkpoint(world.path / f"copy-{number}")
    finally:
        stop.set()
        worker.join()
    for number in range(3):
        assert fairlead.verify(world.path / f"copy-{number}").problems == []


def test_a_checkpoint_never_overwrites(disk_world: World) -> None:
    (disk_world.path / "taken").mkdir()
    with pytest.raises(errors.InvalidRequest) as refused:
        disk_world.broker.checkpoint(disk_world.path / "taken")
    assert refused.value.field == "path"


def test_a_second_broker_on_one_directory_gets_a_clear_error(disk_world: World) -> None:
    with pytest.raises(errors.StoreLocked) as locked:
        fairlead.open(disk_world.path / "data")
    assert "another one has it open" in str(locked.value)
    disk_world.broker.stats("q")


def test_a_directory_can_be_opened_again_after_it_was_closed_and_with_each_durability(
    disk_world: World,
) -> None:
    disk_world.fill("q", count=3)
    disk_world.broker.close()
    for durability in ("fsync", "os"):
        with fairlead.open(disk_world.path / "data", durability=durability, clock=disk_world.clock) as broker:  # type: ignore[arg-type]
            assert broker.stats("q").ready == 3


def test_enqueues_are_refused_below_the_disk_reserve(disk_world: World) -> None:
    disk_world.fill("q", count=1)
    disk_world.broker.close()
    with fairlead.open(
        disk_world.path / "data", clock=disk_world.clock, settings=Settings(disk_reserve_bytes=1 << 60)
    ) as broker:
        with pytest.raises(errors.StoreFull):
            broker.enqueue("q", b"")
        assert broker.settle([Complete(delivery) for delivery in broker.claim("q")])[0].outcome == "completed"


def test_where_checkpoints_have_a_directory_they_go_nowhere_else(tmp_path: Path) -> None:
    kept, outside = tmp_path / "kept", tmp_path / "outside"
    outside.mkdir()
    kept.mkdir()
    (kept / "out").symlink_to(outside)
    with fairlead.open(
        tmp_path / "data", durability="os", settings=Settings(checkpoint_dir=str(kept))
    ) as broker:
        relative = ("", ".", "..", "../outside/copy", "out/copy", "a/../../b", "\0", "x" * 5000)
        for path in (outside / "copy", kept, kept / ".." / "outside" / "copy", *relative):
            with pytest.raises(errors.InvalidRequest, match="path"):
                broker.checkpoint(path)
        assert [entry.name for entry in sorted(tmp_path.rglob("*")) if entry.name in ("copy", "b")] == []
        broker.checkpoint("monday")
        broker.checkpoint(kept / "tuesday")
        broker.checkpoint("week/one")
    for name in ("monday", "tuesday", "week/one"):
        assert fairlead.verify(kept / name).ok
