"""One damage: what `fairlead.verify` and `fairlead.open` make of the directory, in a forked process with a
time limit.
"""

from __future__ import annotations

import gc
import hashlib
import os
import select
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import msgspec

import fairlead
from fairlead.errors import FairleadError, StoreCorrupt
from fairlead.testing import ManualClock
from fairlead.testing.engine import stored_rows

from .cases import Case

# `fairlead` loads the engine when it is first used, which would be in every forked process anew.
import_module("fairlead.testing.engine")

#: A case takes a fraction of a second. So long means that it hangs, also on a busy machine.
LIMIT_S = 60.0
EXACT, NAMES_FILE, NAMES_ANOTHER = "exact", "refused, names the file", "refused, names another file"
#: Everything that is stored: what each message is, by id, and the counters by queue.
Contents = dict[str, str]


class Outcome(msgspec.Struct, frozen=True):
    """`what` is one of the `good` ones of its judge, or the defect. `text` is the error, or what is missing."""

    what: str
    text: str = ""


class Judge(ABC):
    """Damages copies of one directory. The process that has it forks, so it must never have opened RocksDB
    itself.
    """

    good: tuple[str, ...]

    def __init__(self, base: Path, home: Path) -> None:
        self.base = base
        self.older = base.with_name("older")
        self.copy = home / "damaged"
        gc.freeze()

    def judge(self, case: Case) -> Outcome | None:
        """None for a case that changes nothing."""
        self.make_copy()
        if not case.carry_out(self.copy, self.older):
            return None
        told = in_fork(lambda: msgspec.json.encode(self.examine(case)))
        return msgspec.json.decode(told, type=Outcome) if isinstance(told, bytes) else told

    def make_copy(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.base, self.copy, ignore=shutil.ignore_patterns("LOG*"))

    @abstractmethod
    def examine(self, case: Case) -> Outcome:
        """Called in the forked process."""


class DamageJudge(Judge):
    """Of a directory in which everything was synced: nothing may be missing."""

    good = (EXACT, NAMES_FILE)

    def __init__(self, base: Path, home: Path) -> None:
        super().__init__(base, home)
        self.make_copy()
        told = in_fork(lambda: msgspec.json.encode(read_all(self.copy)))
        if not isinstance(told, bytes):
            raise RuntimeError(f"the undamaged directory cannot be read: {told}")
        self.contents = msgspec.json.decode(told, type=Contents)

    def examine(self, case: Case) -> Outcome:
        before = fingerprint(self.copy)
        problems = fairlead.verify(self.copy).problems
        if fingerprint(self.copy) != before:
            return Outcome("verify changed the directory")
        if problems and case.file not in problems[0]:
            return Outcome("verify names another file", problems[0])
        try:
            found = read_all(self.copy)
        except StoreCorrupt as refused:
            if not problems:
                return Outcome("verify saw nothing", refused.message)
            return Outcome(NAMES_FILE if case.file in refused.message else NAMES_ANOTHER, refused.message)
        except FairleadError as refused:
            return Outcome(f"refused with {refused.code}", refused.message)
        if found != self.contents:
            return Outcome("WRONG", _difference(self.contents, found))
        return Outcome(EXACT)


def in_fork(work: Callable[[], bytes], limit_s: float = LIMIT_S) -> bytes | Outcome:
    """What the work says in a process of its own, or how it failed to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _tell_and_end(writing, work)
    os.close(writing)
    try:
        told = _read_until(reading, time.monotonic() + limit_s)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if told is None:
        return Outcome("HANG", f"no answer within {limit_s:.0f} s")
    if told.startswith(b"!"):
        return Outcome("unexpected error", told[1:].decode())
    return told or Outcome("CRASH", f"the process ended with status {status}")


def read_all(directory: Path) -> Contents:
    """Without closing the broker: for a process that ends."""
    return contents_of(fairlead.open(directory, durability="os", clock=ManualClock()))


def contents_of(broker: fairlead.Broker) -> Contents:
    # The mark of the clock is written anew at each opening.
    rows = {row: value for row, value in stored_rows(broker).items() if row != f"meta {b'clock'.hex()}"}
    return {row: hashlib.sha256(value).hexdigest() for row, value in rows.items()}


def fingerprint(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def _difference(expected: Contents, found: Contents) -> str:
    missing, more = len(expected.keys() - found.keys()), len(found.keys() - expected.keys())
    changed = sum(found[name] != expected[name] for name in expected.keys() & found.keys())
    return f"{missing} of {len(expected)} are missing, {more} are too many, {changed} are different"


def _tell_and_end(writing: int, work: Callable[[], bytes]) -> None:
    try:
        told = work()
    except BaseException as error:
        told = f"!{type(error).__name__}: {error}".encode()
    while told:
        told = told[os.write(writing, told) :]
    # Without Python's own end: the parent's open files and threads are not ours.
    os._exit(0)


def _read_until(reading: int, deadline: float) -> bytes | None:
    told = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            piece = os.read(reading, 1 << 20)
            if not piece:
                return told
            told += piece
    return None
