"""Steps of a run with staged writes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from fairlead import NewMessage
from fairlead.request import Request
from fairlead.verbs.staging import StagingDiscard, StagingList, StagingPublish, StagingStage

CHUNKS = ("a", "b")
DEATHS = (None, None, None, ("validation_failure", "bad row"))


class StagingSteps:
    """One write after the other, now and then the one before again."""

    def __init__(self, random: Random, make_message: Callable[[], NewMessage]) -> None:
        self._random = random
        self._make_message = make_message
        self._write = 0

    def next_step(self) -> Request[Any]:
        random = self._random
        write = max(0, self._write - random.choice((0, 0, 0, 0, 1)))
        token, queue = f"w{write}", ("first", "second")[write % 2]
        if random.random() < 0.05:
            queue = random.choice(("first", "first.dlq", "unknown"))
        kind = random.choice(("stage", "stage", "stage", "publish", "publish", "look"))
        if kind == "stage":
            return self._stage(token, queue)
        if kind == "look":
            return StagingDiscard(token, queue) if random.random() < 0.3 else StagingList()
        self._write += 1
        return StagingPublish(token, queue, random.sample(CHUNKS, random.choice((0, 1, 1, 1, 2))))

    def _stage(self, token: str, queue: str) -> Request[Any]:
        random = self._random
        messages = [self._make_message() for _ in range(random.choice((0, 1, 3, 10)))]
        if random.random() < 0.1:
            messages.append(NewMessage(payload="text"))  # type: ignore[arg-type]
        return StagingStage(
            token,
            random.choice(CHUNKS),
            queue,
            messages,
            random.choice(("1d", "1d", "2s")),
            random.random() < 0.7,
            random.choice(DEATHS),
        )
