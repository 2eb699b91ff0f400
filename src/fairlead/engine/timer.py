"""The thread that runs what is due, when it is due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead.engine.due_times import next_event_ms
from fairlead.errors import BrokerClosed, FairleadError

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: However far off the next event is: a step of the wall clock is noticed within this time.
MAX_SLEEP_MS = 30_000
#: The pause after a failure, so that a full disk does not fill the log too.
PAUSE_MS = 100

_log = logging.getLogger("fairlead.timers")


class Timer:
    """Runs due work. With a clock that is moved by hand there is no thread: the clock itself runs due work."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sleeping = threading.Condition(engine.lock)  # type: ignore[arg-type]
        #: The store's time at which the thread wakes by itself; None while it is awake.
        self.wakes_ms: int | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Called once the engine is complete, because due work may run at once."""
        engine = self._engine
        self._unsubscribe = engine.clock.subscribe(engine.run_due)
        if engine.clock.ticks:
            self._thread = threading.Thread(target=self._run, name="fairlead-timer", daemon=True)
            self._thread.start()

    def wake_by(self, event_ms: int) -> None:
        """Under the lock: something is due at that time, so do not sleep longer."""
        if self.wakes_ms is not None and event_ms < self.wakes_ms:
            self._sleeping.notify_all()

    def stop(self) -> None:
        """Called without the lock, once the engine is closed."""
        self._unsubscribe()
        with self._engine.lock:
            self._sleeping.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        engine = self._engine
        while True:
            pause_ms = self._run_due()
            with engine.lock:
                if engine.closed:
                    return
                sleep_ms = max(pause_ms, self._until_next_event())
                self.wakes_ms = engine.time.now_ms() + sleep_ms
                engine.clock.wait(self._sleeping, sleep_ms)
                self.wakes_ms = None

    def _run_due(self) -> int:
        """Returns how long to pause after a failure."""
        try:
            self._engine.run_due()
            return 0
        except BrokerClosed:
            return 0
        except FairleadError as error:
            # A full disk is temporary; an engine that stopped has reported that to every caller.
            _log.warning("due work is put off: %s", error)
        except Exception:
            # Without this thread no lease would expire and nothing would become due.
            _log.exception("due work is put off by an error that nobody foresaw")
        return PAUSE_MS

    def _until_next_event(self) -> int:
        engine = self._engine
        event_ms = next_event_ms(engine.memory)
        until_event = MAX_SLEEP_MS if event_ms is None else event_ms - engine.time.now_ms()
        steps = [engine.operations.next_ms(), engine.evacuation.next_ms()]
        steady_ms = engine.clock.monotonic_ms()
        until_step = min(
            [step_ms - steady_ms for step_ms in steps if step_ms is not None], default=MAX_SLEEP_MS
        )
        return max(1, min(until_event, until_step, MAX_SLEEP_MS))
