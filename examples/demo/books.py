"""Reads what the bank was paid, while it is being paid: the demo counts there, and does not take the broker's
word.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path


class Books:
    """`lines` counts payments by shop, `orders` holds the orders that were paid."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_up_to: dict[Path, int] = {}
        self.lines: Counter[str] = Counter()
        self.orders: dict[str, set[str]] = {}

    def read(self) -> None:
        """What was written since the last time. Lines are whole: each is one write."""
        for page in self._folder.glob("*.csv"):
            with page.open("rb") as file:
                file.seek(self._read_up_to.get(page, 0))
                new = file.read()
            self._read_up_to[page] = self._read_up_to.get(page, 0) + len(new)
            for line in new.decode().splitlines():
                order, shop, _ = line.split(",")
                self.lines[shop] += 1
                self.orders.setdefault(shop, set()).add(order)

    @property
    def paid(self) -> int:
        return sum(len(orders) for orders in self.orders.values())

    @property
    def paid_again(self) -> int:
        return self.lines.total() - self.paid
