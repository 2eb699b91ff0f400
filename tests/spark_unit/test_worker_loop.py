"""The driver's loop with a real server. Jobs run their slices in this process, without Spark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.errors import ClaimClosed, ServerUnreachable, SparkNotReady, StaleConsumer, StepNotLoaded
from fairlead.runbook.model import Runbook, StepSpec
from fairlead.spark.options import SparkOptions
from fairlead.spark.worker import loop as worker_loop
from fairlead.spark.worker import slice_worker
from fairlead.spark.worker.loop import RunSettings, SparkWorker, SparkWorkerProgress
from fairlead.spark.worker.run_slice import RunSlice, SliceRow
from fairlead.spark.worker.slice_jobs import JobFailed
from fairlead.testing import ServerProcess
from fairlead.wire.faults import fault_of
from fairlead.worker.job import Job
from tests.docs.pages import ROOT
from tests.worker.scene import push, runbook, step
from tests.worker.steps import read_journal

_numbers = count(1)

Jobs = Callable[[RunSlice], Sequence[SliceRow]]


class JobsHere:
    """A stand-in for `SliceJobs` that runs each job in a thread. `does` has the function of each job, in
    turn; the last one serves all further jobs.
    """

    does: list[Jobs]
    seen: list[RunSlice]

    def __init__(self, spark: Any, name: str) -> None:
        self.cancelled = threading.Event()

    def start(self, work: RunSlice, description: str) -> None:
        self.seen.append(work)
        does = self.does.pop(0) if len(self.does) > 1 else self.does[0]
        self._outcome: Any = None
        self._over = threading.Event()

        def run() -> None:
            try:
                self._outcome = does(work)
            except Exception as error:
                self._outcome = error
            self._over.set()

        threading.Thread(target=run, daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        return self._over.wait(timeout_s)

    def rows(self) -> Sequence[SliceRow]:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        rows: Sequence[SliceRow] = self._outcome
        return rows

    def tasks(self) -> tuple[int, int]:
        return 0, 0

    def cancel(self, patience_s: float) -> None:
        self.cancelled.set()

    def close(self) -> None: ...


def whole(work: RunSlice) -> Sequence[SliceRow]:
    return list(work(range(work.slices)))


def crash(*slices: int) -> Jobs:
    """Work on these slices, then fail the job."""

    def job(work: RunSlice) -> Sequence[SliceRow]:
        list(work(slices))
        raise JobFailed("an executor was lost")

    return job


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker_loop, "SliceJobs", JobsHere)
    monkeypatch.setattr(worker_loop, "_MIN_PAUSE_S", 0.01)
    yield
    slice_worker.stop_worker()


class Scene:
    def __init__(self, server: ServerProcess, client: fairlead.Client, journal: str) -> None:
        self.server, self.client, self.journal = server, client, journal
        self.queue = f"loop-{next(_numbers)}"
        self.stop, self.hurry = threading.Event(), threading.Event()
        self.told: list[SparkWorkerProgress] = []
        again = {"policy": "immediate", "attempts": 5}
        client.create_queue(self.queue, retry=again, retry_in_stream=again)

    def push(self, *items: dict[str, Any]) -> None:
        push(_Renamed(self.client, self.queue), *({"journal": self.journal, **item} for item in items))

    def worker(self, *does: Jobs, book: Runbook | None = None, **options: Any) -> SparkWorker:
        JobsHere.does, JobsHere.seen = list(does) or [whole], []
        job = Job.of(book or runbook(step("fails"), isolate="thread"), "worker", str(ROOT), engine=None)
        given: dict[str, Any] = {
            "consumer": self.queue,
            "ttl": "10m",
            "slices": lambda: 2,
            "max_messages": 50_000,
            "burst": True,
        } | options
        return SparkWorker(
            None,
            _at(job, self.queue),
            SparkOptions(endpoint=self.server.address),  # type: ignore[arg-type]
            RunSettings(stop=self.stop, hurry=self.hurry, on_progress=self.told.append, **given),
        )

    @property
    def begun(self) -> list[int]:
        return sorted(line["n"] for line in read_journal(self.journal) if line["word"] == "begin")

    @property
    def left(self) -> tuple[int, int, int, int]:
        stats = self.client.stats(self.queue)
        return stats.ready, stats.waiting, stats.leased, stats.dead


class _Renamed:
    """Pushes messages to another queue."""

    def __init__(self, client: fairlead.Client, queue: str) -> None:
        self._client, self._queue = client, queue

    def enqueue_many(self, queue: str, messages: Any) -> Any:
        return self._client.enqueue_many(self._queue, messages)


def _at(job: Job, queue: str) -> Job:
    return Job(job.spec, queue, job.plan, job.base, job.external)


@pytest.fixture
def scene(server: ServerProcess, client: fairlead.Client, tmp_path: Path) -> Scene:
    return Scene(server, client, str(tmp_path / "journal.jsonl"))


def test_a_burst_goes_on_until_nothing_is_ready(scene: Scene) -> None:
    scene.push(*({"n": n, "failures": n % 4 == 0} for n in range(40)))
    done = scene.worker(max_messages=16).run()
    assert (done.completed, done.failed, done.dead, done.released) == (40, 10, 0, 0)
    assert done.reasons == {"dependency_failure": 10}
    assert scene.left == (0, 0, 0, 0)
    assert scene.told[-1].summary.completed == 40
    assert [work.number for work in JobsHere.seen] == list(range(1, done.claims + 1))


def test_a_job_that_fails_is_run_again_without_what_is_settled_and_by_a_new_generation(scene: Scene) -> None:
    scene.push(*({"n": n} for n in range(40)))
    done = scene.worker(crash(0), whole).run()
    assert (done.completed, done.reruns) == (40, 1)
    assert scene.begun == list(range(40))
    first, second = JobsHere.seen
    assert (first.number, first.reruns, second.number, second.reruns) == (1, 0, 1, 1)
    assert second.generation == first.generation + 1


def test_a_session_that_has_ended_ends_the_worker_and_the_next_run_goes_on_with_the_claim(
    scene: Scene,
) -> None:
    def gone(work: RunSlice) -> Sequence[SliceRow]:
        list(work([1]))
        raise SparkNotReady("a session", "none", "start again")

    scene.push(*({"n": n} for n in range(20)))
    with pytest.raises(SparkNotReady):
        scene.worker(gone).run()
    assert scene.left == (0, 0, 20, 0)
    assert scene.worker().run().completed == 20
    assert scene.begun == list(range(20))


def test_a_claim_that_an_operator_lets_go_of_is_gone_on_without(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def let_go(work: RunSlice) -> Sequence[SliceRow]:
        scene.client.consumers.release(work.consumer, scene.queue)
        return whole(work)

    scene.push(*({"n": n} for n in range(10)))
    with caplog.at_level(logging.WARNING):
        done = scene.worker(let_go, whole).run()
    assert done.completed == 10
    assert "the open claim ended; the worker continues with the next one" in caplog.messages
    assert scene.left == (0, 0, 0, 0)


def test_a_step_that_cannot_be_loaded_ends_the_worker_and_gives_everything_back(scene: Scene) -> None:
    scene.push({"n": 0}, {"n": 1})
    with pytest.raises(StepNotLoaded, match="nowhere"):
        scene.worker(book=runbook(StepSpec("lost", run="tests.worker.nowhere:nothing"))).run()
    assert scene.left == (2, 0, 0, 0)


def test_a_second_run_ends_the_first_even_while_its_job_runs(scene: Scene) -> None:
    scene.push({"n": 0})
    entered, over = threading.Event(), threading.Event()

    def stuck(work: RunSlice) -> Sequence[SliceRow]:
        entered.set()
        over.wait()
        return []

    raised: list[BaseException] = []
    first = scene.worker(stuck, whole, ttl="1s")

    def run() -> None:
        try:
            first.run()
        except StaleConsumer as error:
            raised.append(error)

    working = threading.Thread(target=run)
    working.start()
    assert entered.wait(60)
    try:
        assert scene.worker().run().completed == 1
        working.join(60)
        assert raised
    finally:
        over.set()


@pytest.mark.parametrize("in_a_hurry", [True, False], ids=["hurry", "grace is over"])
def test_a_stop_that_does_not_wait_cancels_the_job_and_gives_back_what_it_had_not_settled(
    scene: Scene, in_a_hurry: bool
) -> None:
    over = threading.Event()

    def half(work: RunSlice) -> Sequence[SliceRow]:
        list(work([0]))
        scene.stop.set()
        if in_a_hurry:
            scene.hurry.set()
        over.wait()
        return []

    scene.push(*({"n": n} for n in range(20)))
    worker = scene.worker(half, burst=False, grace_s=3600.0 if in_a_hurry else 0.0)
    try:
        done = worker.run()
    finally:
        over.set()
    assert worker._jobs.cancelled.is_set()  # type: ignore[attr-defined]
    assert done.completed + done.released == 20
    assert 0 < done.completed < 20
    assert scene.left == (done.released, 0, 0, 0)
    # No task can record an outcome any more.
    with pytest.raises(ClaimClosed):
        scene.client.consumers.begin_slice(scene.queue, scene.queue, worker._consumer.info.generation, 1)


def test_a_stop_lets_the_job_finish_and_takes_no_more(scene: Scene) -> None:
    def stopped(work: RunSlice) -> Sequence[SliceRow]:
        scene.stop.set()
        return whole(work)

    scene.push(*({"n": n} for n in range(20)))
    done = scene.worker(stopped, max_messages=5, burst=False).run()
    assert (done.completed, done.claims) == (5, 1)
    assert scene.left == (15, 0, 0, 0)


def test_with_continue_later_messages_of_a_stream_pass_the_failed_one_in_the_next_claim(scene: Scene) -> None:
    scene.client.update_queue(scene.queue, retry_in_stream={"policy": "fixed", "cooldown": "1h"})
    scene.push(*({"n": n, "stream": "s", "failures": n == 1} for n in range(6)))
    done = scene.worker(book=runbook(step("fails"), isolate="thread", on_stream_failure="continue")).run()
    assert (done.completed, done.failed) == (5, 1)
    assert scene.left == (0, 1, 0, 0)


def test_another_pipeline_is_gone_on_with_between_claims(scene: Scene) -> None:
    changed = iter(
        [
            None,
            (
                _at(
                    Job.of(runbook(step("other", "noted"), isolate="thread"), "worker", str(ROOT)),
                    scene.queue,
                ),
                "",
            ),
        ]
    )
    scene.push(*({"n": n} for n in range(8)))
    scene.worker(max_messages=4, changed=lambda: next(changed, None)).run()
    steps = [line["step"] for line in read_journal(scene.journal) if line["word"] == "begin"]
    assert sorted(steps) == ["fails"] * 4 + ["other"] * 4


def test_a_hurry_alone_is_a_stop_too(scene: Scene) -> None:
    def hurried(work: RunSlice) -> Sequence[SliceRow]:
        scene.hurry.set()
        return whole(work)

    scene.push(*({"n": n} for n in range(20)))
    done = scene.worker(hurried, max_messages=5, burst=False).run()
    assert done.claims == 1
    assert scene.left[0] + done.completed == 20


def test_a_failed_job_does_not_take_the_consumer_back_from_a_newer_run(scene: Scene) -> None:
    def taken_over(work: RunSlice) -> Sequence[SliceRow]:
        scene.client.consumers.register(work.consumer, scene.queue, default_outcome="release")
        raise JobFailed("an executor was lost")

    scene.push({"n": 0})
    with pytest.raises(StaleConsumer):
        scene.worker(taken_over, whole).run()
    assert scene.begun == []


def test_a_heartbeat_beside_a_new_generation_does_not_end_its_own_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = threading.Event()

    def long(work: RunSlice) -> Sequence[SliceRow]:
        never.wait(0.5)  # long enough for the loop to check the heartbeats
        return whole(work)

    worker = scene.worker(crash(0), long, ttl="1s")
    consumers = worker._consumer._consumers
    register = consumers.register

    def slow(*given: Any, **options: Any) -> Any:
        answer = register(*given, **options)
        if JobsHere.seen:
            never.wait(0.6)  # two heartbeats of a consumer with a time to live of a second
        return answer

    monkeypatch.setattr(consumers, "register", slow)
    scene.push(*({"n": n} for n in range(10)))
    assert worker.run().completed == 10


def test_a_job_that_fails_while_stopping_leaves_no_task_that_may_speak(scene: Scene) -> None:
    def failed(work: RunSlice) -> Sequence[SliceRow]:
        scene.stop.set()
        raise JobFailed("an executor was lost")

    scene.push({"n": 0}, {"n": 1})
    done = scene.worker(failed, burst=False).run()
    assert (done.claims, done.released, scene.left) == (1, 2, (2, 0, 0, 0))
    (work,) = JobsHere.seen
    with pytest.raises(StaleConsumer):
        scene.client.consumers.begin_slice(scene.queue, scene.queue, work.generation, 1)


def test_a_stop_is_heard_while_a_failed_job_waits_to_be_run_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_loop, "_MAX_PAUSE_S", 3600.0)

    def fails(work: RunSlice) -> Sequence[SliceRow]:
        if len(JobsHere.seen) == 2:
            monkeypatch.setattr(SparkWorker, "_pause", paused)
        raise JobFailed("an executor was lost")

    pause = SparkWorker._pause

    def paused(self: SparkWorker, pause_s: float) -> None:
        scene.stop.set()
        pause(self, 3600.0)

    scene.push({"n": 0})
    done = scene.worker(fails, burst=False).run()
    assert (len(JobsHere.seen), done.reruns, scene.left) == (2, 2, (1, 0, 0, 0))


def test_a_task_that_could_not_reach_the_broker_ends_the_worker_only_if_none_ever_could(scene: Scene) -> None:
    away = fault_of(ServerUnreachable("127.0.0.1:1", "nobody answers"))

    def one_away(work: RunSlice) -> Sequence[SliceRow]:
        return [*work([0]), SliceRow(1, error=away)]

    def all_away(work: RunSlice) -> Sequence[SliceRow]:
        return [SliceRow(0, error=away), SliceRow(1, error=away)]

    scene.push(*({"n": n} for n in range(20)))
    assert scene.worker(one_away, all_away, whole).run().completed == 20
    scene.push({"n": 20})
    with pytest.raises(ServerUnreachable):
        scene.worker(all_away).run()
    assert scene.left == (1, 0, 0, 0)


def test_a_claim_is_sized_by_what_its_tasks_took_and_not_by_what_spark_takes_besides(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[float] = []

    def seen(asked: int, done: int, took_s: float, **bounds: int) -> int:
        took.append(took_s)
        return asked

    monkeypatch.setattr(worker_loop, "next_size", seen)

    def quick(work: RunSlice) -> Sequence[SliceRow]:
        return [replace(row, took_ms=7 + row.slice) for row in whole(work)]

    scene.push(*({"n": n} for n in range(20)))
    scene.worker(quick, max_messages=5).run()
    assert set(took) == {0.008}
