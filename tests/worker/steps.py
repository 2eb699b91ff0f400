"""Steps for the tests. Each writes what it does to the journal that its item names."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import fairlead


def note(item: dict[str, Any], word: str, step: str, attempts: int = 0) -> None:
    """Append one line in a single write, so that it survives the death of the process."""
    line = json.dumps(
        {
            "n": item.get("n"),
            "stream": item.get("stream"),
            "step": step,
            "word": word,
            "attempts": attempts,
            "pid": os.getpid(),
        }
    )
    out = os.open(item["journal"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(out, line.encode() + b"\n")
    finally:
        os.close(out)


def read_journal(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


def nothing(item: dict[str, Any]) -> None: ...


def double(item: dict[str, Any], step: fairlead.Step) -> dict[str, int]:
    return {"twice": item["n"] * 2}


def check_double(item: dict[str, Any], step: fairlead.Step) -> str:
    assert step.value == {"twice": item["n"] * 2}
    assert step.values == {"first": {"twice": item["n"] * 2}}
    note(item, "checked", step.name)
    return "checked"


def noted(item: dict[str, Any], step: fairlead.Step) -> str:
    note(item, "begin", step.name, step.attempts)
    hold = item.get("hold")
    if hold and hold["step"] == step.name:
        # Hangs until the test opens the gate or kills the process.
        while not Path(hold["gate"]).exists():
            time.sleep(0.002)
    note(item, "end", step.name)
    return f"{step.name} of {item['n']}"


def fails(item: dict[str, Any], step: fairlead.Step) -> None:
    """Fail as often as the item says, then succeed."""
    note(item, "begin", step.name, step.attempts)
    if step.attempts < item.get("failures", 0):
        note(item, "failed", step.name)
        raise fairlead.StepFailed("as it was told", reason="dependency_failure")
    note(item, "end", step.name)


def raises(item: dict[str, Any]) -> object:
    kinds: dict[str, Any] = {
        "connection": ConnectionRefusedError("refused"),
        "timeout": TimeoutError("late"),
        "value": ValueError("odd"),
        "exit": SystemExit(3),
        "dead": fairlead.StepFailed("no use", dead=True, reason="validation_failure"),
        "later": fairlead.StepFailed("not yet", retry_in="90s"),
        "nonsense": fairlead.StepFailed("what", reason="bad luck", retry_in="soon"),
        "throttled": fairlead.Throttled("429", retry_after="60s", key="api"),
        "throttled nonsense": fairlead.Throttled("429", retry_after="soon", key="api"),
    }
    how = item["how"]
    if how in kinds:
        raise kinds[how]
    if how == "json":
        json.loads("{")
    if how == "unicode":
        b"\xff".decode()
    if how == "mine":
        raise OutOfPaper("tray 2")
    return {"nan": float("nan"), "object": object(), "large": "x" * 70_000}[how]


class OutOfPaper(Exception): ...


def misbehaves(item: dict[str, Any]) -> None:
    """One bad item among good ones."""
    match item.get("how"):
        case "segfault":
            import ctypes

            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case "memory":
            hoard = [bytearray(100_000_000) for _ in range(1000)]
            del hoard
        case "sleep":
            time.sleep(3600)
        case "spawn and sleep":
            import subprocess

            child = subprocess.Popen(["sleep", "3600"])
            Path(item["pids"]).write_text(f"{os.getpid()} {child.pid}")
            time.sleep(3600)
