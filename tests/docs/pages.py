"""The pages under test, and the code blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """A python block, and the text block right behind it: what it must print (None: whatever it likes)."""

    line: int
    code: str
    prints: str | None


def all_pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples_in(page: Path) -> list[Example]:
    text = page.read_text()
    fences = list(_FENCE.finditer(text))
    found = []
    for at, fence in enumerate(fences):
        if fence[1] == "python":
            follower = fences[at + 1] if at + 1 < len(fences) else None
            adjacent = follower is not None and follower[1] == "text" and not text[fence.end() : follower.start()].strip()
            line = text.count("\n", 0, fence.start()) + 2
            found.append(Example(line, fence[2], follower[2] if follower is not None and adjacent else None))
    return found
