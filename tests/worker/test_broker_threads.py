"""The threads that call the broker for a worker, with a target that controls its answers."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from fairlead import Complete
from fairlead.errors import Forbidden, ServerUnreachable
from fairlead.model.settle import SettleResult
from fairlead.verbs.queues import ListQueues
from fairlead.verbs.settle import Settle
from fairlead.worker.broker_threads import (
    BrokerFailed,
    BrokerThreads,
    ClaimRequest,
    HeartbeatDue,
    Settled,
    SettleRequest,
)
from tests.worker.scene import PATIENCE_S, until


class Target:
    """Answers settles once `answers` is set, first with the errors in `errors`."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.errors: list[Exception] = []
        self.answers = threading.Event()
        self.answers.set()

    def do(self, request: Any) -> Any:
        self.requests.append(request)
        if not isinstance(request, Settle):
            return []
        assert self.answers.wait(PATIENCE_S)
        if self.errors:
            raise self.errors.pop(0)
        return [SettleResult(b"", "completed") for _ in request.items]

    def settled(self) -> list[int]:
        """The number of items of each settle call."""
        return [len(request.items) for request in self.requests if isinstance(request, Settle)]


class Threads:
    def __init__(self) -> None:
        self.target = Target()
        self.events: SimpleQueue[Any] = SimpleQueue()
        self.threads = BrokerThreads(self.target, "work", "me", self.events.put)  # type: ignore[arg-type]
        self.until_event(HeartbeatDue)

    def complete(self, count: int) -> None:
        delivery: Any = object()
        self.threads.settle([SettleRequest(Complete(delivery), "complete", delivery)] * count)

    def until_event(self, kind: type) -> Any:
        while not isinstance(event := self.events.get(timeout=PATIENCE_S), kind):
            pass
        return event


@pytest.fixture
def broker_threads() -> Any:
    made = Threads()
    yield made
    made.target.answers.set()
    made.threads.close(PATIENCE_S)


def test_requests_that_wait_for_a_settle_call_go_together_in_the_next_one(broker_threads: Threads) -> None:
    broker_threads.target.answers.clear()
    broker_threads.complete(1)
    until(lambda: broker_threads.target.settled() == [1], "the first call")
    for count in (2, 3, 4):
        broker_threads.complete(count)
    broker_threads.target.answers.set()
    assert len(broker_threads.until_event(Settled).requests) == 1
    assert len(broker_threads.until_event(Settled).requests) == 9
    assert broker_threads.target.settled() == [1, 9]


def test_a_settle_that_cannot_reach_the_broker_is_repeated_and_the_queue_is_read_in_between(
    broker_threads: Threads,
) -> None:
    broker_threads.target.requests.clear()
    broker_threads.target.errors = [ServerUnreachable("127.0.0.1:1", "it is away")]
    broker_threads.complete(1)
    assert len(broker_threads.until_event(Settled).results) == 1
    kinds = [type(request) for request in broker_threads.target.requests]
    first = kinds.index(Settle)
    assert kinds[first : first + 3] == [Settle, ListQueues, Settle]


def test_a_close_settles_what_waits_and_repeats_nothing(broker_threads: Threads) -> None:
    broker_threads.target.answers.clear()
    broker_threads.complete(1)
    until(lambda: broker_threads.target.settled() == [1], "the first call")
    broker_threads.complete(2)
    broker_threads.target.errors = []
    closing = threading.Thread(target=broker_threads.threads.close, args=(PATIENCE_S,))
    closing.start()
    broker_threads.target.answers.set()
    closing.join(PATIENCE_S)
    assert broker_threads.target.settled() == [1, 2]


def test_after_hurry_an_unreachable_broker_ends_the_worker(broker_threads: Threads) -> None:
    broker_threads.target.errors = [ServerUnreachable("127.0.0.1:1", "it is away")]
    broker_threads.threads.hurry()
    broker_threads.complete(1)
    assert isinstance(broker_threads.until_event(BrokerFailed).error, ServerUnreachable)


def test_a_refused_settle_ends_the_worker(broker_threads: Threads) -> None:
    broker_threads.target.errors = [Forbidden("consume", "work")]
    broker_threads.complete(1)
    assert isinstance(broker_threads.until_event(BrokerFailed).error, Forbidden)


def test_a_claim_that_waits_delays_no_settle() -> None:
    made = Threads()
    waits, go_on = threading.Event(), threading.Event()
    answer = made.target.do

    def do(request: Any) -> Any:
        if type(request).__name__ == "Claim":
            waits.set()
            assert go_on.wait(PATIENCE_S)
        return answer(request)

    made.target.do = do  # type: ignore[method-assign]
    made.threads.claim(ClaimRequest(1, 1, "1s"))
    assert waits.wait(PATIENCE_S)
    made.complete(1)
    made.until_event(Settled)
    go_on.set()
    made.threads.close(PATIENCE_S)
