"""How many messages are claimed ahead for batch steps."""

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
    """A fetcher, its claims, and the messages that it is given."""

    def __init__(self, broker: Broker, *steps: Any, size: int = 1, **worker: Any) -> None:
        self.in_flight = InFlight()
        self._broker = broker
        self._job = Job.of(runbook(*steps, **worker), "worker", str(ROOT))
        pool: Any = SimpleNamespace(size=size)
        self._fetcher = Fetcher(self.in_flight, pool, Outbox(), Estimates(), burst=False)
        self.asks: list[ClaimRequest] = []

    def ask(self) -> ClaimRequest | None:
        """The next claim; None when the fetcher has enough."""
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


def test_a_batch_for_each_slot_and_one_more_are_fetched(broker: Broker) -> None:
    assert Asking(broker, batch("only", batch_size=300), size=2).ask() == ClaimRequest(1200, 1, "1s")
    assert Asking(broker, step("first"), batch("second", batch_size=300), size=2).ask() == ClaimRequest(
        1200, 1, "1s"
    )


def test_nothing_is_claimed_until_half_of_what_is_ahead_is_taken_up(broker: Broker) -> None:
    asking = Asking(broker, batch("only", batch_size=100))
    asking.ask()
    asking.give(200)
    assert asking.ask() is None
    for _ in range(150):
        asking.in_flight.take_up(asking.in_flight.fresh.popleft())
    assert asking.ask() == ClaimRequest(50, 1, "1s")


def test_a_configured_prefetch_adds_to_the_running_batches(broker: Broker) -> None:
    assert Asking(broker, batch("only", batch_size=100), size=3, prefetch=0).ask() == ClaimRequest(
        300, 1, "1s"
    )


def test_one_claim_is_bounded(broker: Broker) -> None:
    asked = Asking(broker, batch("only", batch_size=10_000), size=8).ask()
    assert asked is not None
    assert asked.limit == 10_000


def test_large_messages_are_fetched_ahead_by_bytes(broker: Broker) -> None:
    asking = Asking(broker, batch("only"))
    asking.ask()
    for _ in range(8):
        asking.give(2, size=4 * 1024 * 1024)
        asking.work_off()
        asking.ask()
    # Running and fetched ahead: at most the running batch and 64 MiB of messages.
    assert asking.asks[-1].limit < 1000 + 30


@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_runs_of_a_stream_are_only_as_long_as_needed(broker: Broker, rounds: int) -> None:
    """Only the first message of a run can be in the next batch."""
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
