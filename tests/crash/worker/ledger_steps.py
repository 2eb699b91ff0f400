"""Steps that do as their item says, and write each call into a ledger: a line before they do anything, and a
line after.

A file of its own beside the runbook that names it, because that is how users have it, and because the folder
of a runbook is what reaches an executor. So it needs nothing of the tests.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from typing import Any, NoReturn

import fairlead

Item = dict[str, Any]


def parse(item: Item, step: fairlead.Step) -> str:
    return _called(item, step)


def charge(item: Item, step: fairlead.Step) -> str:
    return _called(item, step)


def mail(item: Item, step: fairlead.Step) -> str:
    return _called(item, step)


def _called(item: Item, step: fairlead.Step) -> str:
    note("begin", item, step)
    if step.previous and step.value != f"{step.previous} of {item['tag']}":
        raise ValueError(f"was handed {step.value!r} as the value of {step.previous}")
    fate = item.get("fate")
    if fate and fate["step"] == step.name:
        if fate["how"] == "slow":
            time.sleep(fate["ms"] / 1000)
        elif os.path.exists(fate["until"]) if fate.get("until") else step.attempts >= fate["times"]:
            pass  # by now all is well
        else:
            _fail(fate["how"], item, step)
    note("end", item, step)
    return f"{step.name} of {item['tag']}"


def _fail(how: str, item: Item, step: fairlead.Step) -> NoReturn:
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        time.sleep(3600)
    note("failed", item, step)
    if how == "raises":
        raise ConnectionError("as it was told")
    if how == "dead":
        raise fairlead.StepFailed("as it was told", reason="validation_failure", dead=True)
    if how == "later":
        raise fairlead.StepFailed("as it was told", reason="dependency_failure", retry_in="80ms")
    raise fairlead.StepFailed("as it was told", reason="dependency_failure")


def note(word: str, item: Item, step: fairlead.Step) -> None:
    line = {
        "ev": word,
        "tag": item["tag"],
        "step": step.name,
        "stream": step.stream,
        "n": item["n"],
        "attempts": step.attempts,
        "deliveries": step.deliveries,
        "pid": os.getpid(),
    }
    # One write, appended whole: it outlives its process, and the order of lines is an order in which things
    # happened. A line end on both sides: what a killed process wrote last may be torn, and must not spoil the
    # next line.
    os.write(_open(item["ledger"]), b"\n" + json.dumps(line, separators=(",", ":")).encode() + b"\n")


@functools.cache
def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
