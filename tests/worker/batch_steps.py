"""Batch steps for the tests. The item says what its row does; each call writes what it was given to the
journal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import fairlead
from tests.worker.steps import OutOfPaper


def note(items: list[dict[str, Any]], step: str, **more: Any) -> None:
    """Append one line in a single write, so that it survives the death of the process."""
    line = json.dumps({"rows": [item.get("n") for item in items], "step": step, "pid": os.getpid(), **more})
    out = os.open(items[0]["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(out, line.encode() + b"\n")
    finally:
        os.close(out)


def misbehave(items: list[dict[str, Any]]) -> None:
    """Raise, exit, hang or exhaust memory if a row asks for that."""
    for how in [item["how"] for item in items if "how" in item]:
        match how:
            case "raise":
                raise ValueError("odd")
            case "mine":
                raise OutOfPaper("tray 2")
            case "later":
                raise fairlead.StepFailed("not yet", retry_in="90s", reason="dependency_failure")
            case "throttled":
                raise fairlead.Throttled("429", retry_after="60s", key="api")
            case "exit":
                sys.exit(3)
            case "die":
                os._exit(7)
            case "segfault":
                import ctypes

                ctypes.string_at(0)
            case "memory":
                hoard = [bytearray(100_000_000) for _ in range(1000)]
                del hoard
            case "sleep":
                time.sleep(3600)


def outcome(item: dict[str, Any]) -> Any:
    """The entry that a row asks for."""
    returns: dict[str, Any] = {
        "nan": float("nan"),
        "object": object(),
        "large": "x" * 70_000,
        "invalid": fairlead.StepFailed("not so", reason="validation_failure"),
        "dead": fairlead.StepFailed("no use", reason="validation_failure", dead=True),
        "connection": ConnectionRefusedError("refused"),
        "none": None,
    }
    return returns[item["says"]] if "says" in item else {"twice": item["n"] * 2}


def rows(items: list[dict[str, Any]], step: fairlead.BatchStep) -> list[Any]:
    if "journal" in items[0]:
        note(items, step.name, values=step.values, attempts=step.attempts)
    misbehave(items)
    return [outcome(item) for item in items]


def one_by_one(items):  # type: ignore[no-untyped-def]
    for item in items:
        yield outcome(item)


def nothing(items: list[Any]) -> None: ...


def values(items: list[dict[str, Any]]) -> list[Any]:
    return [{"n": item["n"]} for item in items]


def gated(items: list[dict[str, Any]], step: fairlead.BatchStep) -> None:
    """Wait until the test opens the gate or kills the process."""
    note(items, step.name)
    for gate in [item["gate"] for item in items if "gate" in item]:
        while not Path(gate).exists():
            time.sleep(0.002)


def streamed(items: list[dict[str, Any]], step: fairlead.BatchStep) -> list[Any]:
    """Fail each row as often as its item says, then succeed."""
    note(items, step.name, streams=step.streams, attempts=step.attempts)
    again = [attempts < item["failures"] for item, attempts in zip(items, step.attempts, strict=True)]
    return [
        fairlead.StepFailed("as it was told", reason="dependency_failure") if fails else None
        for fails in again
    ]
