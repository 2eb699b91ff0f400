"""Single calls that come at the same time, carried out together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class _Ticket(Generic[Item, Answer]):
    """One caller's item. The caller sleeps until it is answered, or until it is its turn to carry out a
    batch.
    """

    __slots__ = ("answer", "item", "leads", "size", "woken")

    def __init__(self, item: Item, size: int) -> None:
        self.item = item
        self.size = size
        self.answer: Answer | Exception | None = None
        self.leads = False
        self.woken = threading.Event()


class Gather(Generic[Item, Answer]):
    """Carries out one batch at a time in each lane: at once when none is under way, else with all that came
    meanwhile.

    No timer and no thread of its own: whoever finds the lane idle carries out its own item there and then;
    when that is done, the first of those who wait carries out the next batch. So a lone caller pays nothing,
    and under load batches grow to what came in during the one before. Items of a lane are carried out in the
    order they came.
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
        #: Who waits in a lane; a lane without work is not here, so that names made up by callers leave
        #: nothing behind.
        self._lanes: dict[str, deque[_Ticket[Item, Answer]]] = {}

    def waiting(self, lane: str) -> int:
        """How many items wait for the batch that is under way."""
        with self._lock:
            return len(self._lanes.get(lane, ()))

    def do(self, lane: str, item: Item) -> Answer:
        """The answer to this item, or its own error; what becomes of the others in its batch changes neither."""
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
