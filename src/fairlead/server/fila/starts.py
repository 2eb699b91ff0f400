"""Sends `Start` for messages that were handed to a connection, without blocking the connection."""

from __future__ import annotations

import logging
import threading

from fairlead.engine.broker import Broker
from fairlead.errors import FairleadError
from fairlead.model.settle import LeaseRef, Settlement, Start

_MAX_AT_ONCE = 1000
_log = logging.getLogger("fairlead.fila")


class Starter:
    """One thread sends the broker everything that was posted since its last call: without a wait when idle,
    and with one commit for many posts under load.

    A `Start` that fails does no harm: the message was settled meanwhile, or the expiry of its lease counts as
    a release.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changed = threading.Condition()
        self._posted: list[LeaseRef] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fila-starts", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def post(self, delivery: LeaseRef) -> None:
        with self._changed:
            self._posted.append(delivery)
            self._changed.notify()

    def close(self) -> None:
        """Returns after everything that was posted before has been sent to the broker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._broker.settle(batch)
            except FairleadError as error:
                _log.warning("%d deliveries stay unstarted: %s", len(batch), error)
            except Exception:
                # This thread must continue: without it, posted deliveries would stay in memory forever.
                _log.exception("%d deliveries stay unstarted for a reason that nobody foresaw", len(batch))

    def _next_batch(self) -> list[Settlement]:
        """An empty batch means that the starter is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._posted or self._closed)
            batch: list[Settlement] = [Start(delivery) for delivery in self._posted[:_MAX_AT_ONCE]]
            del self._posted[:_MAX_AT_ONCE]
            return batch
