"""Samples of the counts of queues, and rates and shares between two samples. Pure: no broker, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.cli.charts import shares
from fairlead.cli.output import plain
from fairlead.model.views import QueueStats

#: Counts that only grow while a broker runs, and counts of the current state.
TOTALS = ("enqueued", "delivered", "completed", "failed")
COUNTS = ("ready", "waiting", "leased", "dead")


@dataclass(frozen=True, slots=True)
class StatsSample:
    """The counts of some queues at one time. `at_s` is monotonic time: use differences only."""

    at_s: float
    queues: tuple[QueueStats, ...]

    def find(self, queue: str) -> QueueStats | None:
        return next((stats for stats in self.queues if stats.queue == queue), None)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second between two samples: `flow` of each total, `change` of each count."""

    flow: Mapping[str, float] = field(default_factory=dict)
    change: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyShare:
    """The share of a fairness key. `fair` is its part of the weights of all shown keys, `got` its part of the
    deliveries (None: there were none).
    """

    key: str
    weight: int
    pending: int
    more: bool
    out_per_s: float | None
    fair: float
    got: float | None


def rates_between(before: StatsSample | None, now: StatsSample) -> dict[str, Rates]:
    """Return the rates by queue, without queues that the earlier sample lacks. Empty without an earlier
    sample.
    """
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
    """The growth of a total. A total that shrank belongs to a restarted broker: all of it is new."""
    return now - before if now >= before else now


def key_shares(before: QueueStats | None, now: QueueStats, seconds: float) -> list[KeyShare]:
    """Return the shares of the keys, the heaviest first.

    `got` is a part of all deliveries of the queue, also those of keys that have no ready messages any more
    and are not shown.
    """
    delivered = _delivered_by_key(before, now) if before is not None and seconds > 0 else {}
    whole = sum(delivered.values())
    if before is not None:
        whole = max(whole, _grown(before.totals.delivered, now.totals.delivered))
    fair = shares([float(entry.weight) for entry in now.keys])
    found = []
    for entry, due in zip(now.keys, fair, strict=True):
        count = delivered.get(entry.key)
        per_s = None if count is None else count / seconds
        got = (count or 0) / whole if whole else None
        found.append(KeyShare(entry.key, entry.weight, entry.pending, entry.more, per_s, due, got))
    return sorted(found, key=lambda share: (-share.fair, -share.pending, share.key))


def _delivered_by_key(before: QueueStats, now: QueueStats) -> dict[str, int]:
    """Deliveries between two samples, of the keys that both have."""
    earlier = {entry.key: entry.delivered for entry in before.keys}
    return {
        entry.key: _grown(earlier[entry.key], entry.delivered) for entry in now.keys if entry.key in earlier
    }


def stats_document(
    sample: StatsSample, rates: Mapping[str, Rates], *, keys: Mapping[str, Sequence[KeyShare]] | None = None
) -> dict[str, Any]:
    """The sample as JSON. `rates` is null at the first sample; `shares` is there when `keys` is given."""
    queues = []
    for stats in sample.queues:
        entry: dict[str, Any] = plain(stats)
        entry["rates"] = None
        if (found := rates.get(stats.queue)) is not None:
            changes = {f"{name}_change": rate for name, rate in found.change.items()}
            entry["rates"] = {**found.flow, **changes}
        if keys is not None:
            entry["shares"] = plain(keys.get(stats.queue, ()))
        queues.append(entry)
    return {"queues": queues}
