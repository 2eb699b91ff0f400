"""Carry out single calls that arrive at the same time together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Ticket(Generic[Item, Answer]):
    """The item of one caller. The caller sleeps until the item is answered, or until the caller must carry
    out a batch.
    """

    __slots__ = ("answer", "item", "leads", "size", "woken")

    def __init__(self, item: Item, size: int) -> None:
        self.item = item
        self.size = size
        self.answer: Answer | Exception | None = None
        self.leads = False
        self.woken = threading.Event()


class Gather(Generic[Item, Answer]):
    """Carries out one batch at a time in each lane: at once if none is under way, otherwise with all items
    that arrived meanwhile.

    There is no timer and no extra thread. A caller that finds the lane idle carries out its own item. When
    this batch is done, the first waiting caller carries out the next batch. So a lone caller has no overhead,
    and under load a batch grows to the items that arrived during the batch before. Items of a lane are
    carried out in the order of their arrival.
    """

    def __init__(
        self,
        carry_out: Callable[[str, list[Item]], list[Answer | Exception]],
        *,
        most_items: int = 500,
        most_bytes: int = 1 << 62,
        size_of: Callable[[Item], int] = lambda item: 0,
    ) -> None:
        self._carry_out = carry_out
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._lock = threading.Lock()
        #: The waiting callers of each lane. A lane without work has no entry, so names that callers invent
        #: take no memory.
        self._lanes: dict[str, deque[_Ticket[Item, Answer]]] = {}

    def waiting(self, lane: str) -> int:
        """The number of items that wait for the batch under way."""
        with self._lock:
            return len(self._lanes.get(lane, ()))

    def do(self, lane: str, item: Item) -> Answer:
        """Returns the answer to this item, or raises its error. The other items of the batch have no
        influence on either.
        """
        ticket: _Ticket[Item, Answer] = _Ticket(item, self._size_of(item))
        with self._lock:
            waiting = self._lanes.get(lane)
            if waiting is None:
                self._lanes[lane] = deque()
            else:
                waiting.append(ticket)
        if waiting is None:
            self._lead(lane, [ticket])
        else:
            ticket.woken.wait()
            if ticket.leads:
                self._lead(lane, self._next_batch(lane, ticket))
        if isinstance(ticket.answer, Exception):
            raise ticket.answer
        return ticket.answer  # type: ignore[return-value]

    def _next_batch(self, lane: str, first: _Ticket[Item, Answer]) -> list[_Ticket[Item, Answer]]:
        batch, size = [first], first.size
        with self._lock:
            waiting = self._lanes[lane]
            while waiting and len(batch) < self._most_items and size + waiting[0].size <= self._most_bytes:
                size += waiting[0].size
                batch.append(waiting.popleft())
        return batch

    def _lead(self, lane: str, batch: list[_Ticket[Item, Answer]]) -> None:
        answers: list[Answer | Exception]
        try:
            answers = self._carry_out(lane, [ticket.item for ticket in batch])
            if len(answers) != len(batch):
                raise RuntimeError(f"expected {len(batch)} answers, got {len(answers)}")
        except Exception as error:
            answers = [error] * len(batch)
        self._hand_over(lane)
        for ticket, answer in zip(batch, answers, strict=True):
            ticket.answer = answer
            ticket.woken.set()

    def _hand_over(self, lane: str) -> None:
        with self._lock:
            waiting = self._lanes[lane]
            if not waiting:
                del self._lanes[lane]
                return
            following = waiting.popleft()
        following.leads = True
        following.woken.set()
