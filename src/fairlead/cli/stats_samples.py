"""What was seen at one moment, and what two moments say about the time between them. Nothing here talks to a
broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.cli.charts import shares
from fairlead.cli.output import plain
from fairlead.model.views import KeyStats, QueueStats

#: Counts that only grow while a broker runs, as far as it keeps them, and counts of the moment.
TOTALS = ("enqueued", "delivered", "completed", "failed")
COUNTS = ("ready", "waiting", "leased", "dead")


@dataclass(frozen=True, slots=True)
class StatsSample:
    """`at_s` is monotonic: only differences mean something."""

    at_s: float
    queues: tuple[QueueStats, ...]

    def find(self, queue: str) -> QueueStats | None:
        return next((stats for stats in self.queues if stats.queue == queue), None)


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second, between two looks. `flow` is what passed by total, empty where the broker keeps none;
    `change` is net.
    """

    flow: Mapping[str, float] = field(default_factory=dict)
    change: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyShare:
    """`fair` is the part its weight gives a key among those shown, `got` the part it had of what went out
    (None: nothing did).
    """

    key: str
    weight: int
    pending: int
    more: bool
    out_per_s: float | None
    fair: float
    got: float | None


def rates_between(before: StatsSample | None, now: StatsSample) -> dict[str, Rates]:
    """By queue. Empty for the first look, and without queues that were not there before."""
    if before is None or now.at_s <= before.at_s:
        return {}
    seconds = now.at_s - before.at_s
    found = {}
    for stats in now.queues:
        earlier = before.find(stats.queue)
        if earlier is not None:
            flow, flow_before = totals_of(stats), totals_of(earlier)
            found[stats.queue] = Rates(
                {name: _grown(flow_before[name], flow[name]) / seconds for name in flow},
                {name: (getattr(stats, name) - getattr(earlier, name)) / seconds for name in COUNTS},
            )
    return found


def totals_of(stats: QueueStats) -> dict[str, int]:
    return {name: getattr(stats.totals, name) for name in TOTALS}


def _grown(before: int, now: int) -> int:
    """A total that shrank belongs to a broker that was started anew since: all of it is new."""
    return now - before if now >= before else now


def key_shares(before: QueueStats | None, now: QueueStats, seconds: float) -> list[KeyShare]:
    """Heaviest first. The whole is what went out of the queue: keys that have run dry since are not shown,
    and had their part of it.
    """
    earlier = {entry.key: entry for entry in before.keys} if before is not None and seconds > 0 else {}
    out = [_went_out(earlier[entry.key], entry) if entry.key in earlier else None for entry in now.keys]
    whole = sum(part or 0.0 for part in out)
    if before is not None:
        whole = max(whole, _grown(before.totals.delivered, now.totals.delivered))
    fair = shares([float(entry.weight) for entry in now.keys])
    found = []
    for entry, went, due in zip(now.keys, out, fair, strict=True):
        got = (went or 0.0) / whole if whole else None
        found.append(
            KeyShare(
                entry.key,
                entry.weight,
                entry.pending,
                entry.more,
                None if went is None else went / seconds,
                due,
                got,
            )
        )
    return sorted(found, key=lambda share: (-share.fair, -share.pending, share.key))


def _went_out(before: KeyStats, now: KeyStats) -> float:
    return float(_grown(before.delivered, now.delivered))


def stats_document(
    look: StatsSample, rates: Mapping[str, Rates], *, keys: Mapping[str, Sequence[KeyShare]] | None = None
) -> dict[str, Any]:
    """For programs. `rates` is null at the first look; `shares` is there when keys were asked for."""
    queues = []
    for stats in look.queues:
        entry: dict[str, Any] = plain(stats)
        found = rates.get(stats.queue)
        entry["rates"] = (
            None
            if found is None
            else {**found.flow, **{f"{name}_change": rate for name, rate in found.change.items()}}
        )
        if keys is not None:
            entry["shares"] = plain(keys.get(stats.queue, ()))
        queues.append(entry)
    return {"queues": queues}
