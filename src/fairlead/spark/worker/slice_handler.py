"""Carries out the requests of a task's worker loop on one slice of a numbered claim after another.

The claim belongs to the driver and stays until the driver closes it, so a slice has no leases of its own to
lose. An outcome is recorded with the claim and takes effect at the close. When a slice has ended, because it
is done, given up or taken over, settling a delivery of it answers `lost_lease` and records nothing.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import msgspec

from fairlead.errors import FairleadError, Unavailable
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason
from fairlead.model.limits import MAX_RECORDED_BYTES
from fairlead.model.settle import Complete, Extend, Fail, Outcome, Release, Settlement, SettleResult, Start
from fairlead.request import Answer, Request
from fairlead.spark.worker.slice_queue import ClaimSlice, SliceQueue, SliceTally, mark_suspects, raw_id_of
from fairlead.surface import ConsumersGroup
from fairlead.verbs.claim import Claim
from fairlead.verbs.operate import ReleaseStream
from fairlead.verbs.queues import ListQueues
from fairlead.verbs.settle import Goodbye, Settle

#: How often a worker loop asks for its queue, and so how often the slice is checked. Spark takes a task away
#: without telling its Python worker.
CHECK_PERIOD_S = 1.0
#: Bytes of error texts that all slices together record in full. The broker takes at most twice as much of a
#: claim.
_ERROR_BYTES = MAX_RECORDED_BYTES // 2
_SHORT_ERROR = 200


class _SliceConfig(NamedTuple):
    #: A worker loop releases streams by itself unless the queue is strict. Here the driver does, after the
    #: close.
    ordering: str = "strict"
    visibility_timeout_ms: int = round(3000 * CHECK_PERIOD_S)


class _SliceQueueInfo(NamedTuple):
    """The part of `QueueInfo` that a worker loop reads."""

    name: str
    config: _SliceConfig = _SliceConfig()


@dataclass
class _OpenSlice:
    name: ClaimSlice
    #: The turn of the slice that the broker granted to this task. It ends when another task begins the slice.
    turn: int
    queue: SliceQueue
    deliver_until: float
    tally: SliceTally = field(default_factory=SliceTally)
    error_bytes: int = 0
    #: Why the slice ended before it was done.
    error: FairleadError | None = None


class SliceHandler:
    """`do` serves a worker loop from any thread; `begin`, `wait` and `end` are for the one thread of the
    task.

    With `releases_streams`, messages behind a failed message of their stream get leave to pass it, at once
    and elsewhere (`on_stream_failure = "continue"`). `max_in_flight` bounds the messages that the worker loop
    works on at once.
    """

    def __init__(
        self, consumers: ConsumersGroup, *, releases_streams: bool = False, max_in_flight: int = 0
    ) -> None:
        self._consumers = consumers
        self._releases_streams = releases_streams
        self._max_in_flight = max_in_flight
        self._changed = threading.Condition()
        self._open: _OpenSlice | None = None

    def begin(self, name: ClaimSlice, max_s: float = math.inf) -> None:
        """Begin work on a slice, and read its messages without an outcome. After `max_s` no more of them are
        delivered; the others stay without an outcome.
        """
        at = (name.consumer, name.queue, name.generation, name.number)
        begun = self._consumers.begin_slice(*at, slice=name.slice, slices=name.slices)
        unsettled = list(self._consumers.read(*at, slice=name.slice, slices=name.slices, unsettled=True))
        if begun.again:
            unsettled = mark_suspects(unsettled, name.crashes, self._max_in_flight)
        opened = _OpenSlice(name, begun.turn, SliceQueue(unsettled), time.monotonic() + max_s)
        opened.tally.count_failures(begun.failed, FailureReason.TIMEOUT_EXCEEDED.word)
        with self._changed:
            self._open = opened
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the slice is done; False if it is not within `timeout_s`. Raises the error that ended
        it.
        """
        with self._changed:
            opened = self._open
            if opened is None:
                return True
            is_over = self._changed.wait_for(
                lambda: opened.error is not None or opened.queue.is_done, timeout_s
            )
            if opened.error is not None:
                raise opened.error
            return is_over

    def end(self) -> SliceTally:
        """Close the slice: deliveries still in flight are lost."""
        with self._changed:
            opened, self._open = self._open, None
            return SliceTally() if opened is None else opened.tally

    def do(self, request: Request[Answer]) -> Answer:
        """Carry out one of the five requests that a worker loop makes."""
        answer: object
        match request:
            case Claim():
                answer = self._claim(request)
            case Settle():
                answer = self._settle(request.items)
            case ListQueues():
                answer = self._list_queues(request.prefix)
            case ReleaseStream():
                answer = False  # the driver releases streams after the close
            case Goodbye():
                answer = 0  # nothing is leased under the name of a task
            case _:
                raise NotImplementedError(f"a slice of a claim cannot carry out {request.verb_name}")
        return cast("Answer", answer)

    def _claim(self, request: Claim) -> list[Delivery]:
        with self._changed:
            if request.wait is not None:
                self._changed.wait_for(self._has_ready, to_ms(request.wait, "wait") / 1000)
            opened = self._open
            if opened is None:
                return []
            if opened.queue.has_ready and time.monotonic() > opened.deliver_until:
                opened.queue.stop_delivering()
                self._changed.notify_all()
            return opened.queue.deliver(request.limit, request.max_per_stream)

    def _has_ready(self) -> bool:
        return self._open is not None and self._open.queue.has_ready

    def _settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        """Record all items with one call. Raises `Unavailable`, and can be repeated then."""
        with self._changed:
            opened = self._open
            if opened is None:
                return list(map(_lost, items))
            own = opened.queue.in_flight_of(items)
            recorded, error_bytes = _to_record(own, opened)
            behind = opened.queue.behind_failures(recorded) if self._releases_streams else []
        if recorded:
            self._record(opened, [*recorded, *map(_pass, behind)])
        with self._changed:
            # The slice may have ended meanwhile.
            if self._open is not opened or opened.error is not None:
                return list(map(_lost, items))
            opened.error_bytes = error_bytes
            opened.tally.released += len(behind)
            self._count(opened, recorded)
            self._changed.notify_all()
        own_ids = set(map(id, own))
        return [_settled(item) if id(item) in own_ids else _lost(item) for item in items]

    def _record(self, opened: _OpenSlice, items: Sequence[Settlement]) -> None:
        """Record the items, or end the slice here if it belongs to another task by now."""
        name = opened.name
        at = (name.consumer, name.queue, name.generation, name.number)
        try:
            self._consumers.record(*at, items, slice=name.slice, turn=opened.turn)
        except Unavailable:
            raise
        except FairleadError as error:
            self._fail(opened, error)

    def _count(self, opened: _OpenSlice, recorded: Sequence[Settlement]) -> None:
        for item in recorded:
            if isinstance(item, Start | Extend):
                continue
            stream = opened.queue.stream_of(item)
            opened.tally.count(item)
            if self._releases_streams and stream and isinstance(item, Fail) and not item.dead:
                opened.tally.streams_to_release.add(stream)
            opened.queue.settle(item)

    def _list_queues(self, name: str) -> list[_SliceQueueInfo]:
        """A worker loop asks every second: the moment to check that the slice still belongs to this task."""
        with self._changed:
            opened = self._open
        if opened is not None:
            # A settle waits for an unavailable broker; a check comes again in a second.
            with contextlib.suppress(Unavailable):
                self._record(opened, [])
        return [_SliceQueueInfo(name)]

    def _fail(self, opened: _OpenSlice, error: FairleadError) -> None:
        with self._changed:
            if self._open is opened and opened.error is None:
                opened.error = error
                opened.queue.stop_delivering()
                self._changed.notify_all()


def _to_record(items: Sequence[Settlement], opened: _OpenSlice) -> tuple[list[Settlement], int]:
    """The items as a numbered claim can hold them, without heartbeats, and the bytes of error texts with them.

    The other members of the claim are delivered already, so a failure that would close its throttle key is
    retried after that time instead. Once error texts together exceed this slice's share, they are cut.
    """
    limit = _ERROR_BYTES // opened.name.slices
    error_bytes = opened.error_bytes
    recorded: list[Settlement] = []
    for item in items:
        if isinstance(item, Fail):
            error_bytes += len(item.error.encode())
            recorded.append(_fit(item, is_short=error_bytes > limit))
        elif not _is_heartbeat(item):
            recorded.append(item)
    return recorded, error_bytes


def _fit(item: Fail, *, is_short: bool) -> Fail:
    if item.close is not None:
        item = msgspec.structs.replace(item, retry_in=item.retry_after, retry_after=None, close=None)
    return msgspec.structs.replace(item, error=item.error[:_SHORT_ERROR]) if is_short else item


def _pass(delivery: Delivery) -> Release:
    """The message may pass the failed one of its stream."""
    return Release(delivery, keep_order=False)


def _is_heartbeat(item: Settlement) -> bool:
    """An extension that stores nothing."""
    return isinstance(item, Extend) and item.carry is None and not item.progress


def _lost(item: Settlement) -> SettleResult:
    return SettleResult(raw_id_of(item.delivery), "lost_lease")


def _settled(item: Settlement) -> SettleResult:
    return SettleResult(raw_id_of(item.delivery), _outcome_of(item))


def _outcome_of(item: Settlement) -> Outcome:
    match item:
        case Complete():
            return "completed"
        case Fail():
            return "dead" if item.dead else "retry"
        case Release():
            return "released"
        case Start():
            return "started"
        case Extend():
            return "extended"
