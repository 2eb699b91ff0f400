"""The result of one check of `fairlead doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "info", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`info` is neither good nor bad. `advice` says what to do, or is empty."""

    area: str
    name: str
    level: Level
    found: str
    advice: str = ""
