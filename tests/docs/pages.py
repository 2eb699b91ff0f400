"""The pages under test, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(\w*)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"(?:#!.*\n)?(?:#|--) ((?:\w+/)*\w+\.(?:py|toml|sh|lua))\b.*\n")


@dataclass(frozen=True)
class Example:
    """A python block, and the text block right behind it: what it must print (None: whatever it likes)."""

    line: int
    code: str
    prints: str | None


@dataclass(frozen=True)
class SavedFile:
    """A block of code that begins with a comment such as `# worker.py`: the reader saves it under that name."""

    line: int
    name: str
    code: str


@dataclass(frozen=True)
class Session:
    """A console block: what is typed in a terminal, and what is seen there.

    A command in a terminal with a name, as in "```console server", goes on running; a later block of the same
    name shows more of what it prints, and `^C` in it is what the reader presses. In the one named "again" a
    command is repeated until it shows this.
    """

    line: int
    terminal: str
    text: str


def all_pages() -> list[Path]:
    return [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def needs_spark(page: Path) -> bool:
    """Those are read by tests/spark, so that everything else runs without a Java."""
    return any("fairlead.spark" in example.code for example in examples_in(page))


def steps_in(page: Path) -> list[Example | SavedFile | Session]:
    text = page.read_text()
    fences = list(_FENCE.finditer(text))
    found: list[Example | SavedFile | Session] = []
    for at, fence in enumerate(fences):
        kind, terminal, body = fence[1], fence[2] or "", fence[3]
        line = text.count("\n", 0, fence.start()) + 2
        if kind == "console":
            found.append(Session(line, terminal, body))
        elif kind in ("python", "toml", "sh", "lua") and (named := _FILE_NAME.match(body)):
            found.append(SavedFile(line, named[1], body))
        elif kind == "python":
            follower = fences[at + 1] if at + 1 < len(fences) else None
            adjacent = (
                follower is not None
                and follower[1] == "text"
                and not text[fence.end() : follower.start()].strip()
            )
            found.append(Example(line, body, follower[3] if follower is not None and adjacent else None))
    return found


def examples_in(page: Path) -> list[Example]:
    return [step for step in steps_in(page) if isinstance(step, Example)]
