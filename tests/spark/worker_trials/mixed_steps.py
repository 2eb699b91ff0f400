"""Steps that fail in every possible way, chosen by their item, for the runbook of `test_same_as_local.py`."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import fairlead


class OutOfPaper(Exception): ...


def first(item: dict[str, Any], step: fairlead.Step) -> dict[str, Any]:
    return {"tag": item["tag"], "try": step.attempts}


def second(item: dict[str, Any], step: fairlead.Step) -> Any:
    if step.attempts >= item.get("times", 1000):
        return "at last"
    match item.get("how"):
        case "dead":
            raise fairlead.StepFailed("no use", reason="validation_failure", dead=True)
        case "later":
            raise fairlead.StepFailed("not now", reason="dependency_failure", retry_in="1h")
        case "nonsense":
            raise fairlead.StepFailed("what", reason="bad luck", retry_in="soon")
        case "connection":
            raise ConnectionRefusedError("refused")
        case "mine":
            raise OutOfPaper("tray 2")
        case "odd":
            raise ValueError("odd")
        case "exit":
            sys.exit(3)
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leaves":
            os._exit(7)
        case "hangs":
            time.sleep(3600)
        case "nan":
            return float("nan")
        case "large":
            return "x" * 70_000
    return [1, {"two": 3}]


def third(item: dict[str, Any], step: fairlead.Step) -> None:
    if step.values["first"] is None or (step.attempts and step.values["first"]["try"] >= step.attempts):
        raise ValueError(f"was handed {step.values}")


def together(items: list[dict[str, Any]]) -> list[Any]:
    """One bad row among good ones: returned, raised, or killing the process."""
    hows = [item.get("batch") for item in items]
    if "raises" in hows:
        raise ValueError("one of them is odd")
    if "dies" in hows:
        os.kill(os.getpid(), signal.SIGKILL)
    told = {
        "refused": fairlead.StepFailed("not this one", reason="validation_failure"),
        "mine": OutOfPaper("tray 3"),
        "nan": float("nan"),
    }
    return [told[how] if how else {"rows": "many"} for how in hows]
