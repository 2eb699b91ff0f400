"""Says `Start` for what was handed to a connection, without holding up the connection."""

from __future__ import annotations

import logging
import threading

from fairlead.engine.broker import Broker
from fairlead.errors import FairleadError
from fairlead.model.settle import LeaseRef, Settlement, Start

_MAX_AT_ONCE = 1000
_log = logging.getLogger("fairlead.fila")


class Starter:
    """One thread that tells the broker of all that was posted since it last did: no wait when idle, one
    commit under load.

    A `Start` that comes to nothing is not missed: the message was settled meanwhile, or its expiry counts as
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
        """Returns when everything posted before was told."""
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
                # This thread must go on: without it everything that is posted would be kept for ever.
                _log.exception("%d deliveries stay unstarted for a reason that nobody foresaw", len(batch))

    def _next_batch(self) -> list[Settlement]:
        """Nothing means that it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._posted or self._closed)
            batch: list[Settlement] = [Start(delivery) for delivery in self._posted[:_MAX_AT_ONCE]]
            del self._posted[:_MAX_AT_ONCE]
            return batch
