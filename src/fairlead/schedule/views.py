"""A deque and a heap, each with a view that can be changed in place of it.

A plan works on views, so that a ring of 100,000 keys need not be copied to serve one of them. A view costs as
much as the items it moves. `settle` makes its moves in the original; until then the original must not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")
#: Items of a heap are tuples that compare without a tie of their last element.
S = TypeVar("S", bound=tuple[Any, ...])


class Line(Generic[T]):
    """Items in order: the first is served, others join at either end."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self.items = deque(items)

    def __len__(self) -> int:
        return len(self.items)

    def find_first(self) -> T | None:
        return self.items[0] if self.items else None

    def popleft(self) -> T:
        return self.items.popleft()

    def append(self, item: T) -> None:
        self.items.append(item)

    def appendleft(self, item: T) -> None:
        self.items.appendleft(item)

    def all(self) -> list[T]:
        return list(self.items)

    def settle(self) -> Line[T]:
        return self


class LineView(Line[T]):
    """`items` of the view: those that were looked at and not removed, then, once the original is used up,
    those that joined. Until then `_joined` holds the latter.
    """

    __slots__ = ("_base", "_joined", "_read", "_unread")

    def __init__(self, base: Line[T]) -> None:
        super().__init__()
        self._base = base
        self._unread = iter(base.items)
        #: How many items of the original have moved to `items` or have left.
        self._read = 0
        self._joined: deque[T] = deque()

    def __len__(self) -> int:
        return len(self.items) + len(self._base) - self._read + len(self._joined)

    def find_first(self) -> T | None:
        if not self.items:
            self._read_on()
        return self.items[0] if self.items else None

    def popleft(self) -> T:
        if not self.items:
            self._read_on()
        return self.items.popleft()

    def append(self, item: T) -> None:
        self._joined.append(item)

    def all(self) -> list[T]:
        return [*self.items, *list(self._base.items)[self._read :], *self._joined]

    def settle(self) -> Line[T]:
        line = self._base.items
        for _ in range(self._read):
            line.popleft()
        line.extend(self._joined)
        line.extendleft(reversed(self.items))
        return self._base

    def _read_on(self) -> None:
        """Move the next item, if there is one, to `items`."""
        if self._read < len(self._base.items):
            self.items.append(next(self._unread))
            self._read += 1
        elif self._joined:
            self.items.append(self._joined.popleft())


class Heap(Generic[S]):
    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[S] = []

    def __len__(self) -> int:
        return len(self.items)

    def first(self) -> S:
        return self.items[0]

    def pop(self) -> S:
        return heappop(self.items)

    def push(self, item: S) -> None:
        heappush(self.items, item)

    def all(self) -> list[S]:
        return sorted(self.items)

    def settle(self) -> Heap[S]:
        return self


class HeapView(Heap[S]):
    """`items` of the view: those that were pushed. The smallest of the original that are not popped yet are
    found by their positions: below an item of a heap there are only larger ones.
    """

    __slots__ = ("_base", "_next", "_popped")

    def __init__(self, base: Heap[S]) -> None:
        super().__init__()
        self._base = base
        self._popped = 0
        #: Heap of (item, its position in the original), whose parents are popped.
        self._next: list[tuple[S, int]] = []
        self._offer(0)

    def __len__(self) -> int:
        return len(self.items) + len(self._base) - self._popped

    def first(self) -> S:
        if self._is_own_first():
            return self.items[0]
        return self._next[0][0]

    def pop(self) -> S:
        if self._is_own_first():
            return heappop(self.items)
        item, position = heappop(self._next)
        self._popped += 1
        self._offer(2 * position + 1)
        self._offer(2 * position + 2)
        return item

    def all(self) -> list[S]:
        return sorted([*self._base.all()[self._popped :], *self.items])

    def settle(self) -> Heap[S]:
        heap = self._base.items
        for _ in range(self._popped):
            heappop(heap)
        for item in self.items:
            heappush(heap, item)
        return self._base

    def _offer(self, position: int) -> None:
        if position < len(self._base.items):
            heappush(self._next, (self._base.items[position], position))

    def _is_own_first(self) -> bool:
        if not self._next:
            return True
        return bool(self.items) and self.items[0] <= self._next[0][0]
