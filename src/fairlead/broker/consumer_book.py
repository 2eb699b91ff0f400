"""Durable consumers in memory: their records, when they end, and of the claim in hand what was read of it.
Rebuilt from the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fairlead.broker.consumer_words import load_words
from fairlead.broker.queue_state import NEVER_MS
from fairlead.clock import Clock
from fairlead.decide.claim_outcomes import ClaimOutcomes
from fairlead.decide.numbered_claims import (
    check_generation,
    check_opened,
    expires_ms,
    lose_queue,
    why_in_claim,
)
from fairlead.engine.store_time import StoreTime
from fairlead.errors import ConsumerNotFound
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.facts import ConsumerDropped, ConsumerSaved, Fact, NumberedClaimForgotten
from fairlead.model.lease import Lease
from fairlead.model.names import Scoped
from fairlead.store.port import Store

_MOST_NUMBERED = 256


class ConsumerState:
    """`deadline_ms` is monotonic: a step of the wall clock ends no consumer of this process."""

    __slots__ = ("_slices", "deadline_ms", "members", "record", "words")

    def __init__(self, record: ConsumerRecord, deadline_ms: int) -> None:
        self.record = record
        self.deadline_ms = deadline_ms
        self.members: list[bytes] | None = None
        self.words: ClaimOutcomes | None = None
        self._slices: tuple[list[bytes] | None, int, bytearray] = (None, 0, bytearray())

    def load_members(self, store: Store) -> list[bytes]:
        if self.members is None:
            self.members = store.claim_members(self.record.key, self.record.number)
        return self.members

    def slice_numbers(self, slices: int) -> bytearray | None:
        """A byte for each member whose slice has been worked out, from the first on, or None for too many
        slices.

        Each reader looks through all members for its own: with eight of them that would be the most of the
        work.
        """
        if slices > _MOST_NUMBERED:
            return None
        if self._slices[0] is not self.members or self._slices[1] != slices:
            self._slices = self.members, slices, bytearray()
        return self._slices[2]

    def load_words(self, store: Store) -> ClaimOutcomes:
        """Kept up to date from then on, by whoever records; most claims are closed without anybody having
        asked before.
        """
        if self.words is None:
            self.words = load_words(store, self.record.key, self.record.number)
        return self.words


class ConsumerBook:
    """Used under the engine lock."""

    def __init__(self) -> None:
        self._states: dict[Scoped, ConsumerState] = {}
        #: By the claim in hand.
        self._holders: dict[int, ConsumerState] = {}
        #: Consumers whose steps a caller runs; the timer leaves them alone.
        self.foreground: Counter[Scoped] = Counter()

    def load(self, store: Store, time: StoreTime) -> None:
        """Anew from the store. Who is known keeps its deadline."""
        known, self._states, self._holders = self._states, {}, {}
        for record in store.consumers():
            before = known.get(record.key)
            if before is not None and before.record.seen_ms == record.seen_ms:
                deadline_ms = before.deadline_ms
            else:
                deadline_ms = time.to_steady(min(record.seen_ms, time.now_ms()) + record.ttl_ms)
            state = self._states[record.key] = ConsumerState(record, deadline_ms)
            if record.claim_id:
                self._holders[record.claim_id] = state

    # Asking

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ConsumerState]:
        return iter(sorted(self._states.values(), key=lambda state: state.record.key))

    def find(self, consumer: Scoped) -> ConsumerState | None:
        return self._states.get(consumer)

    def get(self, consumer: Scoped) -> ConsumerState:
        state = self._states.get(consumer)
        if state is None:
            raise ConsumerNotFound(consumer.name, consumer.queue)
        return state

    def current(self, consumer: Scoped, generation: int) -> ConsumerState:
        """The consumer, for one who holds its newest generation."""
        state = self.get(consumer)
        check_generation(state.record, generation)
        return state

    def opened(self, consumer: Scoped, generation: int, number: int) -> ConsumerState:
        """The consumer, whose claim in hand has this number and was answered."""
        state = self.get(consumer)
        check_opened(state.record, generation, number)
        return state

    def why_pinned(self, lease: Lease) -> str:
        """Why nobody else may move the message; "" when one may."""
        if not lease.pinned:
            return ""
        state = self._holders.get(lease.claim_id)
        if state is None:
            return f"in a claim of consumer {lease.consumer!r} that is ending with its queue"
        return why_in_claim(state.record)

    def lease_until(self, lease: Lease) -> int:
        """When the lease ends by itself: with its consumer, if it is pinned."""
        state = self._holders.get(lease.claim_id) if lease.pinned else None
        return lease.expires_ms if state is None else expires_ms(state.record)

    def next_end_ms(self) -> int:
        """When the first consumer that has a claim in hand has been away for too long (monotonic)."""
        return min(
            (state.deadline_ms for state in self._states.values() if state.record.in_hand), default=NEVER_MS
        )

    def ended(self, monotonic_ms: int) -> list[ConsumerState]:
        return [
            state
            for state in self._states.values()
            if state.record.in_hand and state.deadline_ms <= monotonic_ms
        ]

    def left_alone(self) -> Scoped | None:
        """A consumer with steps to do that nobody does."""
        return next(
            (
                key
                for key, state in self._states.items()
                if state.record.under_way and key not in self.foreground
            ),
            None,
        )

    # Changing, after the commit that says so

    def put(self, record: ConsumerRecord) -> ConsumerState:
        state = self._states.get(record.key)
        if state is None:
            state = self._states[record.key] = ConsumerState(record, NEVER_MS)
        self._holders.pop(state.record.claim_id, None)
        if record.claim_id:
            self._holders[record.claim_id] = state
        if record.number != state.record.number:
            state.members = state.words = None
        state.record = record
        return state

    def seen(self, state: ConsumerState, clock: Clock) -> None:
        state.deadline_ms = clock.monotonic_ms() + state.record.ttl_ms

    def remove(self, consumer: Scoped) -> None:
        state = self._states.pop(consumer)
        self._holders.pop(state.record.claim_id, None)

    def lose_queues(self, queue_ids: Sequence[int]) -> list[ConsumerRecord]:
        """The consumers of these queues as they are once the queues are deleted: what they had in hand is
        lost.
        """
        records = [
            state.record
            for state in self._states.values()
            if state.record.queue_id in queue_ids and state.record.phase != "idle"
        ]
        return [lose_queue(record) for record in records]

    def facts_of(self, lost: Sequence[ConsumerRecord]) -> list[Fact]:
        forgotten = [forgotten_claim(self._states[record.key].record) for record in lost]
        return [
            *[ConsumerDropped(record.key) if record.dropping else ConsumerSaved(record) for record in lost],
            *forgotten,
        ]

    def lost(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            if record.dropping:
                self.remove(record.key)
            else:
                self.put(record)


def forgotten_claim(record: ConsumerRecord) -> NumberedClaimForgotten:
    return NumberedClaimForgotten(record.key, record.number, record.pages, record.recorded)
