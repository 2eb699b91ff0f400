"""Stands in for the Lua host: what it answers follows from the call alone, so both engines get the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from fairlead.hooks import EnqueueDecision, FailureDecision, OnEnqueueCall, OnFailureCall
from fairlead.model.views import HookStats
from tests.hooks.by_column import AsksByColumn


class StandInHooks(AsksByColumn):
    def __init__(self, before_call: Callable[[], None] = lambda: None) -> None:
        self._before_call = before_call
        self.calls = 0

    def on_enqueue(
        self, queue_id: int, queue: str, messages: Sequence[OnEnqueueCall]
    ) -> list[EnqueueDecision]:
        self._before_call()
        self.calls += len(messages)
        return [_enqueue(message) for message in messages]

    def on_failure(
        self, queue_id: int, queue: str, failures: Sequence[OnFailureCall]
    ) -> list[FailureDecision]:
        self._before_call()
        self.calls += len(failures)
        return [_failure(failure) for failure in failures]

    def check(self, script: str, function: str) -> None:
        self._before_call()

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


def _enqueue(message: OnEnqueueCall) -> EnqueueDecision:
    at = crc32(f"{sorted(message.headers.items())} {message.payload_size}".encode()) % 5
    if at < 2:
        return EnqueueDecision(("failed", "bypassed")[at])
    key, weight, throttles = ((None, None, ("t1",)), ("hooked", 3, None), ("k1", None, ()))[at - 2]
    return EnqueueDecision("ran", key, weight, throttles, None)


def _failure(failure: OnFailureCall) -> FailureDecision:
    said = f"{failure.attempts} {failure.reason} {failure.progress} {failure.headers}"
    at = crc32(said.encode()) % 6
    if at < 2:
        return FailureDecision(("failed", "bypassed")[at])
    action, delay_ms, notes = (
        ("retry", 0, ()),
        ("retry", 700, ()),
        ("retry", 9_000, ("late",)),
        ("dlq", 0, ()),
    )[at - 2]
    return FailureDecision("ran", action, delay_ms, notes=notes)  # type: ignore[arg-type]
