"""Rights as people type and read them: `produce,consume:orders.*` for both, `all:orders` for every one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.cli.output import clean
from fairlead.model.access import Right, read_grants

_ALL = "all"


def read_typed(given: Iterable[str] | None) -> list[str]:
    """One right each, as requests carry them. Raises `InvalidRequest`, in the words of the engine."""
    return [str(grant) for grant in read_grants([one for text in given or () for one in _spelled_out(text)])]


def _spelled_out(text: str) -> list[str]:
    rights, colon, pattern = text.partition(":")
    if not colon:
        return [text]
    return [f"{right}:{pattern}" for right in (Right if rights == _ALL else rights.split(","))]


def show_grants(grants: Sequence[str]) -> str:
    """As `read_typed` takes it back."""
    of: dict[str, list[str]] = {}
    for right in Right:
        for grant in grants:
            if grant.startswith(f"{right}:"):
                of.setdefault(grant.removeprefix(f"{right}:"), []).append(right)
    words = [
        f"{_ALL if len(rights) == len(Right) else ','.join(rights)}:{pattern}"
        for pattern, rights in sorted(of.items())
    ]
    return clean(" ".join(words)) or "no rights"
