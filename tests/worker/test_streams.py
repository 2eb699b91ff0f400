"""Order within streams, as the journals of the steps show it."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest

from fairlead import Broker
from fairlead.errors import ServerUnreachable
from fairlead.surface import Surface
from fairlead.testing import open_in_memory
from fairlead.verbs.operate import ReleaseStream
from fairlead.verbs.queues import ListQueues
from tests.docs.pages import ROOT
from tests.worker.scene import PATIENCE_S, QUEUE, push, runbook, step, until
from tests.worker.scene import Workers as Workers
from tests.worker.steps import read_journal

STREAMS, LENGTH = 1000, 3
SEED = 20_261
NEVER = "1h"


Lines = list[dict[str, Any]]


def work_through(
    journal: str, *, on_stream_failure: str, cooldown: str, ordering: str = "release", streams: int = STREAMS
) -> dict[str, Lines]:
    """Three workers at once on streams whose messages fail at random, until all that can be completed is.

    With a cooldown that never ends, this is every message that does not fail. Returns the journal of each
    stream.
    """
    chance = random.Random(SEED)
    items = [
        {"n": n, "stream": f"s{s}", "journal": journal, "failures": chance.choice([0, 0, 0, 0, 1, 2])}
        for n in range(LENGTH)
        for s in chance.sample(range(streams), streams)
    ]
    expected = len(items) if cooldown != NEVER else sum(not item["failures"] for item in items)
    with open_in_memory() as broker:
        again = {"policy": "fixed", "cooldown": cooldown, "attempts": 10}
        broker.create_queue(QUEUE, retry=again, retry_in_stream=again, ordering=ordering)
        push(broker, *items)
        books = [
            runbook(
                step("first", "nothing"),
                step("second", "fails"),
                isolate=isolate,
                concurrency=concurrency,
                on_stream_failure=on_stream_failure,
            )
            for isolate, concurrency in (("process", 1), ("thread", 2), ("thread", 3))
        ]
        crowd = [Workers(broker, book, base=ROOT) for book in books]
        for workers in crowd:
            workers.start()

        def is_done() -> bool:
            """Nothing is ready or leased: failing messages have been tried too."""
            stats = broker.stats(QUEUE)
            return (stats.totals.completed, stats.waiting) == (expected, len(items) - expected)

        until(lambda: any(w.error for w in crowd) or is_done(), "the end of all of them")
        for workers in crowd:
            workers.stop()
        for workers in crowd:
            assert workers.wait(PATIENCE_S)
            workers.check()
        stats = broker.stats(QUEUE)
        assert (stats.ready, stats.waiting, stats.leased, stats.dead) == (0, len(items) - expected, 0, 0)
    found: dict[str, Lines] = {}
    for line in read_journal(journal):
        found.setdefault(line["stream"], []).append(line)
    assert len(found) == streams
    return found


def test_with_wait_no_step_of_a_later_message_begins_before_the_earlier_one_is_completed(
    journal: str,
) -> None:
    streams = work_through(journal, on_stream_failure="wait", cooldown="20ms")
    for name, lines in streams.items():
        ran = [n for n, _ in groupby(line["n"] for line in lines)]
        assert ran == list(range(LENGTH)), f"stream {name}: {lines}"
        ends = [line["n"] for line in lines if line["word"] == "end"]
        assert ends == list(range(LENGTH)), f"stream {name}: {lines}"
    assert sum(line["word"] == "failed" for lines in streams.values() for line in lines) > STREAMS / 2


def test_with_continue_first_attempts_keep_their_order_and_do_not_wait_for_a_failed_message(
    journal: str,
) -> None:
    streams = work_through(journal, on_stream_failure="continue", cooldown=NEVER)
    for name, lines in streams.items():
        assert [line["n"] for line in lines if line["word"] == "begin"] == list(range(LENGTH)), (
            f"stream {name}: {lines}"
        )


def test_with_continue_a_failed_message_comes_back_when_it_is_due(journal: str) -> None:
    streams = work_through(journal, on_stream_failure="continue", cooldown="20ms", streams=200)
    for name, lines in streams.items():
        firsts = [line["n"] for line in lines if line["word"] == "begin" and not line["attempts"]]
        assert firsts == list(range(LENGTH)), f"stream {name}: {lines}"
        assert sorted(line["n"] for line in lines if line["word"] == "end") == list(range(LENGTH))


def test_a_strict_queue_keeps_order_whatever_its_workers_are_configured_to_do(journal: str) -> None:
    streams = work_through(
        journal, on_stream_failure="continue", cooldown="20ms", ordering="strict", streams=100
    )
    for name, lines in streams.items():
        assert [n for n, _ in groupby(line["n"] for line in lines)] == list(range(LENGTH)), (
            f"stream {name}: {lines}"
        )


class Away(Surface):
    """A broker that lists its queues a given number of times and then cannot be reached."""

    def __init__(self, broker: Broker, answers: int) -> None:
        self._broker = broker
        self._answers = answers
        self.refused = 0
        self.let_by: list[str] = []

    def do(self, request: Any) -> Any:
        if isinstance(request, ListQueues):
            if not self._answers:
                self.refused += 1
                raise ServerUnreachable("127.0.0.1:1", "it is away")
            self._answers -= 1
        elif isinstance(request, ReleaseStream):
            self.let_by.append(request.stream)
        return self._broker.do(request)


@pytest.mark.parametrize("answers", [0, 1], ids=["never asked", "asked before"])
def test_a_strict_queue_keeps_order_while_its_configuration_cannot_be_read(
    journal: str, answers: int
) -> None:
    with open_in_memory() as broker:
        broker.create_queue(
            QUEUE,
            ordering="strict",
            visibility_timeout="1s",
            retry_in_stream={"policy": "fixed", "cooldown": NEVER},
        )
        away = Away(broker, answers)
        workers = Workers(
            away, runbook(step("fails"), isolate="thread", on_stream_failure="continue"), base=ROOT
        )
        workers.start()
        until(lambda: away.refused > 1, "the broker to be away")
        push(
            broker, *({"n": n, "stream": "s", "journal": journal, "failures": int(n == 0)} for n in range(3))
        )
        until(lambda: workers.counts.failed == 1, "the failure")
        workers.stop()
        assert workers.wait(PATIENCE_S)
        workers.check()
    assert away.let_by == []
    assert {line["n"] for line in read_journal(journal)} == {0}


@pytest.mark.parametrize("isolate", ["process", "thread"])
def test_the_first_failure_ends_a_run_and_the_rest_is_released_in_order(journal: str, isolate: str) -> None:
    with open_in_memory() as broker:
        broker.create_queue(QUEUE, retry_in_stream={"policy": "fixed", "cooldown": "1h"})
        ids = push(
            broker, *({"n": n, "stream": "s", "journal": journal, "failures": int(n == 1)} for n in range(6))
        )
        workers = Workers(
            broker, runbook(step("fails"), isolate=isolate, prefetch=100), base=ROOT, burst=True
        )
        workers.start()
        assert workers.wait(PATIENCE_S)
        workers.check()
        assert [line["n"] for line in read_journal(journal) if line["word"] == "begin"] == [0, 1]
        assert workers.counts.released == 4
        left = [broker.find(message_id) for message_id in ids[1:]]
        assert [found.attempts for found in left] == [1, 0, 0, 0, 0]
        assert broker.claim(QUEUE) == []
