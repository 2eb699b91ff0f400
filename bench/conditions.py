"""What absolute figures mean nothing without."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

FIRST_ENGINE, ENGINE = "first", "second"


class Conditions(msgspec.Struct, frozen=True):
    """`load` is how many processes wanted a core in the minute before: above 0.5 somebody else was measured
    too. `engine` is the one that was measured: figures of the first one are kept until their group is measured again.
    """

    machine: str
    cores: int
    memory_gb: float
    system: str
    python: str
    rocksdict: str
    commit: str
    load: float
    measured: str
    engine: str = FIRST_ENGINE


def conditions_here() -> Conditions:
    return Conditions(
        _processor(),
        os.cpu_count() or 0,
        round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        f"{platform.system()} {platform.machine()}",
        platform.python_version(),
        version("rocksdict"),
        commit_of(Path(__file__).parents[1]),
        round(os.getloadavg()[0], 1),
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        ENGINE,
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def commit_of(checkout: Path) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, cwd=checkout
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src")
    return (git("rev-parse", "--short", "HEAD") or "no commit") + (" with changes" if changed else "")
