"""What the queue is, said in plain Python and apart from the engine.

Nothing here schedules, stores or optimises: a dictionary of messages, and for each verb what it does to them.
Where the engine may choose (ids, lease tokens, which key goes first), the specification is told what was
chosen and raises `Illegal` when that was not one of the legal choices. Fairness between keys is not specified
here.

Two messages that took their place in the same call, for the same cause, are ordered by `Place.order`; between
different causes (a lease that expires and a delay that ends in one step of the clock) no order is promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

READY, WAITING, LEASED, DONE = "ready", "waiting", "leased", "done"
FAILED = 32768


class Illegal(AssertionError):
    """The engine did what no reading of the rules allows."""


@dataclass(frozen=True)
class Draft:
    payload: bytes
    headers: tuple[tuple[str, str], ...] = ()
    key: str = "default"
    weight: int = 1
    throttle_keys: tuple[str, ...] = ()
    delay_ms: int = 0
    dedup_key: str | None = None
    ttl_ms: int = 0

    @property
    def corrected_weight(self) -> int:
        return min(max(self.weight, 1), 1000)

    @property
    def size(self) -> int:
        """Payload plus the packed headers: one byte, and one for each of their short strings."""
        return len(self.payload) + (
            1 + sum(2 + len(name) + len(value) for name, value in self.headers) if self.headers else 0
        )


@dataclass(frozen=True)
class Said:
    """One item of a settle."""

    verb: str
    id: str
    token: str = ""
    reason: str = "unknown"
    retry_in_ms: int | None = None
    dead: bool = False
    progress: int = 0
    duration_ms: int = 0


@dataclass(frozen=True)
class Options:
    visibility_ms: int = 30_000
    retry: str = "immediate"
    retry_attempts: int | None = None
    max_attempts: int = 0
    max_deliveries: int = 0
    max_messages: int = 0
    max_unsettled_per_consumer: int = 0
    max_unsettled_per_key: int = 0
    ttl_ms: int = 0
    expired_to_dead: bool = False
    dead_retention_ms: int = 0
    dedup_window_ms: int = 300_000  # 0: as long as the first message is live
    dedup_kept: bool = False  # with a window of 0: also as long as it is kept when it is done
    retain_completed_ms: int = 0


@dataclass(frozen=True)
class Place:
    step: int
    cause: str
    order: tuple[Any, ...] | Place = ()

    def before(self, other: Place) -> bool:
        if self.step != other.step or self.cause != other.cause:
            return self.step < other.step
        if isinstance(self.order, Place) and isinstance(other.order, Place):
            return self.order.before(other.order)
        return self.order < other.order  # type: ignore[operator]


@dataclass
class Lease:
    token: str
    consumer: str
    claim_token: str | None
    started: bool
    expires_ms: int


@dataclass
class Message:
    id: str
    draft: Draft
    queue: Queue
    home: Queue
    where: str
    place: Place | None
    due_ms: int = 0
    expires_ms: int = 0
    attempts: int = 0
    deliveries: int = 0
    failures: int = 0
    reason: str | None = None
    progress: int = 0
    dead_since: int | None = None
    done_at: int | None = None
    lease: Lease | None = None
    live_dedup: bool = False

    @property
    def lane(self) -> tuple[str, tuple[str, ...]]:
        """Dead letters are all in one lane."""
        return ("default", ()) if self.queue.source else (self.draft.key, self.draft.throttle_keys)


@dataclass(eq=False)
class Queue:
    name: str
    options: Options
    source: Queue | None = None
    dead_letters: Queue | None = None
    paused: bool = False
    #: dedup key -> (first id, end of its window; 0 while it is live)
    remembered: dict[str, tuple[str, int]] = field(default_factory=dict)


class Specification:
    def __init__(self, now_ms: int) -> None:
        #: The time by which everything is due. No step of the wall clock moves it; times are shown by the
        #: wall clock.
        self.now_ms = now_ms
        self.wall_ahead_ms = 0
        self.queues: dict[str, Queue] = {}
        self.messages: dict[str, Message] = {}
        self.gone: set[str] = set()
        self.tokens: set[str] = set()
        #: Throttle keys with a bucket: a lane that needs one may be held back.
        self.buckets: set[str] = set()
        self._step = 0

    # Queues

    def create(self, name: str, options: Options) -> None:
        queue = self.queues[name] = Queue(name, options)
        queue.dead_letters = self.queues[name + ".dlq"] = Queue(name + ".dlq", Options(), source=queue)

    def update(self, name: str, options: Options) -> None:
        """Counts for what happens from now on; what is under way keeps its lease, its time to live and its
        window.
        """
        self.queues[name].options = options

    def delete(self, name: str) -> None:
        queue = self.queues.pop(name)
        dead = self.queues.pop(name + ".dlq")
        for message in [m for m in self.messages.values() if m.queue in (queue, dead)]:
            self._gone(message)

    def purge(self, name: str) -> int:
        purged = [m for m in self.inside(name) if m.where in (READY, WAITING)]
        for message in purged:
            self._gone(message)
        return len(purged)

    def pruned(self, name: str, age_ms: int) -> set[str]:
        """What has been done for so long goes."""
        old = [
            m for m in self.inside(name, DONE) if m.done_at is not None and m.done_at <= self.now_ms - age_ms
        ]
        for message in old:
            self._gone(message)
        return {message.id for message in old}

    def inside(self, name: str, where: str | None = None) -> list[Message]:
        queue = self.queues[name]
        return [m for m in self.messages.values() if m.queue is queue and where in (None, m.where)]

    # Enqueue

    def enqueued(self, name: str, drafts: Sequence[Draft], ids: Sequence[str]) -> None:
        queue = self.queues[name]
        self._step += 1
        must(len(ids) == len(drafts), "one id per message")
        for index, (draft, message_id) in enumerate(zip(drafts, ids, strict=True)):
            twin = self._twin(queue, draft)
            if twin is not None:
                must(message_id == twin, f"{draft.dedup_key!r} must answer its first id {twin}")
                continue
            must(
                message_id not in self.messages and message_id not in self.gone,
                f"{message_id} is not a new id",
            )
            ttl_ms = draft.ttl_ms or queue.options.ttl_ms
            message = Message(message_id, draft, queue, queue, READY, Place(self._step, "enqueue", (index,)))
            message.expires_ms = self.now_ms + ttl_ms if ttl_ms else 0
            if draft.delay_ms:
                message.where, message.place, message.due_ms = WAITING, None, self.now_ms + draft.delay_ms
            self.messages[message_id] = message
            if draft.dedup_key is not None:
                window_ms = queue.options.dedup_window_ms
                queue.remembered[draft.dedup_key] = (message_id, self.now_ms + window_ms if window_ms else 0)
                message.live_dedup = not window_ms

    def quarantined(self, name: str, drafts: Sequence[Draft], ids: Sequence[str], reason: str) -> None:
        queue = self.queues[name]
        assert queue.dead_letters is not None
        self._step += 1
        for index, (draft, message_id) in enumerate(zip(drafts, ids, strict=True)):
            must(
                message_id not in self.messages and message_id not in self.gone,
                f"{message_id} is not a new id",
            )
            place = Place(self._step, "quarantine", (index,))
            message = Message(
                message_id,
                draft,
                queue.dead_letters,
                queue,
                READY,
                place,
                reason=reason,
                failures=1,
                dead_since=self.now_ms,
            )
            self.messages[message_id] = message

    def fits(self, name: str, drafts: Sequence[Draft]) -> bool:
        """Twins take no room, and neither does the second of two that share a key in one batch."""
        queue = self.queues[name]
        fresh = [d for d in drafts if self._twin(queue, d) is None]
        keys = {d.dedup_key for d in fresh if d.dedup_key is not None}
        count = len(keys) + sum(d.dedup_key is None for d in fresh)
        live = sum(m.where != DONE for m in self.inside(name))
        return not queue.options.max_messages or live + count <= queue.options.max_messages or not count

    def _twin(self, queue: Queue, draft: Draft) -> str | None:
        first, until_ms = (
            queue.remembered.get(draft.dedup_key or "", ("", -1)) if draft.dedup_key is not None else ("", -1)
        )
        return first if until_ms == 0 or until_ms > self.now_ms else None

    # Claim

    def claimed(
        self,
        names: Sequence[str],
        limit: int,
        consumer: str,
        claim_token: str | None,
        started: bool,
        deliveries: Sequence[Any],
    ) -> None:
        repeated = {m.id for m in self.held_under(claim_token)} if claim_token else set()
        if repeated:
            must(
                {d.id for d in deliveries} == repeated,
                "a repeated claim answers what is still leased under its token",
            )
            for d in deliveries:
                lease = self.messages[d.id].lease
                must(lease is not None and lease.token == d.lease, "a repeated claim keeps its lease tokens")
            return
        must(len(deliveries) <= limit, f"{len(deliveries)} deliveries for a limit of {limit}")
        fresh = {d.lease for d in deliveries}
        must(not fresh & self.tokens, "a lease token is never used again")
        self.tokens |= fresh
        for d in deliveries:
            lease_ms = self.queues[d.queue].options.visibility_ms
            self._hand_out(d, names, Lease(d.lease, consumer, claim_token, started, self.now_ms + lease_ms))
        if len(deliveries) < limit:
            left = [
                m.id
                for name in names
                for m in self._claimable(self.queues[name], consumer)
                if not self.buckets & set(m.lane[1])
            ]
            must(not left, f"{left} could have been claimed as well")

    def held_under(self, claim_token: str | None) -> list[Message]:
        return [
            m for m in self.messages.values() if m.lease is not None and m.lease.claim_token == claim_token
        ]

    def _claimable(self, queue: Queue, consumer: str) -> list[Message]:
        if queue.paused or not self._has_room_for(queue, consumer):
            return []
        return [m for m in self.inside(queue.name, READY) if self._key_has_room(m)]

    def _has_room_for(self, queue: Queue, consumer: str) -> bool:
        limit = queue.options.max_unsettled_per_consumer
        return (
            not limit
            or sum(m.lease is not None and m.lease.consumer == consumer for m in self.inside(queue.name))
            < limit
        )

    def _key_has_room(self, message: Message) -> bool:
        limit = message.queue.options.max_unsettled_per_key
        held = sum(m.lane[0] == message.lane[0] for m in self.inside(message.queue.name, LEASED))
        return not limit or held < limit

    def _hand_out(self, d: Any, names: Sequence[str], lease: Lease) -> None:
        message = self.messages.get(d.id)
        must(message is not None, f"{d.id} was delivered but does not exist")
        assert message is not None
        must(message.queue.name in names, f"{d.id} is in {message.queue.name}, which was not asked for")
        must(
            message in self._claimable(message.queue, lease.consumer),
            f"{d.id} is {message.where} and not claimable",
        )
        for other in self.inside(message.queue.name, READY):
            must(
                other.lane != message.lane or not _place(other).before(_place(message)),
                f"{other.id} is ahead of {d.id} in its lane",
            )
        message.deliveries += 1
        draft = message.draft
        told = (
            d.queue,
            d.payload,
            dict(d.headers),
            d.fairness_key,
            d.weight,
            d.throttle_keys,
            d.attempts,
            d.deliveries,
            d.progress,
            d.dead_since,
        )
        meant = (
            message.queue.name,
            draft.payload,
            dict(draft.headers),
            draft.key,
            draft.corrected_weight,
            draft.throttle_keys,
            message.attempts,
            message.deliveries,
            message.progress,
            self.shown(message.dead_since),
        )
        must(told == meant, f"{d.id} was delivered as {told}, it is {meant}")
        expires_ms = self.shown(self.now_ms + message.queue.options.visibility_ms)
        must(d.lease_until == expires_ms, f"the lease of {d.id} ends at {d.lease_until}, not at {expires_ms}")
        message.where, message.lease = LEASED, lease

    # Settle

    def settle(self, items: Sequence[Said]) -> list[str]:
        """The outcome each item must get. The second word about one delivery in a batch comes too late."""
        self._step += 1
        over: set[str] = set()
        outcomes = []
        for index, item in enumerate(items):
            message = self.messages.get(item.id)
            if item.id in over:
                outcomes.append("lost_lease")
            elif message is None or message.where == DONE:
                outcomes.append("not_found")
            elif message.lease is None or item.token != message.lease.token:
                outcomes.append("lost_lease")
            else:
                outcomes.append(self._settle(message, message.lease, item, index))
                if message.lease is None or message.id in self.gone:
                    over.add(item.id)
        self._drop_the_outlived()
        return outcomes

    def settle_current(self, name: str, item: Said) -> str:
        """Without a token it acts on whatever lease there is, in the queue that was named."""
        message = self.messages.get(item.id)
        if message is None or message.lease is None or message.queue.name != name:
            return "not_found"
        return self.settle([replace(item, token=message.lease.token)])[0]

    def _settle(self, message: Message, lease: Lease, item: Said, index: int) -> str:
        if item.verb == "complete":
            self._complete(message)
            return "completed"
        if item.verb == "start":
            lease.started = True
            return "started"
        if item.verb == "extend":
            lease_ms = item.duration_ms or message.queue.options.visibility_ms
            lease.expires_ms = self.now_ms + lease_ms
            message.progress |= item.progress
            return "extended"
        if item.verb == "release" or message.queue.source is not None:
            return self._release(message, "settle", (index,))
        message.progress |= item.progress
        return self._fail(message, item.reason, item.retry_in_ms, item.dead, "settle", (index,))

    def _complete(self, message: Message) -> None:
        options = message.queue.options
        if not options.retain_completed_ms:
            self._gone(message)
            return
        if options.dedup_window_ms or not options.dedup_kept:
            self._forget_twin(message)
        message.where, message.place, message.lease, message.done_at = DONE, None, None, self.now_ms
        message.due_ms = message.expires_ms = 0

    def goodbye(self, consumer: str) -> int:
        held = [m for m in self.messages.values() if m.lease is not None and m.lease.consumer == consumer]
        self._step += 1
        for message in held:
            self._release(message, "goodbye", ())
        self._drop_the_outlived()
        return len(held)

    def _release(self, message: Message, cause: str, order: tuple[Any, ...] | Place) -> str:
        ceiling = message.queue.options.max_deliveries
        if ceiling and message.deliveries >= ceiling and message.queue.source is None:
            message.progress |= FAILED
            message.reason = "unknown"
            message.failures += 1
            return self._bury(message, cause, order)
        message.where, message.lease = READY, None
        return self._outlived(message) or "released"

    def _fail(
        self,
        message: Message,
        reason: str,
        retry_in_ms: int | None,
        dead: bool,
        cause: str,
        order: tuple[Any, ...] | Place,
    ) -> str:
        options = message.queue.options
        message.attempts += 1
        message.reason = reason
        message.failures += 1
        message.progress |= FAILED
        if options.max_attempts and message.attempts >= options.max_attempts:
            # The ceiling is what poison is: the message had every chance.
            message.reason = "poison_message"
            return self._bury(message, cause, order)
        out_of_tries = options.retry == "none" or (
            options.retry_attempts is not None and message.attempts >= options.retry_attempts
        )
        if dead or (retry_in_ms is None and out_of_tries):
            return self._bury(message, cause, order)
        message.lease = None
        if retry_in_ms:
            message.where, message.place, message.due_ms = WAITING, None, self.now_ms + retry_in_ms
        else:
            message.where, message.place = READY, Place(self._step, cause, order)
        return self._outlived(message) or "retry"

    def _outlived(self, message: Message) -> str:
        """What becomes of a message that comes back too late; it goes with the others that have outlived
        their time.
        """
        if not message.expires_ms or message.expires_ms > self.now_ms:
            return ""
        return "dead" if message.queue.options.expired_to_dead else "expired"

    def _bury(self, message: Message, cause: str, order: tuple[Any, ...] | Place) -> str:
        """Dead: neither its time to live nor its dedup key counts any more."""
        assert message.queue.dead_letters is not None
        self._forget_twin(message)
        message.queue, message.where, message.lease = message.queue.dead_letters, READY, None
        message.place, message.dead_since = Place(self._step, "bury " + cause, order), self.now_ms
        message.due_ms = message.expires_ms = message.deliveries = 0
        return "dead"

    # Time

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self._notice_the_time()

    def set_the_clock(self, ms: int) -> None:
        """Nothing is due earlier or later for it."""
        self.wall_ahead_ms += ms

    def shown(self, at_ms: int | None) -> int | None:
        return at_ms + self.wall_ahead_ms if at_ms else None

    def _notice_the_time(self) -> None:
        self._step += 1
        for message in list(self.messages.values()):
            if message.lease is not None and message.lease.expires_ms <= self.now_ms:
                # What expires together comes back in the order it had.
                if message.lease.started and message.queue.source is None:
                    self._fail(message, "timeout_exceeded", None, False, "expiry", _place(message))
                else:
                    self._release(message, "expiry", _place(message))
            elif message.where == WAITING and message.due_ms <= self.now_ms:
                message.where, message.place, message.due_ms = (
                    READY,
                    Place(self._step, "due", (message.due_ms, message.id)),
                    0,
                )
        for queue in self.queues.values():
            queue.remembered = {
                key: (first, until)
                for key, (first, until) in queue.remembered.items()
                if not 0 < until <= self.now_ms
            }
        self._drop_the_outlived()

    def run_due(self) -> None:
        """What a timer does when no time has passed but a rule has changed."""
        self._drop_the_outlived()
        self._drop_the_long_dead()
        for message in [m for m in self.messages.values() if m.done_at is not None]:
            kept_ms = message.queue.options.retain_completed_ms
            if not kept_ms or (message.done_at is not None and message.done_at + kept_ms <= self.now_ms):
                self._gone(message)

    def _drop_the_outlived(self) -> None:
        for message in [
            m
            for m in self.messages.values()
            if m.expires_ms and m.expires_ms <= self.now_ms and m.where != LEASED
        ]:
            if message.queue.options.expired_to_dead:
                message.reason = "unknown"
                message.failures += 1
                self._bury(message, "outlived", ())
            else:
                self._gone(message)

    def _drop_the_long_dead(self) -> None:
        for message in [m for m in self.messages.values() if m.dead_since is not None and m.where != LEASED]:
            retention_ms = message.home.options.dead_retention_ms
            if (
                retention_ms
                and message.dead_since is not None
                and message.dead_since + retention_ms <= self.now_ms
            ):
                self._gone(message)

    # Dead letters

    def matching(self, name: str, chosen: Callable[[Message], bool]) -> list[Message]:
        """What a redrive would move: dead letters that nobody holds."""
        return [m for m in self.inside(name, READY) if chosen(m)]

    def redriven(
        self,
        name: str,
        chosen: Callable[[Message], bool],
        count: int | None,
        moved: set[str],
        *,
        clear_progress: bool,
    ) -> None:
        """These were moved, longest dead first: their count starts anew, at the tail of their own lane."""
        matching = self.matching(name, chosen)
        picked = [m for m in matching if m.id in moved]
        must(len(picked) == len(moved), "only what matches is moved")
        must(
            len(picked) == min(len(matching), len(matching) if count is None else count),
            "as many as asked for are moved",
        )
        left = [m for m in matching if m.id not in moved]
        must(not any(_place(m).before(_place(p)) for m in left for p in picked), "the longest dead go first")
        self._step += 1
        for message in picked:
            message.queue, message.place = message.home, Place(self._step, "redrive", _place(message))
            message.attempts, message.deliveries, message.dead_since, message.reason = 0, 0, None, None
            if clear_progress:
                message.progress = 0

    def _gone(self, message: Message) -> None:
        del self.messages[message.id]
        self.gone.add(message.id)
        self._forget_twin(message)

    def _forget_twin(self, message: Message) -> None:
        if message.live_dedup:
            message.live_dedup = False
            del message.home.remembered[message.draft.dedup_key or ""]


def fifo_holds(messages: Iterable[Message]) -> bool:
    """Of the messages in this order, none comes behind one that is after it in the same lane."""
    seen: list[Message] = []
    for message in messages:
        if any(m.lane == message.lane and _place(message).before(_place(m)) for m in seen):
            return False
        seen.append(message)
    return True


def must(holds: bool, what: str) -> None:
    if not holds:
        raise Illegal(what)


def _place(message: Message) -> Place:
    assert message.place is not None
    return message.place
