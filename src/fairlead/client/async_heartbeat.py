"""The heartbeat on an event loop: the rules of `heartbeat`, with a timer instead of a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

from fairlead.client.heartbeat import NEVER, Asked, Heartbeat, extends_of, parts_of
from fairlead.clock import Clock
from fairlead.model.settle import Extend, SettleResult


class AsyncHeartbeat(Heartbeat):
    """Here `extend` is a coroutine function. Used on the event loop only."""

    def __init__(
        self,
        extend: Callable[[Sequence[Extend]], Awaitable[tuple[Sequence[SettleResult], int]]],
        clock: Clock,
        cap_ms: int | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(_no_thread, clock, cap_ms)
        self._ask = extend
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._beats: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        super().close()
        if self._timer is not None:
            self._timer.cancel()
        for beat in self._beats:
            beat.cancel()

    def _wake_at(self, due_ms: int) -> None:
        if due_ms >= self._wakes_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_ms = due_ms
        wait_s = max(0, due_ms - self._clock.monotonic_ms()) / 1000
        self._timer = self._loop.call_later(wait_s, self._wake)

    def _wake(self) -> None:
        self._timer, self._wakes_ms = None, NEVER
        due = self._take_due(self._clock.monotonic_ms())
        for asked in parts_of(due):
            beat = self._loop.create_task(self._send(asked))
            self._beats.add(beat)
            beat.add_done_callback(self._beats.discard)
        for group in due:
            # Not due again until the answer sets a new time.
            group.due_ms = NEVER
        self._wake_again()

    def _wake_again(self) -> None:
        next_ms = self._find_next_ms(NEVER)
        if next_ms != NEVER and not self._closed:
            self._wake_at(next_ms)

    async def _send(self, asked: Asked) -> None:
        try:
            results, server_now_ms = await self._ask(extends_of(asked))
        except Exception as trouble:
            self._failed(asked, trouble)
        else:
            self._answered(asked, results, server_now_ms)
        self._wake_again()


def _no_thread(extends: Sequence[Extend]) -> NoReturn:
    raise NotImplementedError
