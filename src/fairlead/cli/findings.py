"""What `fairlead doctor` finds, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`info` is neither good nor bad. `advice` is what to do about it, when there is something to do."""

    area: str
    name: str
    level: Level
    found: str
    advice: str = ""
