"""What a hook costs: the same messages through a queue with a small script and through one without, turn and
turn about.

*Enqueue* is the part where `on_enqueue` runs, *lifecycle* is enqueue, claim and complete, as in every other
table; *fail* is the settle call in which `on_failure` runs. Without a hook the caller gives the key and the
weight, and the queue's policy decides.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import msgspec

import fairlead
from bench.lifecycle import drafts_over
from bench.rates import Spread, ratio, spread

BATCH = 500
KEYS = 1_000
QUEUES = ("with", "without")
ON_ENQUEUE = """
function on_enqueue(msg)
  return { fairness_key = msg.headers["tenant"], weight = tonumber(msg.headers["priority"]) or 1 }
end
"""
ON_FAILURE = """
function on_failure(msg)
  if msg.attempts >= 3 then
    return { action = "dlq" }
  end
  return { action = "retry", delay_ms = 1000 * msg.attempts }
end
"""


class Plan(msgspec.Struct, frozen=True):
    rounds: int = 7
    messages: int = 50_000


QUICK = Plan(rounds=3, messages=5_000)


class Measured(msgspec.Struct, frozen=True):
    """Messages per second, and `of_without` round by round."""

    part: str
    batch: int
    messages: int
    rate: Spread
    without: Spread
    of_without: Spread


def steps(plan: Plan) -> int:
    return plan.rounds * len(QUEUES)


def measure(plan: Plan, home: Path, tick: Callable[[str], None]) -> list[Measured]:
    data = home / "hooks"
    shutil.rmtree(data, ignore_errors=True)
    rates: dict[str, dict[str, list[float]]] = {
        part: {queue: [] for queue in QUEUES} for part in ("enqueue", "lifecycle", "fail")
    }
    with fairlead.open(data, durability="os") as broker:
        policy = {"policy": "fixed", "cooldown": "1s", "attempts": 3}
        broker.create_queue("with", visibility_timeout="10m", on_enqueue=ON_ENQUEUE, on_failure=ON_FAILURE)
        broker.create_queue("without", visibility_timeout="10m", retry=policy)
        for queue in QUEUES:
            _round(broker, queue, BATCH * 4, 0)
        for turn in range(plan.rounds):
            for queue in (QUEUES, QUEUES[::-1])[turn % 2]:
                for part, rate in _round(broker, queue, plan.messages, turn).items():
                    rates[part][queue].append(rate)
                tick(f"{queue} hooks")
        for hook in broker.stats("with").hooks:
            if hook.failures or hook.bypassed:
                raise AssertionError(f"{hook.function} failed: {hook.last_error}")
    shutil.rmtree(data, ignore_errors=True)
    return [
        Measured(
            part,
            BATCH,
            plan.messages,
            spread(got["with"]),
            spread(got["without"]),
            ratio(got["with"], got["without"]),
        )
        for part, got in rates.items()
    ]


def _round(broker: fairlead.Broker, queue: str, count: int, turn: int) -> dict[str, float]:
    """Two passes: one completes everything, one fails everything and drops it afterwards."""
    enqueue_s = rest_s = fail_s = 0.0
    for some in _drafts(queue, count, turn):
        began = perf_counter()
        broker.enqueue_many(queue, some)
        enqueued = perf_counter()
        broker.settle([fairlead.Complete(delivery) for delivery in broker.claim(queue, limit=BATCH)])
        enqueue_s += enqueued - began
        rest_s += perf_counter() - enqueued
    for some in _drafts(queue, count // 5, turn):
        broker.enqueue_many(queue, some)
        failures = [
            fairlead.Fail(delivery, error="no connection") for delivery in broker.claim(queue, limit=BATCH)
        ]
        began = perf_counter()
        results = broker.settle(failures)
        fail_s += perf_counter() - began
        if len(results) != BATCH or any(result.outcome != "retry" for result in results):
            raise AssertionError(f"expected {BATCH} retries, got {results[:1]}")
    broker.purge(queue)
    return {
        "enqueue": count / enqueue_s,
        "lifecycle": count / (enqueue_s + rest_s),
        "fail": count // 5 / fail_s,
    }


def _drafts(queue: str, count: int, turn: int) -> list[list[fairlead.NewMessage]]:
    """Both queues get the same headers, and end up with the same keys and weights."""
    return [
        [
            fairlead.NewMessage(draft.payload, {"tenant": draft.fairness_key, "priority": "2"})
            if queue == "with"
            else fairlead.NewMessage(
                draft.payload, {"tenant": draft.fairness_key, "priority": "2"}, draft.fairness_key, 2
            )
            for draft in some
        ]
        for some in drafts_over(KEYS, max(BATCH, count // BATCH * BATCH), BATCH, first=turn * count)
    ]
