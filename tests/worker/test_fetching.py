"""How much is claimed ahead for steps that take many at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairlead import Broker, NewMessage
from fairlead.worker.broker_threads import ClaimAnswered, ClaimRequest
from fairlead.worker.estimates import Estimates
from fairlead.worker.fetching import Fetcher
from fairlead.worker.in_flight import InFlight
from fairlead.worker.job import Job
from fairlead.worker.outbox import Outbox
from tests.docs.pages import ROOT
from tests.worker.scene import QUEUE, runbook, step
from tests.worker.test_batches import batch


class Asking:
    """A fetcher, what it asks for, and what it is given."""

    def __init__(self, broker: Broker, *steps: Any, size: int = 1, **worker: Any) -> None:
        self.in_flight = InFlight()
        self._broker = broker
        self._job = Job.of(runbook(*steps, **worker), "worker", str(ROOT))
        pool: Any = SimpleNamespace(size=size)
        self._fetcher = Fetcher(self.in_flight, pool, Outbox(), Estimates(), burst=False)
        self.asks: list[ClaimRequest] = []

    def ask(self) -> ClaimRequest | None:
        """None when it has enough."""
        before = len(self.asks)
        threads: Any = SimpleNamespace(claim=self.asks.append)
        self._fetcher.fetch(self._job, threads)
        return self.asks[-1] if len(self.asks) > before else None

    def give(self, messages: int, size: int = 10) -> None:
        self._broker.enqueue_many(QUEUE, [NewMessage(bytes(size)) for _ in range(messages)])
        self._fetcher.claimed(ClaimAnswered(self._broker.claim(QUEUE, limit=messages)))

    def work_off(self) -> None:
        while self.in_flight.fresh:
            item = self.in_flight.fresh.popleft()
            self.in_flight.take_up(item)
            self.in_flight.end(item)


def test_a_batch_for_each_slot_and_one_more_behind_it(broker: Broker) -> None:
    assert Asking(broker, batch("only", batch_size=300), size=2).ask() == ClaimRequest(1200, 1, "1s")
    assert Asking(broker, step("first"), batch("second", batch_size=300), size=2).ask() == ClaimRequest(
        1200, 1, "1s"
    )


def test_nothing_more_until_half_of_what_is_ahead_is_taken_up(broker: Broker) -> None:
    asking = Asking(broker, batch("only", batch_size=100))
    asking.ask()
    asking.give(200)
    assert asking.ask() is None
    for _ in range(150):
        asking.in_flight.take_up(asking.in_flight.fresh.popleft())
    assert asking.ask() == ClaimRequest(50, 1, "1s")


def test_a_prefetch_that_was_chosen_is_beyond_the_batches_in_work(broker: Broker) -> None:
    assert Asking(broker, batch("only", batch_size=100), size=3, prefetch=0).ask() == ClaimRequest(
        300, 1, "1s"
    )


def test_one_claim_brings_no_more_than_it_may(broker: Broker) -> None:
    asked = Asking(broker, batch("only", batch_size=10_000), size=8).ask()
    assert asked is not None
    assert asked.limit == 10_000


def test_large_messages_are_not_fetched_by_the_thousand(broker: Broker) -> None:
    asking = Asking(broker, batch("only"))
    asking.ask()
    for _ in range(8):
        asking.give(2, size=4 * 1024 * 1024)
        asking.work_off()
        asking.ask()
    # What is in work and what is ahead: at most the batch under way, and as many as have 64 MiB.
    assert asking.asks[-1].limit < 1000 + 30


@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_runs_of_a_stream_are_only_as_long_as_it_takes_to_find_enough(broker: Broker, rounds: int) -> None:
    """Only the first of a run can be in the next batch."""
    asking = Asking(broker, batch("only", batch_size=100))
    for _ in range(rounds):
        asked = asking.ask()
        assert asked is not None
        asking.give(10)
        asking.work_off()
    asked = asking.ask()
    assert asked is not None
    assert asked.max_per_stream == min(64, 2**rounds)
    asking.give(asked.limit)
    asking.work_off()
    again = asking.ask()
    assert again is not None
    assert again.max_per_stream == asked.max_per_stream // 2
