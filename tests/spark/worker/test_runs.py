"""A runbook worker in the tasks of a session: the outcomes of messages, and its counts."""

from __future__ import annotations

import os
import signal
import threading
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

import fairlead.spark
from fairlead.errors import SparkNotReady, StaleConsumer, StepNotLoaded
from tests.spark.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairlead.spark.worker.loop import SparkWorkerProgress, WorkerSummary
    from tests.spark.worker.conftest import Project


def burst(spark: SparkSession, project: Project, **options: Any) -> WorkerSummary:
    return fairlead.spark.run_worker(
        "clerk", endpoint=project.server.address, spark=spark, runbook=project.file, burst=True, **options
    )


def test_a_burst_leaves_every_message_done_or_dead_and_counts_what_it_did(
    spark: SparkSession, project: Project
) -> None:
    project.write("check:noted", "book:fails", worker="concurrency = 2")
    project.push(*({"n": n, "failures": 9 if n == 7 else n % 3 == 0} for n in range(60)))
    told: list[SparkWorkerProgress] = []
    done = burst(spark, project, slices=2, on_progress=told.append)
    assert (done.completed, done.failed, done.dead, done.lost, done.reruns) == (59, 20 + 4, 1, 0, 0)
    assert done.reasons == {"transport_unavailable": 25}
    assert project.left == (0, 0, 0, 1)
    # Confirmed steps do not run again.
    assert sum(line["step"] == "check" and line["word"] == "begin" for line in project.journal) == 60
    assert told[-1].summary.completed == 59
    (consumer,) = (one for one in project.client.consumers.list() if one.queue == project.queue)
    assert (consumer.name, consumer.open, consumer.default_outcome) == (
        f"worker:{project.name}/clerk",
        0,
        "release",
    )


def test_streams_keep_their_order_across_claims(spark: SparkSession, project: Project) -> None:
    project.write("first:noted", "second:fails", worker='concurrency = 2\nisolate = "thread"')
    items = [
        {"n": n, "stream": f"s{s}", "failures": (n * 7 + s) % 11 == 0} for n in range(10) for s in range(50)
    ]
    project.push(*items)
    done = burst(spark, project, slices=3, max_messages=120)
    assert done.completed == len(items)
    assert done.claims > 4
    streams: dict[str, list[int]] = {}
    for line in project.journal:
        streams.setdefault(line["stream"], []).append(line["n"])
    assert {name: [n for n, _ in groupby(seen)] for name, seen in streams.items()} == {
        f"s{s}": list(range(10)) for s in range(50)
    }


def test_a_step_process_that_dies_costs_one_try_of_its_message(spark: SparkSession, project: Project) -> None:
    project.write("book:fails")
    project.push(*({"n": n, "kills": n == 5} for n in range(20)))
    done = burst(spark, project)
    assert (done.completed, done.failed, done.restarts, done.reasons) == (20, 1, 1, {"poison_message": 1})


def test_a_python_worker_that_is_killed_costs_a_run_of_the_job_and_nothing_that_is_settled(
    spark: SparkSession, project: Project
) -> None:
    gate = project.folder / "gate"
    project.write(
        "book:noted", worker='concurrency = 2\nisolate = "thread"'
    )  # so that its pid is that of Spark's Python worker
    project.push(*({"n": n} for n in range(20)), {"n": 99, "gate": str(gate)})
    done: list[WorkerSummary] = []
    working = threading.Thread(target=lambda: done.append(burst(spark, project, slices=1)))
    working.start()
    wait_until(
        lambda: project.begun(99) == 1 and len(project.journal) == 41, "all but the held one to be done"
    )
    os.kill(next(line["pid"] for line in project.journal if line["n"] == 99), signal.SIGKILL)
    gate.touch()
    working.join()
    assert (done[0].completed, done[0].dead, done[0].reruns) == (21, 0, 1)
    # Only the message that had begun was in doubt, and was retried. If its start was recorded, this counts
    # as a try.
    assert done[0].reasons in ({}, {"timeout_exceeded": 1})
    assert [project.begun(n) for n in (*range(20), 99)] == [1] * 20 + [2]


def test_a_stop_lets_the_job_finish_and_takes_no_more(spark: SparkSession, project: Project) -> None:
    gate, stop = project.folder / "gate", threading.Event()
    project.write("book:noted")
    project.push({"n": 0, "gate": str(gate)}, *({"n": n} for n in range(1, 50)))
    done: list[WorkerSummary] = []
    run = {
        "endpoint": project.server.address,
        "spark": spark,
        "runbook": project.file,
        "slices": 1,
        "max_messages": 10,
        "stop": stop,
    }
    working = threading.Thread(target=lambda: done.append(fairlead.spark.run_worker("clerk", **run)))
    working.start()
    wait_until(lambda: project.begun(0), "the first to begin")
    stop.set()
    gate.touch()
    working.join()
    assert (done[0].completed, done[0].claims) == (10, 1)
    assert project.left == (40, 0, 0, 0)


def test_in_a_hurry_what_is_under_way_goes_back_and_its_steps_end(
    spark: SparkSession, project: Project
) -> None:
    stop, hurry = threading.Event(), threading.Event()
    project.write("book:noted")
    project.push({"n": 0, "gate": str(project.folder / "never")}, {"n": 1}, {"n": 2})
    done: list[WorkerSummary] = []
    run = {
        "endpoint": project.server.address,
        "spark": spark,
        "runbook": project.file,
        "slices": 1,
        "stop": stop,
        "hurry": hurry,
    }
    working = threading.Thread(target=lambda: done.append(fairlead.spark.run_worker("clerk", **run)))
    working.start()
    wait_until(lambda: project.begun(0), "the held one to begin")
    pid = next(line["pid"] for line in project.journal if line["n"] == 0)
    stop.set()
    hurry.set()
    working.join()
    assert done[0].failed == 0
    assert project.left == (3 - done[0].completed, 0, 0, 0)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the step process to end")


def test_a_second_run_takes_over_with_what_the_first_had_in_hand(
    spark: SparkSession, project: Project
) -> None:
    gate = project.folder / "gate"
    project.write("book:noted")
    project.push({"n": 0, "gate": str(gate)}, *({"n": n} for n in range(1, 5)))
    raised: list[StaleConsumer] = []

    def first() -> None:
        try:
            fairlead.spark.run_worker(
                "clerk",
                endpoint=project.server.address,
                spark=spark,
                runbook=project.file,
                slices=1,
                ttl="4s",
            )
        except StaleConsumer as error:
            raised.append(error)

    working = threading.Thread(target=first)
    working.start()
    wait_until(lambda: project.begun(0), "the first to begin")
    gate.touch()
    done = burst(spark, project, slices=1)
    working.join()
    assert "took over" in "".join(raised[0].__notes__)
    assert project.left == (0, 0, 0, 0)
    assert done.completed <= 5


def test_a_step_that_executors_cannot_load_stops_the_worker_and_holds_nothing(
    spark: SparkSession, project: Project
) -> None:
    project.write("book:nothing_of_the_kind")
    project.push({"n": 0})
    with pytest.raises(StepNotLoaded, match="nothing_of_the_kind"):
        burst(spark, project)
    assert project.left == (1, 0, 0, 0)


def test_a_broker_that_is_away_is_waited_for(spark: SparkSession, project: Project) -> None:
    gate = project.folder / "gate"
    project.write("book:noted", "ship:noted")
    project.push({"n": 0, "gate": str(gate)}, *({"n": n} for n in range(1, 30)))
    done: list[WorkerSummary] = []
    working = threading.Thread(target=lambda: done.append(burst(spark, project, slices=2, max_messages=10)))
    working.start()
    wait_until(lambda: project.begun(0), "the first to begin")
    project.server.kill()
    gate.touch()
    wait_until(
        lambda: any(line["n"] == 0 and line["word"] == "end" for line in project.journal),
        "the first step to end meanwhile",
    )
    project.server.start()
    working.join()
    assert (done[0].completed, done[0].failed, done[0].reruns) == (30, 0, 0)
    assert project.left == (0, 0, 0, 0)
    assert [project.begun(n) for n in range(30)] == [2] * 30


def test_a_session_of_spark_connect_is_refused_with_what_to_do(project: Project) -> None:
    project.write("book:noted")

    class Remote: ...

    with pytest.raises(SparkNotReady, match="Spark Connect"):
        fairlead.spark.run_worker(
            "clerk", endpoint=project.server.address, spark=Remote(), runbook=project.file
        )  # type: ignore[arg-type]
