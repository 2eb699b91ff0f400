"""External queues: listed by a command, taken by a command, each item once however many workers poll."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead import Complete, Fail, Release, errors
from fairlead.model.delivery import Delivery
from fairlead.model.failure import FailureReason
from fairlead.runbook.items import canonical
from fairlead.runbook.model import PipelineSpec, QueueSpec, Runbook, StepSpec, WorkerSpec
from fairlead.testing import ManualClock, open_in_memory, run_server
from fairlead.worker import external
from fairlead.worker.external import ExternalSource, identity
from fairlead.worker.workers import Workers
from tests.worker.scene import until

#: `take` makes a directory, which succeeds once, and logs its arguments.
TAKE = """#!/bin/sh
printf '%s|%s\\n' "$#" "$1" >> takes.log
cat > stdin.json
mkdir "taken-$1" 2>/dev/null
"""


class Elsewhere:
    """A tracker in a directory: a file lists the open items."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "take.sh").write_text(TAKE)
        (path / "take.sh").chmod(0o755)
        self.clock = ManualClock()
        self.broker = open_in_memory(clock=self.clock, durability="os")
        self.lists([])

    def lists(self, items: object) -> None:
        (self.path / "open.json").write_text(json.dumps(items))

    def source(
        self,
        *,
        listing: tuple[str, ...] = ("cat", "open.json"),
        take: tuple[str, ...] = ("./take.sh", "{id}"),
        **fields: Any,
    ) -> ExternalSource:
        spec = QueueSpec("issues", "external", list=listing, take=take, **fields)
        return ExternalSource(self.broker, spec, "shop/issues", base=str(self.path))

    @property
    def takes(self) -> list[str]:
        log = self.path / "takes.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path)
    yield made
    made.broker.close()


def claim(source: ExternalSource, consumer: str = "ann") -> list[Delivery]:
    return source.claim(source.queue, limit=10, wait=None, consumer=consumer, max_per_stream=1, started=False)


def claim_all(source: ExternalSource) -> list[Any]:
    found = []
    while got := claim(source):
        found += got
    return [json.loads(delivery.payload) for delivery in found]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("item", "key"),
    [
        ({"id": "A-1", "number": 7}, 'id:"A-1"'),
        ({"id": 7}, "id:7"),
        ({"id": "7"}, 'id:"7"'),
        ({"number": 7, "id": None}, "number:7"),
        ({"number": 7, "id": ""}, "number:7"),
        ({"number": 7, "id": True}, "number:7"),
        ({"number": 7, "id": [1]}, "number:7"),
    ],
)
def test_the_key_of_an_item_is_its_id_else_its_number(item: object, key: str) -> None:
    assert identity(item, canonical(item)) == key


def test_the_key_of_an_item_with_neither_is_its_content() -> None:
    first, second = ({"b": 1, "a": 2}, {"a": 2, "b": 1})
    assert identity(first, canonical(first)) == identity(second, canonical(second))
    assert identity(first, canonical(first)) != identity({"a": 2}, canonical({"a": 2}))
    assert identity("text", canonical("text")) != identity(["text"], canonical(["text"]))


def test_an_id_of_any_length_makes_a_valid_dedup_key() -> None:
    keys = {identity({"id": text}, b"") for text in ("x" * 5000, "x" * 5001, "ü" * 390)}
    assert len(keys) == 3
    assert all(len(key.encode()) <= 512 for key in keys)


def test_listed_items_are_taken_and_delivered_once(elsewhere: Elsewhere) -> None:
    items = [{"id": 1, "title": "a"}, {"id": 2, "title": "b"}, {"id": 1, "title": "a"}]
    elsewhere.lists(items)
    source = elsewhere.source()
    assert claim_all(source) == items[:2]
    assert elsewhere.takes == ["1|1", "1|2"]
    assert json.loads((elsewhere.path / "stdin.json").read_text()) == items[1]
    source.offer(source.poll())
    assert claim_all(source) == []
    assert elsewhere.takes == ["1|1", "1|2"]


def test_a_field_of_take_stays_one_argument_whatever_it_contains(elsewhere: Elsewhere) -> None:
    nasty = "a b; touch gone $(touch gone) `touch gone` | \n'\""
    elsewhere.lists([{"id": nasty}])
    source = elsewhere.source(take=("./take.sh", "{id}"))
    assert claim_all(source) == [{"id": nasty}]
    assert "\n".join(elsewhere.takes) == f"1|{nasty}"
    assert not (elsewhere.path / "gone").exists()


def test_overlapping_polls_of_many_workers_take_nothing_twice(elsewhere: Elsewhere) -> None:
    elsewhere.lists([{"id": number} for number in range(8)])
    sources = [elsewhere.source() for _ in range(4)]
    got: list[Any] = []
    together = threading.Barrier(len(sources))

    def work(source: ExternalSource) -> None:
        together.wait(60)
        got.extend(claim_all(source))

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(item["id"] for item in got) == list(range(8))
    assert sorted(elsewhere.takes) == [f"1|{number}" for number in range(8)]


def test_a_list_from_before_a_completion_does_not_bring_the_item_back(elsewhere: Elsewhere) -> None:
    elsewhere.lists([{"id": 1}])
    source, other = elsewhere.source(), elsewhere.source()
    stale = other.poll()
    (delivery,) = claim(source)
    source.settle([Complete(delivery)])
    other.offer(stale)
    assert claim(other) == []
    assert elsewhere.takes == ["1|1"]


def test_an_item_that_is_listed_again_later_is_a_new_item(elsewhere: Elsewhere) -> None:
    elsewhere.lists([{"id": 1}])
    source = elsewhere.source()
    (delivery,) = claim(source)
    source.settle([Complete(delivery)])
    elsewhere.clock.advance(seconds=301)
    elsewhere.broker.run_due()
    (elsewhere.path / "taken-1").rmdir()
    source.offer(source.poll())
    assert [again.id != delivery.id for again in claim(source)] == [True]


def test_an_item_that_cannot_be_taken_is_dropped_and_tried_at_the_next_poll(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere.lists([{"id": 1}, {"id": 2}])
    (elsewhere.path / "taken-1").mkdir()
    source = elsewhere.source()
    assert claim_all(source) == [{"id": 2}]
    assert warnings(caplog) == ["an item was not taken"]
    stats = elsewhere.broker.stats(source.queue)
    assert (stats.ready, stats.waiting, stats.leased, stats.done, stats.dead) == (0, 0, 1, 0, 0)
    (elsewhere.path / "taken-1").rmdir()
    source.offer(source.poll())
    assert claim_all(source) == [{"id": 1}]


def test_a_worker_without_the_right_to_drop_completes_items_that_it_cannot_take(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.lists([{"id": 1}])
    (elsewhere.path / "taken-1").mkdir()
    source = elsewhere.source()
    source.open()

    def forbidden(*_args: object, **_options: object) -> None:
        raise errors.Forbidden("admin", source.queue)

    monkeypatch.setattr(elsewhere.broker, "drop", forbidden)
    assert claim_all(source) == []
    assert elsewhere.broker.stats(source.queue).done == 1


def test_an_item_taken_by_a_dead_worker_goes_to_another_and_is_not_taken_again(elsewhere: Elsewhere) -> None:
    elsewhere.lists([{"id": 1}])
    (lost,) = claim(elsewhere.source(), "dead")
    elsewhere.clock.advance(seconds=301)
    source = elsewhere.source()
    (found,) = claim(source, "ann")
    assert found.id == lost.id
    assert elsewhere.takes == ["1|1"]
    assert source.settle([Complete(lost)])[0].outcome == "lost_lease"


def test_a_released_item_is_not_taken_again(elsewhere: Elsewhere) -> None:
    elsewhere.lists([{"id": 1}])
    source = elsewhere.source()
    (delivery,) = claim(source)
    source.settle([Release(delivery, keep_order=True)])
    assert [again.id for again in claim(source)] == [delivery.id]
    assert elsewhere.takes == ["1|1"]


@pytest.mark.parametrize("was_taken", [False, True])
def test_a_worker_that_died_while_taking_an_item_leaves_it_in_doubt(
    elsewhere: Elsewhere, was_taken: bool
) -> None:
    elsewhere.lists([{"id": 1}])
    source = elsewhere.source()
    source.open()
    source.offer(source.poll())
    (lost,) = elsewhere.broker.claim(source.queue, consumer="dead", started=False)
    assert source._mark(lost, external.TAKING)
    if was_taken:
        (elsewhere.path / "taken-1").mkdir()
    elsewhere.clock.advance(seconds=301)
    if not was_taken:
        assert [found.id for found in claim(source)] == [lost.id]
        return
    assert claim(source) == []
    (dead,) = elsewhere.broker.peek(source.queue + ".dlq")
    assert dead.reason is FailureReason.DEPENDENCY_FAILURE
    assert "died while it took this item" in dead.failures[-1].error


def test_a_failed_item_becomes_a_dead_letter_and_may_be_listed_again(elsewhere: Elsewhere) -> None:
    elsewhere.lists([{"id": 1}])
    source = elsewhere.source()
    (delivery,) = claim(source)
    assert source.settle([Fail(delivery, "no")])[0].outcome == "dead"
    (elsewhere.path / "taken-1").rmdir()
    source.offer(source.poll())
    (again,) = claim(source)
    assert again.id != delivery.id


def test_a_retried_dead_item_is_delivered_again_and_not_taken_again(
    elsewhere: Elsewhere,
) -> None:
    elsewhere.lists([{"id": 1}])
    source = elsewhere.source()
    (delivery,) = claim(source)
    source.settle([Fail(delivery, "no")])
    elsewhere.lists([])
    retried = elsewhere.broker.retry(source.queue, [delivery.id])
    (again,) = claim(source)
    assert (retried.changed, again.id, elsewhere.takes) == ((delivery.id,), delivery.id, ["1|1"])


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        (("no-such-command",), "list failed"),
        (("sh", "-c", "echo '[1]'; exit 3"), "list failed"),
        (("sh", "-c", "echo '[1]'; kill -9 $$"), "list failed"),
        (("sh", "-c", "sleep 600"), "list failed"),
        (("sh", "-c", "yes"), "list failed"),
        (("echo", "no json"), "list did not print a JSON array"),
        (("echo", '{"id": 1}'), "list did not print a JSON array"),
        (("true",), "list did not print a JSON array"),
    ],
)
def test_a_failing_list_counts_as_empty_and_logs_a_warning(
    elsewhere: Elsewhere,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    listing: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setattr(external, "COMMAND_LIMIT_S", 0.5)
    monkeypatch.setattr(external, "MAX_LISTED_BYTES", 100_000)
    assert elsewhere.source(listing=listing).poll() == []
    assert warnings(caplog) == [said]


def test_a_killed_list_command_is_killed_with_its_children(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "COMMAND_LIMIT_S", 0.5)
    assert (
        elsewhere.source(listing=("sh", "-c", "(sleep 600; touch late) & echo $! > child; wait")).poll() == []
    )
    child = int((elsewhere.path / "child").read_text())
    # The system may take a moment to deliver the signal.
    assert until(lambda: _is_over(child), "the end of the child")


def _is_over(pid: int) -> bool:
    try:
        return "zombie" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_list_is_read_up_to_a_bound_and_invalid_entries_are_ignored(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "MAX_ITEMS", 3)
    (elsewhere.path / "open.json").write_text('[{"id": 1}, {"id": "\\ud800"}, {"id": 2}, {"id": 3}]')
    assert claim_all(elsewhere.source()) == [{"id": 1}, {"id": 2}]
    assert warnings(caplog) == [
        "list has 4 items, of which the first 3 are read",
        "ignored an entry of the list that is not an item",
    ]


def test_a_list_that_took_too_long_is_discarded(
    elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere.lists([{"id": 1}])
    times = iter([0.0, external.STALE_S + 1])
    spec = QueueSpec("issues", "external", list=("cat", "open.json"), take=("true",))
    source = ExternalSource(
        elsewhere.broker, spec, "shop/issues", base=str(elsewhere.path), now=lambda: next(times)
    )
    assert source.poll() == []
    assert warnings(caplog) == ["discarded a list that took too long"]


def test_an_item_without_a_field_of_take_is_not_taken(elsewhere: Elsewhere) -> None:
    elsewhere.lists([{"number": 1}, "only text"])
    assert claim_all(elsewhere.source()) == []
    assert elsewhere.takes == []


def test_a_due_poll_runs_in_its_own_thread_and_enqueues_new_items(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    place = Elsewhere(tmp_path / "there")
    place.broker.close()
    with fairlead.open(tmp_path / "data", durability="os") as broker:
        place.broker = broker
        source = place.source(poll_ms=10)
        assert (
            source.claim(source.queue, limit=1, wait="10ms", consumer="a", max_per_stream=1, started=False)
            == []
        )
        place.lists([{"id": 1}])
        got: list[Delivery] = []
        for _ in range(2000):
            got += source.claim(
                source.queue, limit=1, wait="50ms", consumer="a", max_per_stream=1, started=False
            )
            if got:
                break
        assert [json.loads(delivery.payload) for delivery in got] == [{"id": 1}]


def test_without_a_poll_interval_there_is_one_poll(elsewhere: Elsewhere) -> None:
    source = elsewhere.source()
    assert claim(source) == []
    elsewhere.lists([{"id": 1}])
    source._poll_when_due()
    assert source._polling is None
    assert claim(source) == []


def test_a_worker_of_an_external_queue_works_on_each_item_once(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    place = Elsewhere(tmp_path / "there")
    place.broker.close()
    place.lists([{"id": number} for number in range(6)])
    step = StepSpec("note", command=("sh", "-c", 'echo "$FAIRLEAD_ITEM_id" >> done.log'))
    runbook = Runbook(
        "shop",
        {"issues": QueueSpec("issues", "external", list=("cat", "open.json"), take=("./take.sh", "{id}"))},
        {"handle": PipelineSpec("handle", (step,))},
        {"triage": WorkerSpec("triage", "issues", "handle", concurrency=2, isolate="thread")},
    )
    with fairlead.open(tmp_path / "data", durability="os") as broker:
        for _ in range(2):
            workers = Workers(broker, runbook, base=place.path, burst=True)
            workers.start()
            assert workers.wait(120)
            workers.check()
        stats = broker.stats("shop/issues.taken")
    assert sorted((place.path / "done.log").read_text().split()) == [str(number) for number in range(6)]
    assert sorted(place.takes) == [f"1|{number}" for number in range(6)]
    assert (stats.done, stats.dead, stats.ready, stats.leased) == (6, 0, 0, 0)


def test_workers_at_a_server_share_an_external_queue(tmp_path: Path) -> None:
    place = Elsewhere(tmp_path)
    place.broker.close()
    place.lists([{"id": number} for number in range(4)])
    with (
        run_server(tmp_path / "data") as server,
        fairlead.connect(server.address) as one,
        fairlead.connect(server.address) as two,
    ):
        got: list[Any] = []
        sources = []
        for client in (one, two):
            place.broker = client  # type: ignore[assignment]
            sources.append(place.source())
        (first,) = claim(sources[0])
        got += [json.loads(first.payload), *claim_all(sources[1])]
        sources[0].settle([Complete(first)])
        sources[1].offer(sources[1].poll())
        assert claim_all(sources[0]) == []
        with pytest.raises(errors.QueueNotFound):
            one.stats("shop/issues")
    assert sorted(item["id"] for item in got) == [0, 1, 2, 3]
    assert sorted(place.takes) == [f"1|{number}" for number in range(4)]


def test_an_item_taken_while_the_broker_was_unavailable_is_delivered_and_not_lost(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The item cannot be taken a second time, so the worker that took it must report it."""
    elsewhere.lists([{"id": "A-1"}, {"id": "A-2"}])
    source = elsewhere.source()
    settle, told = elsewhere.broker.settle, []

    def away_after_the_first_take(items: Any) -> Any:
        told.append(items)
        if len(told) in (2, 3):
            raise errors.ServerUnreachable("127.0.0.1:5556", "gone")
        return settle(items)

    monkeypatch.setattr(elsewhere.broker, "settle", away_after_the_first_take)
    for _ in range(2):
        with pytest.raises(errors.ServerUnreachable):
            claim(source)
    assert claim_all(source) == [{"id": "A-1"}, {"id": "A-2"}]
    assert elsewhere.takes == ["1|A-1", "1|A-2"]
