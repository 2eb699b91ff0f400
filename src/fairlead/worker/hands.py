"""What a worker has in hand, by how far it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from fairlead.model.delivery import Delivery
from fairlead.worker.items import Item, in_runs


class Hands:
    """An item is `fresh` until it is taken up, then `busy` until its end is confirmed; between two calls it waits in `next`."""

    def __init__(self) -> None:
        self.fresh: deque[Item] = deque()
        self.next: deque[Item] = deque()
        self.busy: set[Item] = set()
        #: All of them: what leases are kept alive for.
        self.held: set[Item] = set()
        #: Started, and not in a slot yet.
        self.starting: set[Item] = set()
        #: Messages fetched and not begun, with the runs behind the heads.
        self.ahead = 0

    def claim(self, deliveries: Sequence[Delivery]) -> None:
        items = in_runs(deliveries)
        self.ahead += len(deliveries)
        self.held.update(items)
        self.fresh.extend(items)

    def take_up(self, item: Item) -> None:
        self.ahead -= 1
        self.busy.add(item)

    def put_back(self, items: Sequence[Item]) -> None:
        """They were handed to a slot, and not begun: they are the next again."""
        self.next.extendleft(reversed(items))

    def end(self, item: Item) -> None:
        self.busy.discard(item)
        self.held.discard(item)
        self.starting.discard(item)

    def follow(self, item: Item) -> None:
        """The next of its run, now that the one before it is settled."""
        if item.rest:
            following = Item(item.rest.popleft(), item.rest)
            self.held.add(following)
            self.fresh.appendleft(following)

    def take_rest(self, item: Item) -> list[Delivery]:
        rest = list(item.rest or ())
        if item.rest:
            item.rest.clear()
        self.ahead -= len(rest)
        return rest

    def take_fresh(self) -> list[Item]:
        found = [item for item in self.fresh if not item.lost]
        self.fresh.clear()
        self.ahead -= len(found)
        return found

    def take_next(self, items: Iterable[Item]) -> None:
        gone = set(items)
        self.next = deque(item for item in self.next if item not in gone)

    def lose(self, item: Item) -> None:
        item.lost = True
        self.held.discard(item)
        self.starting.discard(item)
        if item in self.fresh:
            self.ahead -= 1
