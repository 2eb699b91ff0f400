"""A simulated power cut: the marks are of an earlier start, and bytes that no sync has covered are cut,
zeroed or wrong.

The directory opens with an unbroken beginning of what was enqueued, which has everything that was synced; or
it is refused.
"""

from __future__ import annotations

import random
from pathlib import Path

import fairlead
from fairlead.errors import StoreCorrupt
from fairlead.testing import ManualClock

from .boots import set_boot
from .cases import Case, record_spans
from .judge import EXACT, NAMES_ANOTHER, NAMES_FILE, Judge, Outcome
from .victim import NUMBERS, SYNCED

SHORTER = "opened, unsynced missing"
PAGE_BYTES = 4096


class PowerJudge(Judge):
    """`boot` is what the marks say, `NO_BOOT` as on a system without such a number."""

    good = (EXACT, SHORTER, NAMES_FILE)

    def __init__(self, base: Path, home: Path, boot: bytes) -> None:
        self.boot = boot
        super().__init__(base, home)

    def make_copy(self) -> None:
        super().make_copy()
        set_boot(self.copy, self.boot)

    def examine(self, case: Case) -> Outcome:
        problems = fairlead.verify(self.copy).problems
        try:
            found = read_numbers(self.copy)
        except StoreCorrupt as refused:
            named = case.file in refused.message and bool(problems)
            return Outcome(NAMES_FILE if named else NAMES_ANOTHER, refused.message)
        if problems:
            return Outcome("verify refused what opens", problems[0])
        if found != list(range(len(found))):
            return Outcome("HOLE", f"found {found}")
        if len(found) < SYNCED:
            return Outcome("WRONG", f"{len(found)} of {SYNCED} synced messages")
        return Outcome(EXACT if len(found) == NUMBERS else SHORTER, f"{len(found)} messages")


def power_cases(base: Path, count: int, seed: int) -> list[Case]:
    """Changes of bytes that no sync has covered."""
    chance = random.Random(seed)
    log = max(base.glob("*.log"))
    size = log.stat().st_size
    first = int(base.with_name("synced").read_text())
    starts = [start for start, _ in record_spans(log.read_bytes()) if start >= first]

    def draw() -> Case:
        anywhere = chance.randrange(first, size)
        page = max(first, anywhere - anywhere % PAGE_BYTES)
        length = chance.choice((1, 7, 512, PAGE_BYTES, size - page))
        return chance.choice(
            [
                Case(log.name, "cut anywhere", "cut", (anywhere,)),
                Case(log.name, "cut at record", "cut", (chance.choice(starts),)),
                Case(log.name, "page zeroed", "zero", (page, length)),
                Case(log.name, "end zeroed", "zero", (anywhere, size - anywhere)),
                Case(log.name, "page garbled", "garble", (page, length, chance.randrange(1 << 30))),
                Case(
                    log.name, "end garbled", "garble", (anywhere, size - anywhere, chance.randrange(1 << 30))
                ),
                Case(log.name, "header zeroed", "zero", (chance.choice(starts), 7)),
                Case(log.name, "bit flipped", "flip", (anywhere * 8 + chance.randrange(8),)),
            ]
        )

    return [draw() for _ in range(count)]


def read_numbers(directory: Path) -> list[int]:
    broker = fairlead.open(directory, durability="os", clock=ManualClock())
    found: list[int] = []
    while claimed := broker.claim("numbers", limit=1000):
        found += [int.from_bytes(one.payload[:8], "big") for one in claimed]
    return sorted(found)
