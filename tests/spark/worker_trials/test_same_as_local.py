"""The local worker and the Spark worker run the same runbook on the same messages, and leave the same state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fairlead
import fairlead.spark
from fairlead import FailureReason, NewMessage
from fairlead.runbook.apply import find_in_force
from fairlead.testing import run_server
from fairlead.worker.workers import Workers
from tests.crash.worker.trial import apply

from . import mixed_steps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE, WORKER = "work", "mixed"
PATIENCE_S = 120

RUNBOOK = """
[queue.work]
dedup = "none"
max_attempts = 6
retry = {{ policy = "immediate", attempts = 4 }}
retry_in_stream = {{ policy = "fixed", cooldown = "1h", attempts = 4 }}
retry_on.timeout_exceeded = "none"
retry_on.poison_message = {{ policy = "immediate", attempts = 2 }}
retry_on.transport_unavailable = {{ policy = "fixed", cooldown = "1h" }}
retain_completed = "1h"

[pipeline.mixed]
steps = [
  {{ name = "first", run = "mixed_steps:first" }},
  {{ name = "second", run = "mixed_steps:second", timeout = "1s" }},
  {{ name = "check", command = ["sh", "-c", "exit $0", "{{code}}"] }},
  {{ name = "together", run = "mixed_steps:together", batch = true }},
  {{ name = "third", run = "mixed_steps:third" }},
]

[worker.mixed]
queue = "work"
pipeline = "mixed"
concurrency = 2
on_stream_failure = "{on_stream_failure}"
reasons = {{ OutOfPaper = "dependency_failure" }}
"""

HOWS = (
    "dead",
    "later",
    "nonsense",
    "connection",
    "mine",
    "odd",
    "exit",
    "dies",
    "leaves",
    "hangs",
    "nan",
    "large",
)


def messages() -> Iterator[NewMessage]:
    """The messages, each with its own name in a header."""
    for n in range(30):
        yield _message(f"plain-{n}")
    for how in HOWS:
        yield _message(f"{how}-always", how=how)
        if how not in ("dead", "later", "connection", "hangs"):
            yield _message(f"{how}-once", how=how, times=1)
    for code in (1, 65, 69, 75):
        yield _message(f"exit-{code}", code=code)
    for how in ("refused", "mine", "nan", "raises", "dies"):
        yield _message(f"batch-{how}", batch=how)
    for tag, payload in {"no-json": b"{", "no-text": b"\xff\xfe", "no-item": b"3", "empty": b""}.items():
        yield NewMessage(payload, headers={"tag": tag})
    for stream, hows in {
        "well": ("", "", ""),
        "dead": ("", "dead", "", ""),
        "waits": ("", "odd", "", ""),
        "last-waits": ("", "", "later"),
        "poison": ("dies", "", ""),
    }.items():
        for n, how in enumerate(hows):
            yield _message(f"{stream}-{n}", stream, how=how)


def _message(tag: str, stream: str | None = None, code: int = 0, **item: Any) -> NewMessage:
    return NewMessage(
        json.dumps({"tag": tag, "code": code, **item}).encode(), headers={"tag": tag}, stream=stream
    )


def run_local(client: fairlead.Client, runbook: Path) -> None:
    book = find_in_force(client, None)
    assert book is not None
    workers = Workers(client, book, base=runbook.parent, burst=True)
    workers.start()
    assert workers.wait(PATIENCE_S), "the burst did not end"
    workers.check()


def left_behind(client: fairlead.Client, ids: list[str]) -> dict[str, Any]:
    """For each message its queue, its progress, and its failures without times and consumers; and the counts."""
    found: dict[str, Any] = {}
    for message_id in ids:
        info = client.find(message_id)
        record = [
            (one.attempt, FailureReason(one.reason).word, one.rule, one.due_ms > 0, one.error)
            for one in info.failures
        ]
        found[info.headers["tag"]] = (
            info.queue,
            info.where,
            info.stream,
            info.attempts,
            info.progress,
            info.carry,
            record,
        )
    stats = client.stats(QUEUE)
    found["counts"] = (
        stats.ready,
        stats.waiting,
        stats.leased,
        stats.dead,
        stats.done,
        stats.totals.completed,
        stats.totals.failed,
    )
    return found


@pytest.mark.parametrize("on_stream_failure", ["wait", "continue"])
def test_both_workers_leave_the_same_states_failure_records_and_counts(
    spark: SparkSession, tmp_path: Path, on_stream_failure: str
) -> None:
    runbook = tmp_path / "book" / "runbook.toml"
    runbook.parent.mkdir()
    shutil.copy(mixed_steps.__file__, runbook.parent / "mixed_steps.py")
    runbook.write_text(RUNBOOK.format(on_stream_failure=on_stream_failure))
    left = {}
    for engine in ("local", "spark"):
        with (
            run_server(tmp_path / engine, settings={"durability": "os"}) as server,
            fairlead.connect(server.address) as client,
        ):
            apply(client, runbook)
            ids = client.enqueue_many(QUEUE, list(messages()))
            if engine == "local":
                run_local(client, runbook)
            else:
                fairlead.spark.run_worker(
                    WORKER, endpoint=server.address, spark=spark, runbook=runbook, burst=True, slices=2
                )
            left[engine] = left_behind(client, ids)
    local, on_spark = left["local"], left["spark"]
    assert {tag: (local[tag], on_spark[tag]) for tag in local if local[tag] != on_spark[tag]} == {}
    reasons = {record[1] for tag, ending in local.items() if tag != "counts" for record in ending[-1]}
    assert reasons == {reason.word for reason in FailureReason} - {"unknown"}
