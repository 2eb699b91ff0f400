"""What is drawn at random: messages, queue options, filters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from fairlead import DeadFilter, NewMessage

QUEUES = ("q", "r")
CONSUMERS = ("ann", "bob")
STREAMS = ("A", "B", "C")
KEYS = ("x", "y", "z")
POLICIES: tuple[Any, ...] = (
    "immediate",
    "none",
    {"policy": "immediate", "attempts": 3},
    {"policy": "fixed", "cooldown": "2s"},
    {"policy": "fixed", "cooldown": "5s", "attempts": 2},
    {"policy": "fixed", "cooldown": "5s", "jitter": "full"},
    {"policy": "exponential", "base": "1s", "cap": "20s", "attempts": 4},
    {"policy": "exponential", "base": "1s", "factor": 3, "cap": "1m", "jitter": "full"},
)
SCRIPT = "-- answered by the stand-in"


def random_message(
    rng: random.Random, payload: bytes, streams: Sequence[str], in_streams: float
) -> NewMessage:
    return NewMessage(
        payload,
        headers={"kind": rng.choice("ab")} if rng.random() < 0.2 else None,
        fairness_key=rng.choice(KEYS),
        weight=rng.choice([1, 1, 3]),
        throttle_keys=("t",) if rng.random() < 0.1 else (),
        stream=rng.choice(streams) if rng.random() < in_streams else None,
        delay=rng.choice(["1s", "5s"]) if rng.random() < 0.1 else None,
        ttl=rng.choice(["3s", "60s"]) if rng.random() < 0.1 else None,
    )


def random_options(rng: random.Random) -> dict[str, Any]:
    """Each option has its default more often than not, so that most runs are about few of them."""
    options: dict[str, Any] = {
        "visibility_timeout": rng.choice(["2s", "10s", "30s"]),
        "retry": rng.choice(POLICIES),
        "retry_in_stream": rng.choice([None, None, *POLICIES]),
        "retry_on": rng.choice(
            [
                {},
                {},
                {"serialization_error": "none"},
                {"timeout_exceeded": {"policy": "fixed", "cooldown": "3s"}},
            ]
        ),
        "ordering": rng.choice(["release"] * 7 + ["strict"] * 2 + ["none"]),
    }
    others: dict[str, list[Any]] = {
        "max_attempts": [0, 2, 5],
        "max_deliveries": [0, 4],
        "max_messages": [0, 8],
        "max_unsettled_per_consumer": [0, 3],
        "max_unsettled_per_key": [0, 2],
        "failure_breaker": [None, {"failures": 2, "within": "10s", "pause": "15s"}],
        "on_enqueue": [None, SCRIPT],
        "on_failure": [None, SCRIPT, SCRIPT],
        "expired_to_dead": [True, False],
        "dead_retention": [None, "1m"],
        "retain_completed": [None, "5s", "2m", "2m"],
        "ttl": [None, "90s"],
        "quantum": [1, 3],
    }
    return options | {name: rng.choice(choices) for name, choices in others.items() if rng.random() < 0.25}


def random_filter(rng: random.Random) -> DeadFilter:
    return rng.choice(
        [
            DeadFilter(),
            DeadFilter(),
            DeadFilter(key="x"),
            DeadFilter(min_attempts=1),
            DeadFilter(reason="unknown"),
            DeadFilter(header=("kind", "a")),
        ]
    )
