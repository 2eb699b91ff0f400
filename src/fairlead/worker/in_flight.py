"""What a worker has in hand, by how far it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from fairlead.model.delivery import Delivery
from fairlead.worker.batches import Work
from fairlead.worker.items import WorkItem, in_runs


class Gathered:
    """Items that wait for a batch to fill, `since` the first of them came."""

    __slots__ = ("items", "since")

    def __init__(self) -> None:
        self.items: deque[WorkItem] = deque()
        self.since = 0.0


class InFlight:
    """An item is `fresh` until it is taken up, then `busy` until its end is confirmed; between two calls it
    waits in `next`, or in `batches` for those that go with it.
    """

    def __init__(self) -> None:
        self.fresh: deque[WorkItem] = deque()
        self.next: deque[WorkItem] = deque()
        self.busy: set[WorkItem] = set()
        #: By the step, and by how many may go together.
        self.batches: dict[tuple[int, int], Gathered] = {}
        self.gathered = 0
        #: All of them: what leases are kept alive for.
        self.held: set[WorkItem] = set()
        #: Started, or about to be, and not in a slot yet: a free slot is kept for each. Those whose start is
        #: confirmed are at the front of `next`.
        self.starting: set[WorkItem] = set()
        #: Messages fetched and not begun, with the runs behind the heads.
        self.ahead = 0

    def claim(self, deliveries: Sequence[Delivery]) -> None:
        items = in_runs(deliveries)
        self.ahead += len(deliveries)
        self.held.update(items)
        self.fresh.extend(items)

    def take_up(self, item: WorkItem) -> None:
        self.ahead -= 1
        self.busy.add(item)

    def put_back(self, works: Sequence[Work]) -> None:
        """They were handed to a slot, and not begun: they are the next again, behind those in `starting`.

        A slot is kept free for each item in `starting`. Items in front of it that must be started first would
        wait for that slot, and it behind them, for ever.
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
        """Take up and gather those at the front that were never handed out before, for a first step that
        takes batches.
        """
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
        """Those that came first: as many as may go together, or as have so many bytes, and of a stream only
        one. None when all are lost.
        """
        gathered = self.batches[step, max_rows]
        rows = gathered.items
        taken = [rows.popleft() for _ in range(min(max_rows, len(rows)))]
        found = [item for item in taken if not item.lost]
        self.gathered -= len(taken) - len(found)
        size = sum(item.size for item in found)
        while size > max_bytes and len(found) > 1:
            rows.appendleft(found.pop())
            size -= rows[0].size
        if any(item.rest is not None for item in found):
            found = self._first_of_streams(found, rows)
        if not rows:
            del self.batches[step, max_rows]
        elif len(found) == max_rows:
            gathered.since = (
                time.monotonic()
            )  # those that stay came later; what was too large for this one has waited as long
        self.gathered -= len(found)
        return found

    def _first_of_streams(self, items: list[WorkItem], rows: deque[WorkItem]) -> list[WorkItem]:
        """A second one is there when the first has failed before, and the later ones need not wait for it; it
        goes back.
        """
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
        """They wait for their next step like others: it may be another by now, or they are to go back."""
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
        """The next of its run, now that the one before it is settled."""
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

    def put_down(self) -> None:
        """Those in `next` with which nothing has begun are fresh again, for a worker that begins no more."""
        going_on: deque[WorkItem] = deque()
        unbegun: list[WorkItem] = []
        for item in self.next:
            (going_on if item.started or item.begun or item.lost else unbegun).append(item)
        self.next = going_on
        self.busy.difference_update(unbegun)
        self.fresh.extendleft(reversed(unbegun))
        self.ahead += len(unbegun)

    def lose(self, item: WorkItem) -> None:
        item.lost = True
        self.held.discard(item)
        self.starting.discard(item)
        if item not in self.busy:
            self.ahead -= 1
