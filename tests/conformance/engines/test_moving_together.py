"""Messages that move together end in the same rows, answers and memory as if each of them moved by itself.

Two engines get the same random requests. In one of them failures are decided one by one, and facts about several
messages are applied one by one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from fairlead import Complete, Fail, NewMessage
from fairlead.engine import known_waits, short_ways
from fairlead.engine.laws import broken_laws
from fairlead.engine.memory import Memory
from fairlead.engine.queue import Queue
from fairlead.engine.reduce import moves
from fairlead.engine.work import settle
from fairlead.records.facts import MessagesMoved
from fairlead.records.state import OwnState
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigSet
from fairlead.verbs.enqueue import EnqueueMany
from fairlead.verbs.queues import CreateQueue
from fairlead.verbs.settle import Settle
from tests.conformance.engines.memory_sizes import memory_sizes
from tests.conformance.engines.test_short_ways import BothWays, add_cold_messages, rows_of, turns_of

RUNS = int(os.environ.get("FAIRLEAD_PROPERTY_EXAMPLES") or 40)
STEPS = 120
OPTIONS: list[dict[str, Any]] = [
    {},
    {"retry": {"policy": "fixed", "cooldown": "2s", "attempts": 3}},
    {"retry": {"policy": "exponential", "base": "1s", "cap": "5s", "jitter": "full"}},
    {"retry_on": {"handler_exception": {"policy": "fixed", "cooldown": "1s"}}},
    {"max_unsettled_per_key": 2},
    {"ttl": "6s"},
    {"ordering": "none"},
    {"failure_breaker": {"failures": 4, "window": "5s", "pause": "2s"}},
]


class TogetherAndAlone(BothWays):
    """The second engine moves each message by itself."""

    def step(self) -> None:
        random, kind = self.random, self.random.random()
        if kind < 0.3:
            delays = random.choice([[None] * 6, ["2s"] * 6, [None, "1s", "2s", "1s", "0s", "3s"]])
            extra = random.choice([{}, {}, {}, {"stream": "s"}, {"throttle_keys": ("slow",)}, {"ttl": "4s"}])
            messages = [
                NewMessage(
                    b"x", fairness_key=random.choice("abc"), weight=random.choice([1, 1, 3]), delay=delay
                )
                for delay in delays
            ]
            messages.append(NewMessage(b"last", **extra))
            self.do(lambda _: EnqueueMany("q", messages))
        elif kind < 0.55:
            limit = random.choice([1, 4, 20])
            self.do(lambda _: Claim("q", limit))
        elif kind < 0.85 and self.deliveries:
            self.settle_some()
        else:
            passed_ms = random.choice([0, 1, 1000, 2500])
            for clock in self.clocks:
                clock.advance(ms=passed_ms)

    def settle_some(self) -> None:
        random = self.random
        claim_id = random.choice(self.deliveries)[0].claim_id
        of_claim = [pair for pair in self.deliveries if pair[0].claim_id == claim_id]
        some = of_claim[: random.choice([1, 3, 20])]
        self.deliveries = [pair for pair in self.deliveries if pair not in some]
        if random.random() < 0.2:
            self.do(lambda index: Settle([Complete(pair[index]) for pair in some]))
            return
        reasons = random.choice([["unknown"], ["unknown", "handler_exception"]])
        said: list[dict[str, Any]] = [
            {
                "error": random.choice(["a", "b"]),
                "reason": random.choice(reasons),
                **random.choice([{}] * 9 + [MORE]),
            }
            for _ in some
        ]
        self.do(
            lambda index: Settle([Fail(pair[index], **one) for pair, one in zip(some, said, strict=True)])
        )


MORE: dict[str, Any] = {"retry_in": "1s", "progress": 4}


@contextmanager
def alone(both: BothWays, together: Counter[str]) -> Iterator[None]:
    """Counts what moved together in the first engine."""
    move_alike, find_failed = moves._move_alike, settle.find_failed

    def move_alone(memory: Memory, queue: Queue, fact: MessagesMoved, before: Sequence[OwnState]) -> bool:
        if memory is both.engines[1].memory:
            return False
        is_alike = move_alike(memory, queue, fact, before)
        together[fact.why] += is_alike
        return is_alike

    def find_none(memory: Memory, items: Any) -> Any:
        return None if memory is both.engines[1].memory else find_failed(memory, items)

    with (
        patch.object(moves, "_move_alike", move_alone),
        patch.object(settle, "find_failed", find_none),
        patch.object(short_ways, "find_failed", find_none),
    ):
        yield


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(RUNS), ids=lambda seed: f"seed{seed}-")
def test_messages_that_move_together_end_as_if_each_moved_by_itself(seed: int) -> None:
    together = Counter[str]()
    # With little memory most messages are cold, and few waits are known.
    with memory_sizes(seed), patch.object(known_waits, "MAX_KNOWN_WAITS", 5 if seed % 3 else 10_000):
        both = TogetherAndAlone(seed)
        with alone(both, together):
            both.do(lambda _: CreateQueue("q", {"visibility_timeout": "4s", **OPTIONS[seed % len(OPTIONS)]}))
            both.do(lambda _: CreateQueue("other", {}))
            both.do(lambda _: ConfigSet("throttle:slow:rate", "1"))
            if seed % 4 == 0:
                add_cold_messages(both)
            for at in range(STEPS):
                both.step()
                assert rows_of(both.stores[0]) == rows_of(both.stores[1])
                assert turns_of(both.engines[0]) == turns_of(both.engines[1])
                if at % 10 == 0:
                    assert broken_laws(both.engines[0]) == []


@pytest.mark.parametrize("policy", ["retried", "delayed"])
def test_batches_of_plain_messages_move_together(policy: str) -> None:
    both, together = TogetherAndAlone(0), Counter[str]()
    retry = {"retry": {"policy": "fixed", "cooldown": "2s"}} if policy == "delayed" else {}
    with alone(both, together):
        both.do(lambda _: CreateQueue("q", retry))
        both.do(
            lambda _: EnqueueMany("q", [NewMessage(b"x", fairness_key=key, delay="1s") for key in "abab"])
        )
        for clock in both.clocks:
            clock.advance(ms=1000)
        both.do(lambda _: Claim("q", 4))
        both.do(lambda index: Settle([Fail(pair[index]) for pair in both.deliveries]))
    assert together == {"due": 1, policy: 1}
    assert rows_of(both.stores[0]) == rows_of(both.stores[1])
