"""Keeps its own books beside the broker, so that the tables at the end are observations and not the broker's
word.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fairlead import Complete, Delivery, Fail, SettleResult


@dataclass
class Account:
    """One tenant. `backlog` is what it has ready, as far as an outsider can know."""

    enqueued: int = 0
    completed: int = 0
    backlog: int = 0
    deliveries: int = 0
    contended: int = 0


class Ledger:
    def __init__(self, tenants: Sequence[str]) -> None:
        self.accounts = {name: Account() for name in tenants}
        self.retries: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.errors: dict[str, str] = {}
        self._lock = threading.Lock()
        self._enqueued_ids: set[str] = set()
        self._completions: Counter[str] = Counter()
        self._arrivals: list[tuple[int, str]] = []
        self._first_deliveries: list[tuple[int, str, int]] = []
        self._seen: set[str] = set()
        self._vanished: set[str] = set()

    def enqueued(self, tenant: str, ids: Sequence[str], now_ms: int) -> None:
        with self._lock:
            account = self.accounts[tenant]
            account.enqueued += len(ids)
            account.backlog += len(ids)
            self._enqueued_ids.update(ids)
            self._arrivals.extend([(now_ms, tenant)] * len(ids))

    def claimed(self, deliveries: Sequence[Delivery], now_ms: int) -> None:
        with self._lock:
            # All five have at least a claim's worth of work: only then is a share a share.
            contended = all(account.backlog >= len(deliveries) for account in self.accounts.values())
            for delivery in deliveries:
                account = self.accounts[delivery.fairness_key]
                account.deliveries += 1
                account.contended += contended
                account.backlog -= 1
                if delivery.id not in self._seen:
                    self._seen.add(delivery.id)
                    self._first_deliveries.append(
                        (now_ms, delivery.fairness_key, now_ms - delivery.enqueued_at)
                    )
                elif delivery.id in self._vanished:
                    self._vanished.remove(delivery.id)
                    self.retries["timeout_exceeded"] += 1
                    self.errors["timeout_exceeded"] = "dropped, its lease ran out"

    def vanished(self, delivery: Delivery) -> None:
        with self._lock:
            self._vanished.add(delivery.id)

    def settled(
        self, worked: Sequence[tuple[Delivery, Complete | Fail]], results: Sequence[SettleResult]
    ) -> None:
        with self._lock:
            for (delivery, settlement), result in zip(worked, results, strict=True):
                account = self.accounts[delivery.fairness_key]
                if result.outcome == "completed":
                    account.completed += 1
                    self._completions[result.id] += 1
                elif isinstance(settlement, Fail):
                    reason = str(settlement.reason)
                    (self.dead if result.outcome == "dead" else self.retries)[reason] += 1
                    self.errors[reason] = settlement.error
                    if result.outcome == "retry" and not result.due_ms:
                        account.backlog += 1

    @property
    def enqueued_in_all(self) -> int:
        return sum(account.enqueued for account in self.accounts.values())

    @property
    def completed_in_all(self) -> int:
        return sum(account.completed for account in self.accounts.values())

    @property
    def dead_in_all(self) -> int:
        return self.dead.total()

    def completed_more_than_once(self) -> int:
        return sum(1 for times in self._completions.values() if times > 1)

    def never_completed(self) -> int:
        with self._lock:
            return len(self._enqueued_ids - set(self._completions))

    def share(self, tenant: str) -> float:
        contended = sum(account.contended for account in self.accounts.values())
        return self.accounts[tenant].contended / contended if contended else 0.0

    def contended_deliveries(self) -> int:
        return sum(account.contended for account in self.accounts.values())

    def median_wait_ms(self, tenant: str) -> float:
        return median([wait for _, name, wait in self._first_deliveries if name == tenant] or [0])

    def median_wait_in_arrival_order_ms(self) -> dict[str, float]:
        """The same arrivals and the same moments of delivery, but handed out first come, first served."""
        waiting = deque(sorted(self._arrivals))
        waits: dict[str, list[int]] = {name: [] for name in self.accounts}
        for at_ms, _, _ in sorted(self._first_deliveries):
            arrived_ms, tenant = waiting.popleft()
            waits[tenant].append(max(0, at_ms - arrived_ms))
        return {name: median(all_waits or [0]) for name, all_waits in waits.items()}
