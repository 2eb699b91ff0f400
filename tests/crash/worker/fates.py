"""What is to become of each message, drawn by a seed before anything runs, and the runbook that they are sent
through.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fairlead import NewMessage

from . import ledger_steps

QUEUE, WORKER = "work", "billing"
STEPS = ("parse", "charge", "mail")
#: Failures after which a message is dead. More than a fate and the kills of a round can bring together.
LIMIT = 9
ALWAYS = 1000

How = Literal["slow", "fails", "later", "raises", "dead", "dies", "hangs"]
#: What the failure record of a fate says.
REASON = {
    "fails": "dependency_failure",
    "later": "dependency_failure",
    "raises": "transport_unavailable",
    "dead": "validation_failure",
    "dies": "poison_message",
    "hangs": "timeout_exceeded",
}


class Fate(msgspec.Struct, frozen=True):
    """In `step`, at the first `times` attempts; or `until` there is a file of that name."""

    how: How
    step: str
    times: int = 1
    ms: int = 0
    until: str = ""

    @property
    def kills(self) -> bool:
        """So that the message ends as a dead letter."""
        return self.how != "slow" and (self.how == "dead" or self.times >= LIMIT)


class Sent(msgspec.Struct, frozen=True):
    """`n` counts within the stream."""

    tag: str
    stream: str | None = None
    n: int = 0
    fate: Fate | None = None

    def message(self, ledger: Path) -> NewMessage:
        item = {"tag": self.tag, "n": self.n, "ledger": str(ledger), "fate": msgspec.to_builtins(self.fate)}
        return NewMessage(
            json.dumps(item).encode(),
            headers={"tag": self.tag},
            stream=self.stream,
            fairness_key=self.stream or "alone",
        )


def draw(rng: random.Random, count: int, sent: list[Sent], *, streams: int = 7) -> Iterator[Sent]:
    """`count` more, after those `sent`. Two of three belong to a stream."""
    lengths = dict[str, int]()
    for one in sent:
        if one.stream is not None:
            lengths[one.stream] = one.n + 1
    for index in range(len(sent), len(sent) + count):
        stream = None if index % 3 == 0 else f"s{rng.randrange(streams)}"
        n = lengths.get(stream or "", 0)
        if stream is not None:
            lengths[stream] = n + 1
        yield Sent(f"m{index:06}", stream, n, _draw_fate(rng))


def _draw_fate(rng: random.Random) -> Fate | None:
    step = rng.choice(STEPS)
    chance = rng.random()
    if chance < 0.35:
        return Fate("slow", step, ms=rng.randint(2, 40))
    if chance < 0.53:
        return Fate(rng.choice(("fails", "later", "raises")), step, rng.randint(1, 2))
    if chance < 0.57:
        return Fate("dead", step, ALWAYS)
    if chance < 0.59:
        return Fate("dies", step)
    if chance < 0.60:
        return Fate("fails", step, ALWAYS)
    if chance < 0.605:
        return Fate("hangs", "charge")
    return None


def write_runbook(
    folder: Path, *, retain: bool, steps: Sequence[str] = STEPS, cooldown: str = "60ms", attempts: int = LIMIT
) -> Path:
    """The runbook and its steps, in a folder of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ledger_steps.__file__, folder / "ledger_steps.py")
    file = folder / "runbook.toml"
    tables = ", ".join(
        f'{{ name = "{name}", run = "ledger_steps:{name}", timeout = "2s" }}' for name in steps
    )
    file.write_text(f"""
[queue.{QUEUE}]
dedup = "none"
visibility_timeout = "2s"
retry = {{ policy = "fixed", cooldown = "{cooldown}", attempts = {attempts} }}
retain_completed = "{"1h" if retain else "0s"}"

[pipeline.bill]
steps = [{tables}]

[worker.{WORKER}]
queue = "{QUEUE}"
pipeline = "bill"
concurrency = 2
""")
    return file
