"""What the `Crew` of a task talks to instead of a broker: one slice of a numbered claim after the other.

The claim belongs to the driver and stays until it is closed, so nothing here has a lease of its own to lose:
what is said about a message is recorded, and takes effect when the driver closes the claim. A slice that is
over, because it was done, given up or taken away, answers `lost_lease` to whoever still holds something of
it, and records nothing more.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from fairlead.errors import ClaimClosed, ClaimReleased, FairleadError, StaleConsumer, Unavailable
from fairlead.model.consumer import ConsumerInfo
from fairlead.model.delivery import Delivery
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason, read_reason
from fairlead.model.limits import MAX_RECORDED_BYTES
from fairlead.model.settle import Complete, Extend, Fail, Outcome, Release, Settlement, SettleResult, Start
from fairlead.request import Answer, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.operate import ReleaseStream
from fairlead.verbs.queues import ListQueues
from fairlead.verbs.settle import Goodbye, Settle

#: More than a Crew has in hand of single messages: what came behind them was not there when a crash happened.
_MOST_IN_HAND = 6000
#: How often it is asked whether the slice is still ours. Spark takes a task away without telling its Python
#: worker.
BEAT_S = 1.0
#: What slices together may record of the errors' texts in full; the broker takes no more than twice that of a
#: claim.
_ERROR_BYTES = MAX_RECORDED_BYTES // 2
_SHORT_ERROR = 200


class Consumers(Protocol):
    """The verbs of `client.consumers`, or of a broker's, that a slice needs."""

    def begin_slice(
        self, name: str, queue: str, generation: int, number: int, *, slice: int = 0, slices: int = 1
    ) -> Any: ...

    def read(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
    ) -> Iterator[Delivery]: ...

    def record(
        self, name: str, queue: str, generation: int, number: int, items: Sequence[Any], *, part: str = ""
    ) -> None: ...

    def show(self, name: str, queue: str) -> ConsumerInfo: ...


class Slice(NamedTuple):
    """Which part of which claim. `generation` fences: who takes the consumer over ends all slices of the one
    before.

    `crashes`: how often it was given up before, as far as this run knows.
    """

    consumer: str
    queue: str
    generation: int
    number: int
    slice: int
    slices: int
    crashes: int = 0


@dataclass
class SliceTally:
    """What was said about the messages of a slice. `failed` were tried in vain; whether they are tried again
    the close decides.
    """

    completed: int = 0
    failed: int = 0
    released: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    #: Streams whose later messages may pass one that failed.
    let_by: set[str] = field(default_factory=set)


class _Config(NamedTuple):
    #: A worker lets a stream by itself unless its queue is strict; here that is done when the claim is
    #: closed.
    ordering: str = "strict"
    visibility_timeout_ms: int = round(3000 * BEAT_S)


class _Queue(NamedTuple):
    name: str
    config: _Config = _Config()


class SliceTarget:
    """A `Target`. `begin` and `end` are for one thread, the verbs for those of the Crew.

    `lets_by`: when a message of a stream fails, those behind it may go on, at once and elsewhere
    (`on_stream_failure = "continue"`). `in_hand`: how many the Crew may have in hand at once, if that is very
    many.
    """

    def __init__(self, consumers: Consumers, *, lets_by: bool = False, in_hand: int = 0) -> None:
        self._consumers = consumers
        self._lets_by = lets_by
        self._in_hand = max(in_hand, _MOST_IN_HAND)
        self._changed = threading.Condition()
        self._forget()

    def _forget(self) -> None:
        self._slice: Slice | None = None
        self._tally = SliceTally()
        #: What can be handed out: a message that no stream orders, or the name of a stream none of whose
        #: messages is out.
        self._line: deque[Delivery | str] = deque()
        self._streams: dict[str, deque[Delivery]] = {}
        #: Handed out and not settled, with the stream ("": none).
        self._out: dict[bytes, str] = {}
        #: How many of a stream are out.
        self._running: Counter[str] = Counter()
        self._hands_out_until = math.inf
        self._error_bytes = 0
        self._error: FairleadError | None = None

    # For the task

    def begin(self, part: Slice, most_s: float = math.inf) -> None:
        """Take the slice up, and read what is left of it. After `most_s` nothing more of it is handed out,
        and what is left stays without an outcome.
        """
        taken = self._consumers.begin_slice(
            part.consumer, part.queue, part.generation, part.number, slice=part.slice, slices=part.slices
        )
        found = list(
            self._consumers.read(
                part.consumer,
                part.queue,
                part.generation,
                part.number,
                slice=part.slice,
                slices=part.slices,
                unsettled=True,
            )
        )
        if taken.again:
            # One of those that were in hand may have killed its process. One that came back without a word is
            # started before it begins, and so found out the next time; of a batch it goes with few others
            # after the first crash of this run, else alone: a run that knows of none, and finds the slice
            # taken up, comes after one that did not live to count.
            back = 1 if part.crashes == 1 else 2
            doubtful = found[: self._in_hand]
            found[: len(doubtful)] = [
                msgspec.structs.replace(one, deliveries=one.deliveries + back) for one in doubtful
            ]
        with self._changed:
            self._forget()
            self._slice = part
            self._hands_out_until = time.monotonic() + most_s
            if taken.failed:
                self._tally.failed += taken.failed
                self._tally.reasons[FailureReason.TIMEOUT_EXCEEDED.word] += taken.failed
            for delivery in found:
                stream = delivery.message.stream if delivery.seq else ""
                if not stream:
                    self._line.append(delivery)
                elif stream in self._streams:
                    self._streams[stream].append(delivery)
                else:
                    self._streams[stream] = deque([delivery])
                    self._line.append(stream)
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Until everything of the slice is settled or it is over, or the time is. Raises what ended it."""
        with self._changed:
            over = self._changed.wait_for(
                lambda: self._error is not None or not (self._line or self._out), timeout_s
            )
            if self._error is not None:
                raise self._error
            return over

    def end(self) -> SliceTally:
        """What was said of it. From now on it is nobody's: what is still in hand is lost."""
        with self._changed:
            tally = self._tally
            self._forget()
            return tally

    # For the Crew

    def do(self, request: Request[Answer]) -> Answer:
        """Carry out one of the five requests that a worker makes."""
        answer: object
        match request:
            case Claim():
                answer = self.claim(
                    str(request.queue),
                    limit=request.limit,
                    wait=cast("str | None", request.wait),
                    consumer=request.consumer,
                    max_per_stream=request.max_per_stream,
                    started=request.started,
                )
            case Settle():
                answer = self.settle(request.items)
            case ListQueues():
                answer = self.queues(request.prefix)
            case ReleaseStream():
                answer = self.release_stream(request.queue, request.stream)
            case Goodbye():
                answer = self.goodbye(request.consumer)
            case _:
                raise AssertionError(request)
        return cast(Answer, answer)

    def claim(
        self, queue: str, *, limit: int, wait: str | None, consumer: str, max_per_stream: int, started: bool
    ) -> list[Delivery]:
        with self._changed:
            if wait is not None:
                self._changed.wait_for(lambda: self._line, to_ms(wait, "wait") / 1000)
            return self._take(limit, max_per_stream)

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        """One `record` for all of them. Raises `Unavailable`, and can then be said again."""
        with self._changed:
            part = self._slice
            mine = [item.delivery.raw_id in self._out for item in items]  # type: ignore[attr-defined]
            said = [
                self._cut(_without_close(item))
                for item, is_mine in zip(items, mine, strict=True)
                if is_mine and not _is_beat(item)
            ]
            passed = self._pass_on(said)
        if said and part is not None:
            try:
                self._consumers.record(
                    part.consumer, part.queue, part.generation, part.number, [*said, *passed]
                )
            except Unavailable:
                raise
            except FairleadError as error:
                self._break(part, error)
        with self._changed:
            # It may have been given up meanwhile.
            is_over = self._slice is not part or self._error is not None
            results = [
                SettleResult(
                    item.delivery.raw_id,  # type: ignore[attr-defined]
                    "lost_lease" if is_over or not is_mine else _outcome_of(item),
                )
                for item, is_mine in zip(items, mine, strict=True)
            ]
            if not is_over:
                for item in said:
                    self._take_in(item)
                self._tally.released += len(passed)
                self._changed.notify_all()
            return results

    def queues(self, prefix: str = "") -> list[Any]:
        """Asked for every second: the moment to see whether the slice is still ours."""
        with self._changed:
            part = self._slice
        if part is not None:
            try:
                self._check(part)
            except Unavailable:
                pass  # who settles waits for it
            except FairleadError as error:
                self._break(part, error)
        return [_Queue(prefix)]

    def _check(self, part: Slice) -> None:
        there = self._consumers.show(part.consumer, part.queue)
        if there.generation != part.generation:
            raise StaleConsumer(part.consumer, part.generation, there.generation)
        if there.lost == part.number:
            raise ClaimReleased(part.consumer, part.number, "somebody let go of it")
        if there.open != part.number:
            raise ClaimClosed(part.consumer, part.number, there.last_closed)

    def release_stream(self, queue: str, stream: str) -> bool:
        return False  # the driver does, when the claim is closed

    def goodbye(self, consumer: str) -> int:
        return 0  # nothing is held by the name of a task

    def _take(self, limit: int, max_per_stream: int) -> list[Delivery]:
        found: list[Delivery] = []
        if self._line and time.monotonic() > self._hands_out_until:
            self._line.clear()
            self._changed.notify_all()
        while self._line and len(found) < limit:
            first = self._line.popleft()
            if isinstance(first, Delivery):
                self._out[first.raw_id] = ""
                found.append(first)
                continue
            behind = self._streams[first]
            run = [behind.popleft() for _ in range(min(len(behind), max_per_stream, limit - len(found)))]
            self._running[first] = len(run)
            for delivery in run:
                self._out[delivery.raw_id] = first
            found += run
        return found

    def _cut(self, item: Settlement) -> Settlement:
        """With less of its error, where so many have failed that the claim could not hold all that they say."""
        if not isinstance(item, Fail) or self._slice is None:
            return item
        self._error_bytes += len(item.error.encode())
        return (
            item
            if self._error_bytes <= _ERROR_BYTES // self._slice.slices
            else msgspec.structs.replace(item, error=item.error[:_SHORT_ERROR])
        )

    def _pass_on(self, said: Sequence[Settlement]) -> list[Release]:
        """Those behind one that fails now, with leave to pass it."""
        if not self._lets_by:
            return []
        streams = {self._out[item.delivery.raw_id] for item in said if isinstance(item, Fail)}  # type: ignore[attr-defined]
        return [
            Release(behind, keep_order=False)
            for stream in streams
            for behind in self._streams.get(stream, ())
        ]

    def _take_in(self, item: Settlement) -> None:
        if isinstance(item, Start | Extend):
            return
        raw_id: bytes = item.delivery.raw_id  # type: ignore[attr-defined]
        stream = self._out.pop(raw_id)
        tally = self._tally
        if isinstance(item, Complete):
            tally.completed += 1
        elif isinstance(item, Fail):
            tally.failed += 1
            tally.reasons[read_reason(item.reason).word] += 1
        else:
            tally.released += 1
        if not stream:
            return
        self._running[stream] -= 1
        if not isinstance(item, Complete):
            # What is behind it in the claim stays without an outcome, and goes back in order.
            self._streams.pop(stream, None)
            if self._lets_by and isinstance(item, Fail) and not item.dead:
                tally.let_by.add(stream)
        if not self._running[stream]:
            del self._running[stream]
            if self._streams.get(stream):
                # First in line: the longest stream is what the slice will wait for.
                self._line.appendleft(stream)

    def _break(self, part: Slice, error: FairleadError) -> None:
        with self._changed:
            if self._slice is part and self._error is None:
                self._error = error
                self._line.clear()
                self._changed.notify_all()


def _without_close(item: Settlement) -> Settlement:
    """Members of a numbered claim are in hand already, so one that would close its throttle key fails and waits."""
    if not isinstance(item, Fail) or item.close is None:
        return item
    return msgspec.structs.replace(item, retry_in=item.retry_after, retry_after=None, close=None)


def _is_beat(item: Settlement) -> bool:
    return isinstance(item, Extend) and item.carry is None and not item.progress


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
