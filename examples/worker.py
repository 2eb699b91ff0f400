"""A worker to start from: takes messages in a loop, settles each by how it went, and stops when told to
without losing one.

Run it: `python examples/worker.py mails`, with a server at 127.0.0.1:5554 or where `--addr` says. SIGTERM or
Ctrl-C: the message in hand is finished and settled, what was fetched ahead goes back unharmed. A second one
ends it at once, and then the message in hand comes back when its lease is over.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from collections.abc import Callable
from types import FrameType

import fairlead
from fairlead import Complete, Delivery, Fail

#: The first that fits names the failure; queues may have a retry policy for each (`retry_on`).
REASONS: tuple[tuple[type[Exception], str], ...] = (
    (json.JSONDecodeError, "serialization_error"),
    (ValueError, "validation_failure"),
    (TimeoutError, "timeout_exceeded"),
    (ConnectionError, "transport_unavailable"),
    (Exception, "handler_exception"),
)


def send_mail(delivery: Delivery) -> None:
    """Put your work here. Delivery is at least once: give `delivery.id` to whoever must notice a second time."""
    mail = json.loads(delivery.payload)
    if "@" not in mail.get("to", ""):
        raise ValueError("expected an address in 'to'")
    print(f"sent to {mail['to']}", flush=True)


def settled(delivery: Delivery, work: Callable[[Delivery], None]) -> Complete | Fail:
    """Do the work, and say how it went."""
    try:
        work(delivery)
    except Exception as error:
        reason = next(reason for kind, reason in REASONS if isinstance(error, kind))
        return Fail(delivery, f"{type(error).__name__}: {error}", reason)
    return Complete(delivery)


def run(address: str, queue: str, work: Callable[[Delivery], None]) -> None:
    # A worker outlives a restart of its server: it holds on to what it has, and settles that when somebody
    # answers.
    with (
        fairlead.connect(address, retry_for="10m") as client,
        client.consume(queue, prefetch=50) as deliveries,
    ):

        def stop(number: int, frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)
            # In a thread, because closing waits, and the loop that was interrupted may hold what it waits
            # for.
            threading.Thread(target=deliveries.close).start()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        for delivery in deliveries:
            (result,) = client.settle([settled(delivery, work)])
            if not result.ok:
                print(f"{delivery.id}: {result.outcome}; someone else may have it now", flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Send the mails of a queue.")
    arguments.add_argument("queue")
    arguments.add_argument("--addr", default="127.0.0.1:5554")
    given = arguments.parse_args()
    run(given.addr, given.queue, send_mail)
