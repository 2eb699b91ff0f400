"""The heartbeat: it extends held leases while their work continues, up to a cap.

A lease is extended after a third of its time, and all due leases share one request. The time left is computed
from the server's clock alone: the lease's end minus the server's now, both from one answer. So the clocks of
client and server need not agree.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NoReturn

from fairlead.clock import Clock
from fairlead.errors import ClientClosed, FairleadError, Forbidden, Unauthenticated
from fairlead.model.delivery import Delivery
from fairlead.model.settle import Extend, LeaseRef, SettleResult

_log = logging.getLogger("fairlead.client")

#: The shortest time between two extensions, however short a lease is.
_SHORTEST_MS = 20
#: The most leases in one request: a broker limits the number, and settles of other threads wait behind it.
AT_ONCE = 10_000
#: The time until the next try after a failed one: the lease may still be valid.
_AGAIN_MS = 1000
_MAX_LOST = 100_000
NEVER = 1 << 62

#: Raw message ids by claim.
Held = dict[int, set[bytes]]
#: Returns the results of extensions and the server's now, once they have arrived.
Answers = Callable[[], tuple[Sequence[SettleResult], int]]


class Leases:
    """Deliveries of one claim that expire at the same time."""

    __slots__ = ("cap_ms", "claim_id", "due_ms", "duration", "ids")

    def __init__(
        self, claim_id: int, ids: set[bytes], *, due_ms: int, cap_ms: int, duration: timedelta | None = None
    ) -> None:
        self.claim_id = claim_id
        self.ids = ids
        self.due_ms = due_ms
        #: When the heartbeat gives up, by the monotonic clock of this process.
        self.cap_ms = cap_ms
        #: The duration that each heartbeat asks for; None: the queue's own.
        self.duration = duration


#: Leases, each with the messages to extend.
Asked = list[tuple[Leases, bytes]]


class Heartbeat:
    """Extends leases through `extend`, which queues extensions and returns a function that waits for their
    results and the server's now. Both may raise.

    Extensions are queued under the lock. So when a caller drops a lease in order to extend it, the
    heartbeat's extension is ahead of the caller's, or is not sent at all, and cannot shorten what the caller
    was granted. With a cap of None no lease is extended, and no lease is ever known to be lost.
    """

    def __init__(
        self, extend: Callable[[Sequence[Extend]], Answers], clock: Clock, cap_ms: int | None
    ) -> None:
        self._extend = extend
        self._clock = clock
        self._cap_ms = cap_ms
        self._changed = threading.Condition()
        self._held: dict[int, list[Leases]] = {}
        self._lost: dict[tuple[bytes, int], None] = {}
        self._wakes_ms = NEVER
        self._closed = False
        self._thread: threading.Thread | None = None

    def hold(self, deliveries: Sequence[Delivery], server_now_ms: int) -> None:
        """Extend the leases until each is settled or lost, or the cap is over."""
        if self._cap_ms is None or not deliveries:
            return
        now_ms = self._clock.monotonic_ms()
        groups: dict[tuple[int, int], set[bytes]] = {}
        claim_id, lease_until = deliveries[0].claim_id, deliveries[0].lease_until
        alike = {
            delivery.raw_id
            for delivery in deliveries
            if delivery.claim_id == claim_id and delivery.lease_until == lease_until
        }
        if len(alike) == len(deliveries):
            groups[claim_id, lease_until] = alike
        else:
            for delivery in deliveries:
                groups.setdefault((delivery.claim_id, delivery.lease_until), set()).add(delivery.raw_id)
        with self._changed:
            for (claim_id, lease_until), ids in groups.items():
                # A claim that is repeated under its token returns the same deliveries again.
                self._drop(claim_id, ids)
                due_ms = now_ms + _third(lease_until - server_now_ms)
                self._add(Leases(claim_id, ids, due_ms=due_ms, cap_ms=now_ms + self._cap_ms))

    def drop(self, leases: Held) -> Held:
        """Stop extending leases that are being settled. Returns those that were held, to `keep` if the settle
        fails.
        """
        dropped: Held = {}
        if self._held:
            with self._changed:
                for claim_id, ids in leases.items():
                    held = self._drop(claim_id, ids)
                    if held:
                        dropped[claim_id] = held
        return dropped

    def keep(self, leases: Held, *, lease_ms: int | None = None, asked: timedelta | None = None) -> None:
        """Extend leases by their ids: after the caller's extension, a start, or a settle that failed."""
        if self._cap_ms is None:
            return
        now_ms = self._clock.monotonic_ms()
        due_ms = now_ms + (_third(lease_ms) if lease_ms is not None else _SHORTEST_MS)
        with self._changed:
            for claim_id, ids in leases.items():
                self._drop(claim_id, ids)
                self._add(
                    Leases(claim_id, set(ids), due_ms=due_ms, cap_ms=now_ms + self._cap_ms, duration=asked)
                )

    def holds(self, raw_id: bytes, claim_id: int) -> bool:
        return any(raw_id in group.ids for group in self._held.get(claim_id, ()))

    def mark_lost(self, raw_id: bytes, claim_id: int) -> None:
        with self._changed:
            self._lost[raw_id, claim_id] = None
            if len(self._lost) > _MAX_LOST:
                del self._lost[next(iter(self._lost))]

    def is_lost(self, raw_id: bytes, claim_id: int) -> bool:
        return (raw_id, claim_id) in self._lost

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _add(self, group: Leases) -> None:
        if self._closed:
            return
        self._held.setdefault(group.claim_id, []).append(group)
        self._wake_at(group.due_ms)

    def _drop(self, claim_id: int, ids: set[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        for group in list(self._held.get(claim_id, ())):
            found |= group.ids & ids
            group.ids -= ids
            if not group.ids:
                self._remove(group)
        return found

    def _remove(self, group: Leases) -> None:
        groups = self._held.get(group.claim_id, [])
        if group in groups:
            groups.remove(group)
        if not groups:
            self._held.pop(group.claim_id, None)

    # With a thread; `AsyncHeartbeat` uses a timer of the event loop instead

    def _wake_at(self, due_ms: int) -> None:
        """Wake the thread at this time. Called under the lock."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fairlead-heartbeat", daemon=True)
            self._thread.start()
        elif due_ms < self._wakes_ms:
            self._wakes_ms = due_ms
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now_ms = self._clock.monotonic_ms()
                due = self._take_due(now_ms)
                if not due:
                    # With nothing held, keep the old time: the next held lease is due later than it and need
                    # not wake this thread.
                    nothing_ms = self._wakes_ms if self._wakes_ms > now_ms else NEVER
                    self._wakes_ms = self._find_next_ms(nothing_ms)
                    self._clock.wait(
                        self._changed, None if self._wakes_ms == NEVER else self._wakes_ms - now_ms
                    )
                    continue
                parts = parts_of(due)
                waits = [self._put_in_line(part) for part in parts]
            for part, answers in zip(parts, waits, strict=True):
                self._beat(part, answers)

    def _find_next_ms(self, default: int) -> int:
        return min([group.due_ms for groups in self._held.values() for group in groups], default=default)

    def _take_due(self, now_ms: int) -> list[Leases]:
        due = []
        for group in [group for groups in self._held.values() for group in groups]:
            if group.cap_ms <= now_ms:
                self._remove(group)
            elif group.due_ms <= now_ms:
                due.append(group)
        return due

    def _put_in_line(self, asked: Asked) -> Answers:
        try:
            return self._extend(extends_of(asked))
        except Exception as trouble:
            failed = trouble

        def fail() -> NoReturn:
            raise failed

        return fail

    def _beat(self, asked: Asked, answers: Answers) -> None:
        try:
            results, server_now_ms = answers()
        except Exception as trouble:
            self._failed(asked, trouble)
        else:
            self._answered(asked, results, server_now_ms)

    def _failed(self, asked: Asked, trouble: Exception) -> None:
        if isinstance(trouble, ClientClosed):
            self.close()
            return
        if isinstance(trouble, (Unauthenticated, Forbidden)):
            # The key has expired or may no longer consume here, so every later heartbeat would fail too.
            for group, raw_id in asked:
                self._lose(group, raw_id)
            return
        if not isinstance(trouble, FairleadError):
            # Log the error: no caller would learn of it, and every lease would silently expire.
            _log.error("a heartbeat failed in a way it should not, and is tried again", exc_info=trouble)
        with self._changed:
            for group, _ in asked:
                group.due_ms = self._clock.monotonic_ms() + _AGAIN_MS

    def _answered(self, asked: Asked, results: Sequence[SettleResult], server_now_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        for (group, raw_id), result in zip(asked, results, strict=True):
            if result.ok:
                group.due_ms = now_ms + _third(result.lease_until - server_now_ms)
            else:
                self._lose(group, raw_id)

    def _lose(self, group: Leases, raw_id: bytes) -> None:
        """Mark the lease as lost, unless it was settled meanwhile and is no longer held."""
        if raw_id in group.ids:
            self.mark_lost(raw_id, group.claim_id)
            self.drop({group.claim_id: {raw_id}})


def parts_of(due: list[Leases]) -> list[Asked]:
    """The due leases, divided into requests of at most `AT_ONCE`."""
    asked = [(group, raw_id) for group in due for raw_id in group.ids]
    return [asked[start : start + AT_ONCE] for start in range(0, len(asked), AT_ONCE)]


def extends_of(asked: Asked) -> list[Extend]:
    return [Extend(LeaseRef(raw_id, group.claim_id), group.duration) for group, raw_id in asked]


def _third(lease_ms: int) -> int:
    return max(_SHORTEST_MS, lease_ms // 3)
