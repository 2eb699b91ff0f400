"""Stands in for the Lua host: answers, fails and is switched off at random, and remembers what it said."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fairlead.hooks import EnqueueDecision, FailureDecision, OnEnqueueCall, OnFailureCall
from fairlead.model.views import HookStats
from tests.hooks.by_column import AsksByColumn


class RandomHooks(AsksByColumn):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: By (message id, attempts): the last answer to a failure.
        self.answers: dict[tuple[str, int], FailureDecision] = {}

    def on_enqueue(
        self, queue_id: int, queue: str, messages: Sequence[OnEnqueueCall]
    ) -> list[EnqueueDecision]:
        return [self._enqueue() for _ in messages]

    def _enqueue(self) -> EnqueueDecision:
        rng = self._rng
        if rng.random() < 0.3:
            return EnqueueDecision(rng.choice(["failed", "bypassed"]), "default", 1, (), None, "no luck")
        key, keys, stream = (
            rng.choice([None, "x", "hooked"]),
            rng.choice([None, None, (), ("t",)]),
            rng.choice([None, None, None, "A"]),
        )
        return EnqueueDecision("ran", key, rng.choice([None, 3]), keys, stream)

    def on_failure(
        self, queue_id: int, queue: str, failures: Sequence[OnFailureCall]
    ) -> list[FailureDecision]:
        decisions = [self._failure() for _ in failures]
        self.answers |= {
            (call.id, call.attempts): decision for call, decision in zip(failures, decisions, strict=True)
        }
        return decisions

    def _failure(self) -> FailureDecision:
        rng = self._rng
        if rng.random() < 0.3:
            return FailureDecision(rng.choice(["failed", "bypassed", "absent"]), error="no luck")
        notes = ("corrected",) if rng.random() < 0.2 else ()
        return FailureDecision(
            "ran", rng.choice(["retry", "retry", "dlq"]), rng.choice([0, 0, 700, 8000]), notes=notes
        )

    def check(self, script: str, function: str) -> None:
        pass

    def set_script(self, queue_id: int, function: str, script: str | None) -> None:
        pass

    def set_config(self, key: str, value: str | None) -> None:
        pass

    def load_config(self, values: dict[str, str]) -> None:
        pass

    def stats(self, queue_id: int) -> list[HookStats]:
        return []

    def close(self) -> None:
        pass
