"""The messages that a worker holds, by how far their work has come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from fairlead.model.delivery import Delivery
from fairlead.worker.items import Work, WorkItem, group_streams


class Gathered:
    """Items that wait for a batch to fill. `since`: when the first of them came."""

    __slots__ = ("items", "since")

    def __init__(self) -> None:
        self.items: deque[WorkItem] = deque()
        self.since = 0.0


class InFlight:
    """An item is `fresh` until it is taken up, then `busy` until its outcome is acknowledged.

    Between two calls a busy item waits in `next`, or in `batches` with the items of its batch.
    """

    def __init__(self) -> None:
        self.fresh: deque[WorkItem] = deque()
        self.next: deque[WorkItem] = deque()
        self.busy: set[WorkItem] = set()
        #: By the step and the most rows of the batch.
        self.batches: dict[tuple[int, int], Gathered] = {}
        #: How many items are in `batches`.
        self.gathered = 0
        #: All items whose leases are extended.
        self.held: set[WorkItem] = set()
        #: Items whose start was sent and that are in no slot yet; an idle slot is kept for each. Once a start
        #: is confirmed, its item is at the front of `next`.
        self.starting: set[WorkItem] = set()
        #: Messages fetched and not begun, including the runs behind the items.
        self.ahead = 0

    def claim(self, deliveries: Sequence[Delivery]) -> None:
        items = group_streams(deliveries)
        self.ahead += len(deliveries)
        self.held.update(items)
        self.fresh.extend(items)

    def take_up(self, item: WorkItem) -> None:
        self.ahead -= 1
        self.busy.add(item)

    def put_back(self, works: Sequence[Work]) -> None:
        """Return items that a slot was given and did not begin to the front of `next`, behind those in
        `starting`.

        A slot is kept for each item in `starting`. An item in front of it that must be started first would
        wait for that slot, and the item behind it would wait for ever.
        """
        kept: list[WorkItem] = []
        while self.next and self.next[0] in self.starting:
            kept.append(self.next.popleft())
        self.next.extendleft(item for work in reversed(works) for item in reversed(work.items))
        self.next.extendleft(reversed(kept))

    def gather(self, item: WorkItem, max_rows: int) -> None:
        rows = self.batches.get((item.step, max_rows))
        if rows is None:
            rows = self.batches[item.step, max_rows] = Gathered()
            rows.since = time.monotonic()
        rows.items.append(item)
        self.gathered += 1
        self.starting.discard(item)

    def gather_new(self, max_rows: int) -> int:
        """Take up and gather fresh items on their first delivery, for a first step that takes batches."""
        line = self.fresh
        found: list[WorkItem] = []
        wanted = max_rows - len(self.batches[0, max_rows].items)
        while line and len(found) < wanted:
            item = line[0]
            if item.lost or item.delivery.state is not None or item.delivery.deliveries != 1:
                break
            found.append(line.popleft())
        self.batches[0, max_rows].items.extend(found)
        self.busy.update(found)
        self.gathered += len(found)
        self.ahead -= len(found)
        return len(found)

    def take_gathered(self, step: int, max_rows: int, max_bytes: int) -> list[WorkItem]:
        """Remove the items that came first, within both limits, and one of each stream. Empty if all are
        lost.
        """
        gathered = self.batches[step, max_rows]
        rows = gathered.items
        taken = [rows.popleft() for _ in range(min(max_rows, len(rows)))]
        found = [item for item in taken if not item.lost]
        self.gathered -= len(taken) - len(found)
        self._return_excess(found, rows, max_bytes)
        found = self._first_of_streams(found, rows)
        if not rows:
            del self.batches[step, max_rows]
        elif len(found) == max_rows:
            # The items that stay came later. Items that were too large for this batch have waited since the
            # first.
            gathered.since = time.monotonic()
        self.gathered -= len(found)
        return found

    def _return_excess(self, items: list[WorkItem], rows: deque[WorkItem], max_bytes: int) -> None:
        size = sum(item.size for item in items)
        while size > max_bytes and len(items) > 1:
            rows.appendleft(items.pop())
            size -= rows[0].size

    def _first_of_streams(self, items: list[WorkItem], rows: deque[WorkItem]) -> list[WorkItem]:
        """Return all but the first item of each stream to `rows`.

        Two items of a stream meet when the first has failed before and the later ones need not wait for it.
        """
        if all(item.rest is None for item in items):
            return items
        seen: set[str] = set()
        first: list[WorkItem] = []
        others: list[WorkItem] = []
        for item in items:
            stream = item.delivery.message.stream if item.rest is not None else ""
            (others if stream in seen else first).append(item)
            if stream:
                seen.add(stream)
        rows.extendleft(reversed(others))
        return first

    def ungather(self) -> None:
        """Move gathered items to `next`: their next step may have changed, or they are to be released."""
        for rows in self.batches.values():
            self.next.extend(item for item in rows.items if not item.lost)
        self.batches.clear()
        self.gathered = 0

    def end(self, item: WorkItem) -> None:
        self.busy.discard(item)
        self.held.discard(item)
        self.starting.discard(item)

    def end_all(self, items: Sequence[WorkItem]) -> None:
        self.busy.difference_update(items)
        self.held.difference_update(items)
        if self.starting:
            self.starting.difference_update(items)

    def follow(self, item: WorkItem) -> None:
        """Make the next message of the item's run fresh, now that the item is settled."""
        if item.rest:
            following = WorkItem(item.rest.popleft(), item.rest)
            self.held.add(following)
            self.fresh.appendleft(following)

    def take_rest(self, item: WorkItem) -> list[Delivery]:
        rest = list(item.rest or ())
        if item.rest:
            item.rest.clear()
        self.ahead -= len(rest)
        return rest

    def take_fresh(self) -> list[WorkItem]:
        found = [item for item in self.fresh if not item.lost]
        self.fresh.clear()
        self.busy.update(found)
        self.ahead -= len(found)
        return found

    def return_unbegun(self) -> None:
        """Make items in `next` with which nothing has begun fresh again, for a worker that begins nothing
        more.
        """
        begun: deque[WorkItem] = deque()
        unbegun: list[WorkItem] = []
        for item in self.next:
            (begun if item.started or item.begun or item.lost else unbegun).append(item)
        self.next = begun
        self.busy.difference_update(unbegun)
        self.fresh.extendleft(reversed(unbegun))
        self.ahead += len(unbegun)

    def lose(self, item: WorkItem) -> None:
        item.lost = True
        self.held.discard(item)
        self.starting.discard(item)
        if item not in self.busy:
            self.ahead -= 1
