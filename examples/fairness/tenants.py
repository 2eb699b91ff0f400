"""Who sends what: four well-behaved tenants in waves, and a noisy one that sends a hundred times as much as
one of them, all at once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

import fairlead


@dataclass(frozen=True)
class Tenant:
    name: str
    weight: int
    messages: int
    waves: int


@dataclass(frozen=True)
class Plan:
    """`trial` is how many messages the smallest tenant sends; everything else follows from it."""

    trial: int
    waves: int
    seconds_between_waves: float
    seconds_per_batch: float

    @property
    def tenants(self) -> list[Tenant]:
        return [
            Tenant("gold", 4, 4 * self.trial, self.waves),
            Tenant("silver", 3, 3 * self.trial, self.waves),
            Tenant("bronze", 2, 2 * self.trial, self.waves),
            Tenant("trial", 1, self.trial, self.waves),
            Tenant("noisy", 1, 100 * self.trial, 1),
        ]

    def wave(self, tenant: Tenant, number: int, rng: random.Random) -> list[fairlead.NewMessage]:
        """The tenant's messages of one wave (none when it has no more waves)."""
        if number >= tenant.waves:
            return []
        return [
            fairlead.NewMessage(p, fairness_key=tenant.name, weight=tenant.weight)
            for p in _payments(tenant.messages // tenant.waves, rng)
        ]


FULL = Plan(trial=200, waves=5, seconds_between_waves=4.0, seconds_per_batch=0.03)
QUICK = Plan(trial=20, waves=2, seconds_between_waves=1.0, seconds_per_batch=0.01)

#: How often each trouble comes, out of a thousand messages. What it does to the handler is in worker.py.
TROUBLES = {"connection": 20, "busy bank": 8, "crash": 1, "comma": 3, "no currency": 2}


def _payments(count: int, rng: random.Random) -> Iterator[bytes]:
    kinds = ["", *TROUBLES]
    odds = [1000 - sum(TROUBLES.values()), *TROUBLES.values()]
    for trouble in rng.choices(kinds, odds, k=count):
        euros = rng.randint(100, 99_999) / 100
        amount = f"{euros:.2f}".replace(".", ",") if trouble == "comma" else f"{euros:.2f}"
        payment = {
            "amount": amount,
            "currency": "" if trouble == "no currency" else "EUR",
            "trouble": trouble,
        }
        yield json.dumps(payment).encode()
