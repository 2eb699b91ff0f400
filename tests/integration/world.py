"""A broker on a manual clock, on either store, that can be restarted, watched and made to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead import Broker, NewMessage, Settings
from fairlead.model.delivery import Delivery
from fairlead.testing import ManualClock, Storage, laws
from fairlead.testing.engine import is_closed
from fairlead.testing.steps import ignore


class World:
    def __init__(self, kind: str, path: Path, settings: Settings | None = None) -> None:
        self.kind = kind
        self.path = path
        self.settings = settings or Settings()
        self.clock = ManualClock()
        self.store = Storage(
            None if kind == "memory" else path / "data", disk_reserve_bytes=self.settings.disk_reserve_bytes
        )
        self.broker = self._broker()

    def restart(self, *, jump_ms: int = 0, away_ms: int = 0) -> Broker:
        """Close and open again, after so much time away, on a clock that was stepped meanwhile."""
        self.broker.close()
        if away_ms:
            self.clock.advance(ms=away_ms)
        if jump_ms:
            self.clock.jump(ms=jump_ms)
        self.store = self.store.reopen()
        self.broker = self._broker()
        return self.broker

    def kill(self, *, away_ms: int = 0) -> Broker:
        """The process is gone without a word; the operating system has all that was committed."""
        self.store.on_step = ignore
        self.store.inner.close()
        return self.restart(away_ms=away_ms)

    def reboot(self, *, away_ms: int = 0, jump_ms: int = 0) -> Broker:
        """The machine restarts: after so much time away, with a clock that was stepped by `jump_ms`, steady
        time begins anew.
        """
        self.broker.close()
        self.clock = ManualClock(now_ms=self.clock.now_ms() + away_ms + jump_ms)
        return self.restart()

    def close(self) -> None:
        """Every test ends with the store's own laws."""
        closed_by_test = is_closed(self.broker)
        store = self.store.reopen() if closed_by_test else self.store
        problems = laws(store)
        if closed_by_test:
            store.close()
        self.broker.close()
        assert problems == [], problems

    def fill(
        self, queue: str, *, key: str = "default", count: int, payload: bytes = b"x", **options: Any
    ) -> list[str]:
        return self.broker.enqueue_many(
            queue, [NewMessage(payload, fairness_key=key, **options) for _ in range(count)]
        )

    def claim_one(self, queue: str, **options: Any) -> Delivery:
        (delivery,) = self.broker.claim(queue, **options)
        return delivery

    def counts(self, queue: str) -> tuple[int, int, int, int]:
        """ready, waiting, leased, dead"""
        stats = self.broker.stats(queue)
        return stats.ready, stats.waiting, stats.leased, stats.dead

    def _broker(self) -> Broker:
        return self.store.open_broker(clock=self.clock, durability="os", settings=self.settings)


class Background:
    """A call in a thread of its own. `result` fails the test when it does not come, instead of hanging it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._answer: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = 20) -> Any:
        self._thread.join(timeout)
        assert self.done, "the call did not return"
        if self._error is not None:
            raise self._error
        return self._answer[0]


def within_reach(call: Callable[[], Any]) -> Any:
    """The call's answer, from a thread, so that a lock that is never given back fails the test."""
    return Background(call).result()


def wait_until(condition: Callable[[], bool], tries: int = 20_000) -> None:
    """Look again and again, giving other threads their turn in between; no time has to pass for it."""
    turn = threading.Event()
    for _ in range(tries):
        if within_reach(condition):
            return
        turn.wait(0.001)
    raise AssertionError("the condition did not come true")
