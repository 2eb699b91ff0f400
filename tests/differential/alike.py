"""Finds the first difference between two transcripts of a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from tests.differential.plain import Record
from tests.differential.transcript import Happened, Reopened

_WORDS = re.compile(r"\D+")
#: See `wanted.py`.
_LEFT_OUT = {"PoisonCandidate": {"created_at"}}


class Difference(NamedTuple):
    step: int
    verb: str
    #: Where in the step; empty for all of it.
    path: str
    first: Any
    today: Any


def first_difference(first: list[Happened], today: list[Happened]) -> Difference | None:
    for step, (one, other) in enumerate(zip_longest(first, today)):
        if one is None or other is None or "died" in (one.verb, other.verb):
            return Difference(step, (other or one).verb, "", one, other)
        # A verb may have another name today; the seed draws it alike.
        for field in ("delivered", "answer"):
            for path, its, others in _differences(getattr(one, field), getattr(other, field), field):
                return Difference(step, other.verb, path, its, others)
    return None


def _differences(first: Any, today: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    match first, today:
        case Reopened(), Reopened():
            yield from _differences(first.groups, today.groups, f"{path}.groups")
            yield from _shares(first, today, f"{path}.keys")
        case Record(), Record():
            for name in first.fields.keys() & today.fields.keys() - _LEFT_OUT.get(first.kind, set()):
                yield from _differences(first.fields[name], today.fields[name], f"{path}.{name}")
        case (list(), list()) | (tuple(), tuple()) if len(first) == len(today):
            for at, (one, other) in enumerate(zip(first, today, strict=True)):
                yield from _differences(one, other, f"{path}[{at}]")
        case dict(), dict() if first.keys() == today.keys():
            left_out = {"seq"} if first.get("where") == "done" else set()
            for key in first.keys() - left_out:
                yield from _differences(first[key], today[key], f"{path}[{key!r}]")
        case str(), str() if " " in first and " " in today:
            if _WORDS.sub(" ", first).split() != _WORDS.sub(" ", today).split():
                yield path, first, today
        case _ if first != today:
            yield path, first, today


def _shares(first: Reopened, today: Reopened, path: str) -> Iterator[tuple[str, Any, Any]]:
    """At each delivery, a key is at most one turn ahead on either engine."""
    ahead = Counter[str]()
    for one, other in zip(first.keys, today.keys, strict=True):
        ahead[one] += 1
        ahead[other] -= 1
        if first.turns and any(abs(ahead[key]) > first.turns[key] for key in (one, other)):
            yield path, first.keys, today.keys
            return
