"""Steps that follow the script in their item: fail in some way for the given number of attempts, then
succeed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import fairlead
from tests.worker.batch_steps import note

#: The failure reason of each way to fail.
WAYS = {
    "raise": "handler_exception",
    "exit": "handler_exception",
    "say": "validation_failure",
    "nan": "serialization_error",
    "die": "poison_message",
}


def value_of(item: dict[str, Any], step: str) -> str:
    return f"{step} of {item['n']}"


def _way(item: dict[str, Any], step: str, attempts: int) -> str:
    way, until = item["script"].get(step, ("", 0))
    return str(way) if attempts < until else ""


def _outcome(item: dict[str, Any], step: str, way: str) -> Any:
    if way == "say":
        return fairlead.StepFailed("as it was told", reason="validation_failure")
    return float("nan") if way == "nan" else value_of(item, step)


def _take_others_with_it(way: str) -> None:
    if way == "raise":
        raise ValueError("as it was told")
    if way == "exit":
        sys.exit(3)
    if way == "die":
        os._exit(7)


def one(item: dict[str, Any], step: fairlead.Step) -> Any:
    note([item], step.name, attempts=[step.attempts], values=[step.value])
    way = _way(item, step.name, step.attempts)
    _take_others_with_it(way)
    outcome = _outcome(item, step.name, way)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def many(items: list[dict[str, Any]], step: fairlead.BatchStep) -> list[Any]:
    note(items, step.name, attempts=step.attempts, values=step.values)
    ways = [_way(item, step.name, attempts) for item, attempts in zip(items, step.attempts, strict=True)]
    for way in ways:
        _take_others_with_it(way)
    return [_outcome(item, step.name, way) for item, way in zip(items, ways, strict=True)]
