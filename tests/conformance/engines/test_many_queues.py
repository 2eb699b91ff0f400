"""With many queues a request, or the timer, does next to nothing for those that it is not about."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.engine.broker import Broker
from fairlead.store.kv.dictionary import DictionaryStore
from fairlead.testing import ManualClock

QUEUES = 100

ACTS: dict[str, Callable[[Broker], object]] = {
    "a throttle": lambda broker: broker.config.set("throttle:t:rate", "5"),
    "a new queue": lambda broker: broker.create_queue("new"),
    "the timer": lambda broker: broker.run_due(),
    "an enqueue": lambda broker: broker.enqueue("q0", b"x"),
    "a claim": lambda broker: broker.claim("q0"),
}


def calls(act: Callable[[Broker], object], queues: int) -> int:
    """Calls of Python functions."""
    with Broker(DictionaryStore(), clock=ManualClock()) as broker:
        for at in range(queues):
            broker.create_queue(f"q{at}")
        count = 0

        def note(frame: Any, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            act(broker)
        finally:
            sys.setprofile(None)
        return count


@pytest.mark.parametrize("act", ACTS)
def test_a_queue_that_is_not_meant_costs_a_few_calls_at_most(act: str) -> None:
    # Each queue has one for its dead letters.
    assert calls(ACTS[act], QUEUES) - calls(ACTS[act], 1) <= 8 * 2 * QUEUES
