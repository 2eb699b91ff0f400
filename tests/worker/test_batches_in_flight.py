"""Batches that wait, run or come back: stops, kills, lost leases, streams, changes of the pipeline."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead import Broker, Complete, Release, Start
from fairlead.runbook.apply import apply_plan, plan_for
from fairlead.runbook.check import read_runbook
from fairlead.runbook.model import StepSpec
from fairlead.surface import Surface
from fairlead.testing import ServerProcess, open_in_memory, run_server
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Settle
from fairlead.worker import dispatch
from fairlead.worker.in_flight import InFlight
from fairlead.worker.items import WorkItem, max_rows_with
from fairlead.worker.plan import PipelinePlan
from tests.worker.scene import PATIENCE_S, QUEUE, burst, push, runbook, step, until, worker_process, working
from tests.worker.steps import read_journal
from tests.worker.test_batches import batch


class Watched(Surface):
    """A broker that records what is settled."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.settled: list[Any] = []

    def do(self, request: Any) -> Any:
        if isinstance(request, Settle):
            self.settled += request.items
        return self._broker.do(request)

    def started(self) -> list[str]:
        return [item.delivery.id for item in self.settled if isinstance(item, Start)]


def hand_out_and_back(broker: Broker, times: int) -> None:
    for _ in range(times):
        broker.settle([Release(delivery, keep_order=True) for delivery in broker.claim(QUEUE, limit=1000)])


class TestWhatCameBack:
    """Rows that came back without an outcome: one of them may have killed its worker."""

    def test_on_its_second_delivery_a_row_goes_in_a_small_batch_unstarted(
        self, broker: Broker, journal: str
    ) -> None:
        push(broker, *({"n": n, "journal": journal} for n in range(100)))
        hand_out_and_back(broker, 1)
        watched = Watched(broker)
        assert (
            burst(watched, runbook(batch("only", batch_size=320), isolate="thread")).counts.completed == 100
        )
        assert {len(line["rows"]) for line in read_journal(journal)} == {10}
        assert watched.started() == []

    def test_new_rows_do_not_join_a_row_that_came_back(self, broker: Broker, journal: str) -> None:
        push(broker, *({"n": n, "journal": journal} for n in range(5)))
        hand_out_and_back(broker, 1)
        push(broker, *({"n": n, "journal": journal} for n in range(5, 40)))
        assert burst(broker, runbook(batch("only", batch_size=320), isolate="thread")).counts.completed == 40
        assert sorted(line["rows"] for line in read_journal(journal)) == [list(range(5)), list(range(5, 40))]

    def test_from_its_third_delivery_on_a_row_goes_alone_and_started(
        self, broker: Broker, journal: str
    ) -> None:
        ids = push(broker, *({"n": n, "journal": journal} for n in range(50)))
        hand_out_and_back(broker, 2)
        watched = Watched(broker)
        assert burst(watched, runbook(batch("only"), isolate="thread")).counts.completed == 50
        assert {len(line["rows"]) for line in read_journal(journal)} == {1}
        assert watched.started() == ids

    @pytest.mark.parametrize(
        ("reason", "calls"),
        [
            ("poison_message", [[1, 2, 3], [0]]),
            ("timeout_exceeded", [[1, 2, 3], [0]]),
            ("unknown", [[1, 2, 3, 0]]),
        ],
    )
    def test_a_row_that_cost_a_process_or_a_time_limit_comes_alone(
        self, broker: Broker, journal: str, reason: str, calls: list[list[int]]
    ) -> None:
        broker.update_queue(QUEUE, retry={"policy": "immediate", "attempts": 5})
        push(broker, *({"n": n, "journal": journal} for n in range(4)))
        broker.settle([fairlead.Fail(delivery, reason=reason) for delivery in broker.claim(QUEUE, limit=1)])
        burst(broker, runbook(batch("only"), isolate="thread"))
        assert sorted(line["rows"] for line in read_journal(journal)) == sorted(calls)

    def test_a_smaller_batch_of_one_step_does_not_limit_the_next_step(self, broker: Broker) -> None:
        push(broker, {"n": 1})
        (delivery,) = broker.claim(QUEUE)
        plan, item = (
            PipelinePlan.of(runbook(batch("first"), batch("second")).pipelines["pipeline"]),
            WorkItem(delivery),
        )
        item.prepare(plan)
        item.max_rows = 5
        assert max_rows_with(item, plan.steps[0]) == 5
        item.confirm(plan, "first", b"")
        assert max_rows_with(item, plan.steps[1]) == 1000

    def test_failed_attempts_do_not_make_batches_smaller(self, broker: Broker, journal: str) -> None:
        broker.update_queue(QUEUE, retry={"policy": "immediate", "attempts": 5})
        push(broker, *({"n": n, "journal": journal} for n in range(50)))
        for _ in range(3):
            broker.settle([fairlead.Fail(delivery) for delivery in broker.claim(QUEUE, limit=1000)])
        watched = Watched(broker)
        burst(watched, runbook(batch("only"), isolate="thread"))
        assert [len(line["rows"]) for line in read_journal(journal)] == [50]
        assert watched.started() == []


RUNBOOK = """
[queue.work]
type = "persisted"
visibility_timeout = "1s"
retry = { policy = "immediate", attempts = 2 }

[pipeline.pipeline]
steps = [{ name = "only", run = "tests.worker.batch_steps:rows", batch = true, batch_size = 64 }]

[worker.worker]
queue = "work"
pipeline = "pipeline"
isolate = "thread"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with run_server(tmp_path / "data") as server:
        yield server


def test_a_row_that_kills_its_whole_worker_is_found_and_its_neighbours_do_not_fail(
    server: ServerProcess, tmp_path: Path, journal: str
) -> None:
    file = tmp_path / "runbook.toml"
    file.write_text(RUNBOOK)
    with fairlead.connect(server.address) as client:
        for _ in apply_plan(plan_for(client, read_runbook([file]).runbook), client):
            pass
        push(
            client, *({"n": n, "journal": journal, **({"how": "die"} if n == 20 else {})} for n in range(40))
        )
        deaths = 0
        while client.stats(QUEUE).dead == 0:
            with worker_process(server.address, file) as worker:
                until(lambda: worker.process.poll() is not None or client.stats(QUEUE).dead, "a death")
                deaths += worker.process.poll() is not None
        with worker_process(server.address, file):
            until(lambda: client.stats(QUEUE).totals.completed == 39, "the others")
        (dead,) = client.peek(f"{QUEUE}.dlq")
        assert [fairlead.FailureReason(failure.reason).word for failure in dead.failures] == [
            "timeout_exceeded"
        ] * 2
    # In a full batch, in a small one, then alone as often as its policy allows; a lease that expires on a
    # slow machine counts as a death too.
    assert deaths <= 4
    # Without the small batch if a claim of the dead worker was still waiting, was answered, and its
    # deliveries came back: that counts as a delivery.
    assert [len(line["rows"]) for line in read_journal(journal) if 20 in line["rows"]] in (
        [40, 2, 1, 1],
        [40, 1, 1],
    )
    assert {
        attempts for line in read_journal(journal) if 20 not in line["rows"] for attempts in line["attempts"]
    } == {0}


class Scene:
    """A single step and a batch step in one slot: some messages wait for the second, one more hangs in the
    first.
    """

    def __init__(self, broker: Broker, journal: str, gate: Path, waiting: int = 5) -> None:
        hold = {"step": "first", "gate": str(gate)}
        self.journal, self.gate, self.waiting = journal, gate, waiting
        self.ids = push(
            broker,
            *(
                {"n": n, "journal": journal, "hold": hold if n == waiting else None}
                for n in range(waiting + 1)
            ),
        )
        self.book = runbook(step("first", "noted"), batch("second"), isolate="thread")

    def await_standstill(self) -> None:
        until(
            lambda: sum(line.get("word") == "end" for line in read_journal(self.journal)) == self.waiting,
            "some to wait",
        )
        until(
            lambda: any(line["n"] == self.waiting for line in read_journal(self.journal)),
            "the last one to stand still",
        )

    def batches(self) -> list[list[int]]:
        return [line["rows"] for line in read_journal(self.journal) if "rows" in line]


@pytest.fixture
def long_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the waiting items would go before the last one hangs in the only slot."""
    monkeypatch.setattr(dispatch, "_GATHER_S", 2.0)


@pytest.fixture
def scene(broker: Broker, journal: str, tmp_path: Path, long_gathering: None) -> Scene:
    return Scene(broker, journal, tmp_path / "gate")


class HeldClaims(Surface):
    """A broker that answers claims until the first one has messages, and later claims only when allowed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._answered = False
        self.waits, self.go_on = threading.Event(), threading.Event()

    def do(self, request: Any) -> Any:
        if not isinstance(request, Claim):
            return self._broker.do(request)
        if self._answered:
            self.waits.set()
            self.go_on.wait(PATIENCE_S)
        found = self._broker.do(request)
        self._answered = bool(found)
        return found


class TestWaiting:
    def test_a_batch_that_waits_for_a_slot_goes_as_soon_as_one_is_free(
        self, broker: Broker, scene: Scene
    ) -> None:
        with working(broker, scene.book) as workers:
            scene.await_standstill()
            scene.gate.touch()
            until(lambda: workers.counts.completed == 6, "all of them")
        assert sorted(row for rows in scene.batches() for row in rows) == list(range(6))

    def test_a_batch_does_not_wait_for_ever_for_an_item_whose_step_hangs(
        self, broker: Broker, scene: Scene
    ) -> None:
        with working(broker, scene.book, concurrency=2) as workers:
            until(lambda: workers.counts.completed == 5, "five without the sixth")
            assert not scene.gate.exists()
            scene.gate.touch()
            until(lambda: workers.counts.completed == 6, "the sixth")

    @pytest.mark.parametrize("hurry", [False, True])
    def test_a_stop_finishes_or_releases_a_waiting_batch(
        self, broker: Broker, scene: Scene, hurry: bool
    ) -> None:
        with working(broker, scene.book) as workers:
            scene.await_standstill()
            workers.stop(hurry=hurry)
            if not hurry:
                scene.gate.touch()
            assert workers.wait(PATIENCE_S)
            counts = workers.counts
            assert (counts.completed, counts.failed, counts.dead) == (0 if hurry else 6, 0, 0)
            # In a hurry some messages may be delivered once more, with a claim that was under way.
            assert counts.released >= 6 if hurry else counts.released == 0
        scene.gate.touch()
        burst(broker, scene.book)
        assert broker.stats(QUEUE).totals.completed == 6

    def test_a_batch_becomes_due_also_while_a_stop_waits_for_a_hanging_step(
        self, broker: Broker, scene: Scene
    ) -> None:
        with working(broker, scene.book, concurrency=2) as workers:
            scene.await_standstill()
            workers.stop()
            until(lambda: workers.counts.completed == 5, "five without the sixth")
            assert not scene.gate.exists()
            scene.gate.touch()
            assert workers.wait(PATIENCE_S)
            assert workers.counts.completed == 6

    @pytest.mark.parametrize("isolate", ["process", "thread"])
    def test_a_stop_begins_no_batch_while_a_claim_waits_at_the_broker(
        self, broker: Broker, journal: str, tmp_path: Path, isolate: str
    ) -> None:
        gate, held = tmp_path / "gate", HeldClaims(broker)
        push(broker, *({"n": n, "journal": journal, "gate": str(gate)} for n in range(4)))
        with working(held, runbook(batch("only", "gated", batch_size=2), isolate=isolate)) as workers:
            until(lambda: read_journal(journal) and held.waits.is_set(), "a call, one behind it, and a claim")
            workers.stop()
            until(
                lambda: workers.loops["worker"].in_flight.fresh,
                "what has not begun to be taken from its slot",
            )
            gate.touch()
            until(lambda: workers.counts.completed == 2, "what had begun")
            held.go_on.set()
            assert workers.wait(PATIENCE_S)
            assert (workers.counts.completed, workers.counts.released) == (2, 2)
        assert [line["rows"] for line in read_journal(journal)] == [[0, 1]]

    @pytest.mark.usefixtures("long_gathering")
    def test_a_changed_pipeline_applies_to_gathered_items(
        self, broker: Broker, journal: str, tmp_path: Path
    ) -> None:
        scene = Scene(broker, journal, tmp_path / "gate", waiting=1)
        with working(broker, scene.book) as workers:
            scene.await_standstill()
            workers.change(runbook(step("first", "noted"), step("second", "noted"), isolate="thread"))
            scene.gate.touch()
            until(lambda: workers.counts.completed + workers.counts.dead == 2, "both of them")
            assert workers.counts.dead == 0
        second = [
            line
            for line in read_journal(scene.journal)
            if line["step"] == "second" and line.get("word") == "end"
        ]
        assert sorted(line["n"] for line in second) + [row for rows in scene.batches() for row in rows] == [
            0,
            1,
        ]

    def test_rows_of_a_running_batch_do_not_count_as_single_items(
        self, broker: Broker, journal: str, tmp_path: Path
    ) -> None:
        gate = tmp_path / "gate"
        push(
            broker,
            *({"n": n, "journal": journal, **({"gate": str(gate)} if n == 0 else {})} for n in range(3)),
        )
        with working(
            broker, runbook(step("first", "noted"), batch("second", "gated"), isolate="thread", concurrency=2)
        ) as workers:
            until(
                lambda: any(0 in line.get("rows", ()) for line in read_journal(journal)),
                "a batch that stands still",
            )
            push(broker, {"n": 3, "journal": journal})
            until(
                lambda: any(3 in line.get("rows", ()) for line in read_journal(journal)),
                "one that goes past it",
            )
            gate.touch()
            until(lambda: workers.counts.completed == 4, "all of them")

    @pytest.mark.parametrize(
        "second", [batch("second", "nothing"), step("second", "noted")], ids=["for many", "for one"]
    )
    def test_rows_of_a_running_batch_of_the_old_pipeline_do_not_count_as_single_items(
        self, broker: Broker, journal: str, tmp_path: Path, second: StepSpec
    ) -> None:
        gate = tmp_path / "gate"
        push(broker, *({"n": n, "journal": journal, "gate": str(gate)} for n in range(3)))
        with working(
            broker, runbook(step("first", "noted"), batch("second", "gated"), isolate="thread", prefetch=1)
        ) as workers:
            until(lambda: any("rows" in line for line in read_journal(journal)), "a batch that stands still")
            workers.change(runbook(step("first", "noted"), second, isolate="thread", prefetch=1))
            push(broker, {"n": 3, "journal": journal})
            until(lambda: any(line.get("n") == 3 for line in read_journal(journal)), "one that goes past it")
            gate.touch()
            until(lambda: workers.counts.completed == 4, "all of them")

    @pytest.mark.parametrize("isolate", ["process", "thread"])
    def test_a_batch_behind_a_slow_call_gets_a_slot_of_its_own(
        self, broker: Broker, journal: str, tmp_path: Path, isolate: str
    ) -> None:
        gate = tmp_path / "gate"
        push(broker, {"n": 0, "journal": journal, "gate": str(gate)})
        with working(broker, runbook(batch("only", "gated"), isolate=isolate, concurrency=2)) as workers:
            until(lambda: read_journal(journal), "a call that stands still")
            push(broker, {"n": 1, "journal": journal})
            until(lambda: workers.counts.completed == 1, "one that goes past it")
            gate.touch()
            until(lambda: workers.counts.completed == 2, "both of them")

    def test_items_of_a_single_step_gather_for_the_batch_step_after_it(
        self, broker: Broker, journal: str
    ) -> None:
        push(broker, *({"n": n, "journal": journal} for n in range(2000)))
        assert burst(broker, runbook(step("first", "nothing"), batch("second"))).counts.completed == 2000
        assert len(read_journal(journal)) < 200

    def test_a_batch_ends_at_the_limit_of_bytes(self, broker: Broker) -> None:
        headers = {"h": "x" * 90}
        broker.enqueue_many(QUEUE, [fairlead.NewMessage(bytes(size)) for size in (10, 10, 10, 100, 5, 5)])
        broker.enqueue_many(QUEUE, [fairlead.NewMessage(bytes(size), headers=headers) for size in (1, 2)])
        in_flight = InFlight()
        in_flight.claim(broker.claim(QUEUE, limit=10))
        for item in (*in_flight.fresh,):
            in_flight.gather(item, 10)
        sizes = []
        while in_flight.gathered:
            sizes.append([len(item.delivery.payload) for item in in_flight.take_gathered(0, 10, 35)])
        assert sizes == [[10, 10, 10], [100], [5, 5], [1], [2]]
        assert in_flight.batches == {}

    def test_the_carry_counts_towards_the_limit_of_bytes(self, broker: Broker) -> None:
        push(broker, {"n": 0}, {"n": 1})
        in_flight = InFlight()
        in_flight.claim(broker.claim(QUEUE, limit=10))
        for item in (*in_flight.fresh,):
            item.carry = bytes(100)
            in_flight.gather(item, 10)
        assert len(in_flight.take_gathered(0, 10, 150)) == 1

    def test_items_left_behind_by_a_full_batch_wait_from_then_on(self, broker: Broker) -> None:
        push(broker, *({"n": n} for n in range(3)))
        in_flight = InFlight()
        in_flight.claim(broker.claim(QUEUE, limit=10))
        for item in (*in_flight.fresh,):
            in_flight.gather(item, 2)
        rows = in_flight.batches[0, 2]
        rows.since = 0.0
        assert len(in_flight.take_gathered(0, 2, 1000)) == 2
        assert rows.since > 0.0


class TestLeases:
    """Another consumer settles what is running; the worker learns of this with its next extension."""

    @pytest.fixture
    def held(self, broker: Broker, journal: str, tmp_path: Path) -> Callable[[], list[str]]:
        broker.update_queue(QUEUE, visibility_timeout="2s")
        gate = tmp_path / "gate"

        def push_held() -> list[str]:
            return push(broker, *({"n": n, "journal": journal, "gate": str(gate)} for n in range(10)))

        return push_held

    @pytest.mark.parametrize("isolate", ["process", "thread"])
    def test_a_lost_row_does_not_end_the_call_of_the_others(
        self, broker: Broker, journal: str, tmp_path: Path, held: Callable[[], list[str]], isolate: str
    ) -> None:
        ids, watched = held(), Watched(broker)
        with working(watched, runbook(batch("only", "gated"), isolate=isolate)) as workers:
            until(lambda: read_journal(journal), "the call")
            broker.ack(QUEUE, ids[4])
            until(lambda: workers.counts.lost == 1, "the loss")
            (tmp_path / "gate").touch()
            until(lambda: workers.counts.completed == 9, "the others")
            assert workers.counts.lost == 1
        assert [line["rows"] for line in read_journal(journal)] == [list(range(10))]
        assert sorted(item.delivery.id for item in watched.settled if isinstance(item, Complete)) == sorted(
            {*ids} - {ids[4]}
        )
        # The call took long, and yet a kill of the worker would not have counted for its rows.
        assert watched.started() == []

    @pytest.mark.parametrize("isolate", ["process", "thread"])
    def test_a_row_that_is_lost_in_a_waiting_batch_is_not_called(
        self, broker: Broker, journal: str, tmp_path: Path, held: Callable[[], list[str]], isolate: str
    ) -> None:
        ids = held()
        with working(broker, runbook(batch("only", "gated", batch_size=5), isolate=isolate)) as workers:
            until(lambda: read_journal(journal), "the call")
            broker.ack(QUEUE, ids[7])
            until(lambda: workers.counts.lost == 1, "the loss")
            (tmp_path / "gate").touch()
            until(lambda: workers.counts.completed == 9, "the others")
        assert [line["rows"] for line in read_journal(journal)] == [[0, 1, 2, 3, 4], [5, 6, 8, 9]]

    @pytest.mark.parametrize("lost", [2, 5])
    def test_rows_that_are_lost_while_they_gather_are_not_called(
        self, broker: Broker, scene: Scene, lost: int
    ) -> None:
        broker.update_queue(QUEUE, visibility_timeout="2s")
        with working(broker, scene.book) as workers:
            scene.await_standstill()
            for message in scene.ids[:lost]:
                broker.ack(QUEUE, message)
            until(lambda: workers.counts.lost == lost, "the loss")
            scene.gate.touch()
            until(lambda: workers.counts.completed == 6 - lost, "the others")
            assert workers.loops["worker"].in_flight.gathered == 0
        assert sorted(row for rows in scene.batches() for row in rows) == list(range(lost, 6))

    def test_only_a_lost_fresh_item_lowers_the_count_ahead(self, broker: Broker) -> None:
        push(broker, *({"n": n} for n in range(4)))
        in_flight = InFlight()
        in_flight.claim(broker.claim(QUEUE, limit=10))
        busy, fresh = in_flight.fresh.popleft(), in_flight.fresh[0]
        in_flight.take_up(busy)
        in_flight.lose(busy)
        assert in_flight.ahead == 3
        in_flight.lose(fresh)
        assert in_flight.ahead == 2
        in_flight.lose(in_flight.take_fresh()[0])
        assert in_flight.ahead == 0

    def test_a_call_whose_rows_are_all_lost_is_killed(
        self, broker: Broker, journal: str, held: Callable[[], list[str]]
    ) -> None:
        ids = held()
        with working(broker, runbook(batch("only", "gated"))) as workers:
            until(lambda: read_journal(journal), "the call")
            for message in ids:
                broker.ack(QUEUE, message)
            until(lambda: workers.counts.lost == 10, "the loss")
            # The only slot is free again although the gate stays closed.
            push(broker, {"n": 11, "journal": journal})
            until(lambda: workers.counts.completed == 1, "another one")
            assert (workers.counts.failed, workers.counts.dead) == (0, 0)


@pytest.mark.parametrize("on_stream_failure", ["wait", "continue"])
def test_streams_keep_their_order_and_a_call_has_at_most_one_message_of_a_stream(
    journal: str, on_stream_failure: str
) -> None:
    streams, length, chance = 40, 5, random.Random(8)
    items = [
        {"n": n, "stream": f"s{s}", "journal": journal, "failures": chance.choice([0, 0, 0, 1, 2])}
        for n in range(length)
        for s in chance.sample(range(streams), streams)
    ]
    with open_in_memory() as broker:
        again = {"policy": "fixed", "cooldown": "20ms", "attempts": 10}
        broker.create_queue(QUEUE, retry=again, retry_in_stream=again)
        push(broker, *items)
        books = [
            runbook(
                batch("first", "nothing"),
                batch("second", "streamed"),
                isolate=isolate,
                on_stream_failure=on_stream_failure,
                concurrency=2,
            )
            for isolate in ("process", "thread")
        ]
        with working(broker, books[0]) as one, working(broker, books[1]) as two:
            until(
                lambda: one.error or two.error or broker.stats(QUEUE).totals.completed == len(items),
                "all of them",
            )
    calls = read_journal(journal)
    assert all(len(set(call["streams"])) == len(call["streams"]) for call in calls)
    by_stream: dict[str, list[tuple[int, int]]] = {}
    for call in calls:
        for n, stream, attempts in zip(call["rows"], call["streams"], call["attempts"], strict=True):
            by_stream.setdefault(stream, []).append((n, attempts))
    for stream, tries in by_stream.items():
        if on_stream_failure == "wait":
            assert [n for n, _ in groupby(n for n, _ in tries)] == list(range(length)), (
                f"stream {stream}: {tries}"
            )
        else:
            assert [n for n, attempts in tries if not attempts] == list(range(length)), (
                f"stream {stream}: {tries}"
            )
    assert sum(len(tries) for tries in by_stream.values()) == len(items) + sum(
        item["failures"] for item in items
    )
    assert max(len(call["rows"]) for call in calls) > 5
