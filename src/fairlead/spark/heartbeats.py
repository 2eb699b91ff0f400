"""Heartbeats of a durable consumer, from a thread beside the work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fairlead.errors import FairleadError, Rejected
from fairlead.model.durations import to_ms

log = logging.getLogger("fairlead.spark")

#: Heartbeats in one time to live, so that one lost call does not end the consumer's claim.
_PER_TTL = 4
_MAX_PERIOD_S = 30.0


def start_heartbeats(
    consumer: str,
    ttl: str,
    send: Callable[[], object],
    stopped: threading.Event,
    on_refused: Callable[[Rejected], object] = lambda refused: None,
) -> None:
    """Call `send` four times in each `ttl`, at least every 30 seconds, until `stopped` is set or the broker
    refuses.
    """
    period_s = min(to_ms(ttl, "ttl") / 1000 / _PER_TTL, _MAX_PERIOD_S)

    def run() -> None:
        while not stopped.wait(period_s):
            try:
                send()
            except Rejected as refused:
                # The next call of the consumer is refused too, and ends its work.
                log.warning("the broker refused a heartbeat of consumer %s: %s", consumer, refused)
                on_refused(refused)
                return
            except FairleadError as error:
                log.warning("a heartbeat of consumer %s failed: %s", consumer, error)

    threading.Thread(target=run, name="fairlead-heartbeat", daemon=True).start()
