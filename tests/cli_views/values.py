"""Values that views are made from, and how a view looks on a terminal of a given size."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from fairlead.model.views import BlockedStream, FailureMetrics, KeyStats, PoisonCandidate, QueueStats

NOW_MS = 1_700_000_000_000
ID = "018bcfe5-6800-7001-8000-0000deadbeef"


def queue(name: str = "emails", **changed: Any) -> QueueStats:
    empty: dict[str, Any] = {
        "ready": 0,
        "waiting": 0,
        "leased": 0,
        "dead": 0,
        "done": 0,
        "bytes": 0,
        "consumers": 0,
        "active_keys": 0,
        "paused": False,
    }
    return QueueStats(name, **(empty | changed))


def key(name: str, *, weight: int = 1, pending: int = 0, more: bool = False) -> KeyStats:
    return KeyStats(name, weight, 0, pending, more)


def metrics(name: str = "emails", **changed: Any) -> FailureMetrics:
    none: dict[str, Any] = {
        "by_attempts": {},
        "by_reason": {},
        "scheduled": 0,
        "next_due": None,
        "latest_due": None,
        "poison_candidates": (),
        "blocked_streams": (),
        "complete": True,
    }
    return FailureMetrics(name, **(none | changed))


def poison(message_id: str, *, attempts: int = 10, due: int | None = NOW_MS + 60_000) -> PoisonCandidate:
    return PoisonCandidate(message_id, attempts, "unknown", due, NOW_MS - 7_200_000)


def blocked(
    stream: str, *, behind: int = 3, for_ms: int = 300_000, until: int | None = NOW_MS + 60_000
) -> BlockedStream:
    return BlockedStream(stream, ID, NOW_MS - for_ms, until, behind)


def drawn(
    view: RenderableType, *, width: int = 100, height: int | None = None, encoding: str = "utf-8"
) -> list[str]:
    """The lines it takes on a console like that of the commands, without colours and trailing blanks."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    Console(
        file=out, width=width, height=height, color_system=None, markup=False, highlight=False, emoji=False
    ).print(view, height=height)
    return [line.rstrip() for line in raw.getvalue().decode(encoding).removesuffix("\n").split("\n")]
