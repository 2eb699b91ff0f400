"""How one message moves on: what a release, a retry, a burial or a drop writes, and what memory must do
afterwards.

`Moves` collects the facts of one commit. `commit` writes them and then brings the lease book, the schedulers,
the body cache and the waiting claims in line, so that no caller can forget one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fairlead.broker.core import Core
from fairlead.broker.queue_state import QueueState
from fairlead.broker.room import is_low, moved_bytes
from fairlead.broker.streams import StreamDrafts
from fairlead.decide.failure_breaker import put_off
from fairlead.decide.ordering import Standing
from fairlead.decide.release import after_release
from fairlead.decide.retry import Bury, Failure, HookAnswer, RetryAt, after_failure
from fairlead.errors import BrokenInvariant
from fairlead.model.facts import (
    Cause,
    Completed,
    Enqueued,
    Extended,
    Fact,
    InDone,
    InLease,
    InReady,
    InStream,
    InWaiting,
    Moved,
    Recounted,
    Spot,
    Started,
    TtlForgotten,
    spot_lane,
    spot_queue_id,
    spot_row,
)
from fairlead.model.failure import FailureReason, FailureRecord, Progress, short_error
from fairlead.model.lane import (
    DEAD_LETTER_LANE,
    ROW_BYTES,
    Flag,
    lane_key,
    move_row,
    pack_row,
    row_flags,
    row_id,
    row_place,
    row_stream,
)
from fairlead.model.lease import Lease
from fairlead.model.message import HELD, Message, MessageState, seq_of, with_failure
from fairlead.model.stream import StreamRow

_SIDE_ROWS = Flag.TTL | Flag.LIVE_DEDUP


class Moves:
    """Used under the engine lock, for one commit."""

    def __init__(self, core: Core, now_ms: int, cause: Cause = "", *, grows: bool = False) -> None:
        """`grows`: the commit stops at the disk reserve."""
        self.core = core
        self._grows = grows
        #: Whether the disk is below its reserve; None until a failure asks.
        self._low: bool | None = None
        self.now_ms = now_ms
        self.cause = cause
        self.facts: list[Fact] = []
        self._places: Iterator[int] | None = None
        self._ended: list[Lease] = []
        self._completed: list[Lease] = []
        self._live_dedup: list[tuple[int, str]] = []
        self._returned: list[InReady] = []
        self._appended: list[InReady] = []
        self._removed: list[InReady] = []
        self._waiting: list[InWaiting] = []
        self._done: list[InDone] = []
        self._lives: list[tuple[int, int]] = []
        self._gone: list[bytes] = []
        self._changed: list[tuple[Lease, Lease, int]] = []
        self._switches: list[tuple[bytes, int, str, int]] = []
        self.streams = StreamDrafts(core)
        #: New messages that are fronts of their streams from the start: whoever enqueues them schedules them.
        self.straight: set[bytes] = set()

    # The moves

    def complete(self, lease: Lease) -> None:
        self._completed.append(lease)
        if len(lease.row) > ROW_BYTES or lease.row[26] & _SIDE_ROWS:
            self._complete_beside(lease)

    def _complete_beside(self, lease: Lease) -> None:
        """What a message has beside its own rows: a stream, a time to live, a dedup key."""
        flags = lease.row[26]
        if len(lease.row) > ROW_BYTES:
            self._leave_stream(InLease(lease))
        if flags & _SIDE_ROWS:
            expires_ms, dedup = self._side_rows(lease.id, flags)
            if expires_ms:
                self.facts.append(TtlForgotten(lease.queue_id, expires_ms, lease.id))
            if dedup is not None:
                self._live_dedup.append(dedup)

    def complete_all(self, leases: Sequence[Lease]) -> None:
        """`complete` for thousands, most of which have nothing beside their message."""
        self._completed += leases
        special = [lease for lease in leases if len(lease.row) > ROW_BYTES or lease.row[26] & _SIDE_ROWS]
        self.load_streams(special)
        for lease in special:
            self._complete_beside(lease)

    def load_streams(self, leases: Sequence[Lease]) -> None:
        """One read for the streams of many that are about to move."""
        streams: dict[int, list[str]] = {}
        for lease in leases:
            if len(lease.row) > ROW_BYTES:
                streams.setdefault(lease.queue_id, []).append(row_stream(lease.row))
        for queue_id, names in streams.items():
            self.streams.load(queue_id, names)

    def retain(self, source: Spot, state: MessageState | None, queue: QueueState, progress: int = 0) -> None:
        """Completed, in a queue that keeps what is: out of its stream and its time to live, and no longer to
        be handed out.
        """
        row = spot_row(source)
        known = state or MessageState(queue.queue_id)
        expires_ms, dedup = self._side_rows(row_id(row), row_flags(row))
        flags = Flag.STATE
        if dedup is not None and queue.config.dedup_kept:
            dedup, flags = None, flags | Flag.LIVE_DEDUP
        target = InDone(queue.queue_id, self.now_ms, spot_lane(source), move_row(row[:ROW_BYTES], 0, flags))
        done = msgspec.structs.replace(
            known,
            queue_id=queue.queue_id,
            place=0,
            due_ms=0,
            done_ms=self.now_ms,
            deliveries=source.lease.deliveries if isinstance(source, InLease) else known.deliveries,
            progress=known.progress | progress,
        )
        self._move("completed", source, target, done, expires_ms, dedup)
        self._done.append(target)
        self._gone.append(row_id(row))

    def release(
        self, lease: Lease, state: MessageState | None, *, keep_order: bool = True, counts: bool = True
    ) -> tuple[str, str]:
        """Back to its old place. Returns ("released", rule), or ("dead", rule) when it was handed out too
        often.

        In a stream, without `keep_order`, it says: go on without the earlier ones that wait. Without `counts`
        it was not handed out.
        """
        deliveries = lease.deliveries if counts else lease.deliveries - 1
        queue = self.core.by_id[lease.queue_id]
        in_stream = len(lease.row) > ROW_BYTES
        decision = after_release(
            queue.config,
            deliveries,
            in_stream=in_stream,
            keep_order=keep_order,
            is_dead=queue.is_dead_letter_queue,
        )
        if isinstance(decision, Bury):
            self._bury_failed(
                lease,
                state,
                queue,
                decision,
                FailureReason.UNKNOWN,
                decision.why,
                0,
                state.attempts if state else 0,
            )
            return "dead", decision.rule
        place = row_place(lease.row)
        known = state or MessageState(lease.queue_id)
        kept = msgspec.structs.replace(
            known, queue_id=lease.queue_id, place=place, due_ms=0, deliveries=deliveries
        )
        row = move_row(lease.row, place, lease.row[26] | Flag.STATE)
        if self._is_over(lease):
            return self.expire(InLease(lease), kept, queue), "ttl"
        if in_stream:
            self._move("released", InLease(lease), InStream(lease.queue_id, lease.lane, row), kept)
        else:
            target = InReady(lease.queue_id, lease.lane, row)
            self._move("released", InLease(lease), target, kept)
            self._returned.append(target)
        if decision.asks_to_pass:
            self._switches.append((lease.id, lease.queue_id, row_stream(row), place))
        return "released", decision.rule

    def decide_switches(self) -> dict[bytes, str]:
        """Which releases let their message pass, by rule: known only when all that failed in the same batch
        is.
        """
        return {
            message_id: self.streams.get(queue_id, stream).let_pass(seq)
            for message_id, queue_id, stream, seq in self._switches
        }

    def fail(
        self,
        lease: Lease,
        state: MessageState | None,
        *,
        reason: FailureReason,
        error: str,
        progress: int = 0,
        retry_in_ms: int | None = None,
        dead: bool = False,
        hook: HookAnswer | None = None,
    ) -> tuple[str, str, int]:
        """The road from a failure to a decision. Returns (outcome, rule, due)."""
        queue = self.core.by_id[lease.queue_id]
        if queue.is_dead_letter_queue:
            return self.release(lease, state)[0], "dead_letter_queue", 0
        attempts = (state.attempts if state else 0) + 1
        failure = Failure(attempts, reason, len(lease.row) > ROW_BYTES, retry_in_ms, dead, hook)
        decision = after_failure(failure, queue.config, now_ms=self.now_ms, jitter=self.core.rng.random())
        decision = self._behind_breaker(queue, reason, decision)
        if isinstance(decision, Bury):
            self._bury_failed(
                lease, state, queue, decision, reason, error or decision.why, progress, attempts
            )
            return "dead", decision.rule, 0
        failed = self._failed_state(
            lease, state, reason, error, decision.rule, progress, attempts, decision.due_ms
        )
        if self._is_over(lease):
            return self.expire(InLease(lease), failed, queue), "ttl", 0
        self._retry(lease, failed, decision)
        return "retry", decision.rule, decision.due_ms

    def drop(self, source: Spot, kind: str = "dropped") -> None:
        """Gone for good."""
        row = spot_row(source)
        expires_ms, dedup = self._side_rows(row_id(row), row_flags(row))
        self._move(kind, source, None, None, expires_ms, dedup)
        self._gone.append(row_id(row))

    def become_due(self, waiting: InWaiting, state: MessageState | None) -> None:
        """A wait ends, by itself or by an operator: ready at the tail of its lane, or where its stream has
        it.
        """
        self._make_ready("due", waiting, state or MessageState(waiting.queue_id))

    def recount(self, message_id: bytes, state: MessageState, attempts: int) -> None:
        """Set the failure count of a message, wherever it is."""
        self.facts.append(Recounted(message_id, msgspec.structs.replace(state, attempts=attempts)))

    def hold(self, source: Spot, state: MessageState) -> None:
        """Waiting without end, until an operator lets it go."""
        row, queue_id, lane = spot_row(source), spot_queue_id(source), spot_lane(source)
        target = InWaiting(queue_id, HELD, lane, move_row(row, 0, row_flags(row) | Flag.STATE))
        deliveries = source.lease.deliveries if isinstance(source, InLease) else state.deliveries
        self._move(
            "held",
            source,
            target,
            msgspec.structs.replace(state, queue_id=queue_id, place=0, due_ms=HELD, deliveries=deliveries),
        )

    def places(self) -> Iterator[int]:
        """The places of this commit, for others who write into it."""
        if self._places is None:
            self._places = self.core.places()
        return self._places

    def bury(self, source: Spot, state: MessageState, queue: QueueState) -> None:
        """Into the dead letters of `queue`; `state` says why."""
        row, place, dlq_id = spot_row(source), self._place(), queue.record.dlq_id
        expires_ms, dedup = self._side_rows(row_id(row), row_flags(row))
        # Dead letters are in no order but that of their deaths.
        target = InReady(dlq_id, DEAD_LETTER_LANE, move_row(row[:ROW_BYTES], place, Flag.STATE))
        dead = msgspec.structs.replace(
            state,
            queue_id=dlq_id,
            place=place,
            due_ms=0,
            deliveries=0,
            source_queue_id=queue.queue_id,
            dead_since_ms=self.now_ms,
            seq=0,
        )
        self._move("buried", source, target, dead, expires_ms, dedup)
        self._appended.append(target)

    def redrive(
        self,
        source: InReady,
        state: MessageState,
        message: Message,
        queue: QueueState,
        *,
        clear_progress: bool,
        lane: bytes = b"",
        weight: int = 0,
    ) -> None:
        """A dead letter takes a new place at the tail of its lane and its stream in the source queue, with a
        new life.

        `lane` and `weight` are what the `on_enqueue` hook said, if the queue has one.
        """
        own_lane, own_weight, place, lane = lane, weight, self._place(), lane or message.lane
        in_stream = bool(message.stream) and queue.config.ordering != "none"
        if in_stream and (bound := self.streams.bound_lane(queue.queue_id, message.stream, lane)) != lane:
            own_lane = lane = bound
        row = pack_row(place, message.id, weight or message.weight, Flag.STATE, message.size) + (
            message.stream.encode() if in_stream else b""
        )
        alive = MessageState(
            queue.queue_id,
            place,
            progress=0 if clear_progress else state.progress,
            carry=b"" if clear_progress else state.carry,
            failures=state.failures,
            failures_cut=state.failures_cut,
            redrives=state.redrives + 1,
            seq=place if in_stream else 0,
            lane=own_lane,
            weight=own_weight,
        )
        if in_stream:
            self._move("redriven", source, InStream(queue.queue_id, lane, row), alive)
            self.streams.join(queue.queue_id, StreamRow(lane, row), Standing.READY)
        else:
            target = InReady(queue.queue_id, lane, row)
            self._move("redriven", source, target, alive)
            self._appended.append(target)

    def change_lease(self, held: Lease, changed: Lease, deadline_ms: int) -> None:
        """The message stays where it is; its lease is extended, started or knows of a state. `held` changes
        with the commit.
        """
        self._changed.append((held, changed, deadline_ms))

    # The commit

    def commit(self) -> None:
        """Write all moves as one commit, then announce them. Nothing to do is no commit."""
        core = self.core
        facts = self.facts
        if self._completed:
            facts.append(Completed(self._completed, self._live_dedup))
            self._ended += self._completed
            self._gone += [lease.row[8:24] for lease in self._completed]
        if self._changed:
            self._add_changes()
        if self._ended or self._changed:
            moved_on = [
                (held, changed) for held, changed, _ in self._changed if held.expires_ms != changed.expires_ms
            ]
            facts.extend(
                core.leases.ended_by(
                    self._ended + [held for held, _ in moved_on], [changed for _, changed in moved_on]
                )
            )
        self._add_stream_facts()
        if not facts:
            return
        if self._grows:
            core.store.check_room(moved_bytes(facts))
        core.commit(facts)
        self._announce()

    def _add_stream_facts(self) -> None:
        """A new message that is the front of its stream goes to the ready rows straight away, not by way of
        its stream.
        """
        stream_facts = self.streams.finish()
        if not stream_facts:
            return
        fronts = {row_id(spot.row) for spot in self.streams.promoted}
        straight = self.straight
        for at, fact in enumerate(self.facts):
            if type(fact) is Enqueued and not fronts.isdisjoint(fact.behind):
                straight |= fact.behind & fronts
                self.facts[at] = Enqueued(fact.queue_id, fact.messages, fact.behind - fronts)
        self.facts += [
            fact
            for fact in stream_facts
            if not (type(fact) is Moved and fact.kind == "promoted" and fact.id in straight)
        ]

    def _add_changes(self) -> None:
        extended: dict[tuple[int, int], list[Lease]] = {}
        started: list[Lease] = []
        for held, changed, _ in self._changed:
            if held.expires_ms == changed.expires_ms:
                started.append(changed)
            else:
                extended.setdefault((changed.claim_id, changed.expires_ms), []).append(changed)
        for (claim_id, expires_ms), leases in extended.items():
            renewed = msgspec.structs.replace(
                self.core.leases.claim(claim_id), granted_ms=self.now_ms, lease_ms=expires_ms - self.now_ms
            )
            self.facts.append(Extended(renewed, leases))
        if started:
            self.facts.append(Started(started))

    def _announce(self) -> None:
        core = self.core
        for held, changed, deadline_ms in self._changed:
            held.started, held.row = changed.started, changed.row
            core.leases.extend(held, changed.expires_ms, deadline_ms)
        queues = core.by_id
        if self._ended:
            core.leases.remove(self._ended)
        core.bodies.drop(self._gone)
        for spot in self._removed + self.streams.demoted:
            if spot.queue_id in queues:
                queues[spot.queue_id].scheduler.remove(spot.lane, spot.row)
        self._give_back(self._returned)
        for spot in self._appended:
            queue = queues[spot.queue_id]
            queue.scheduler.add(spot.lane, spot.row)
            queue.wake_waiters(1)
            if queue.is_dead_letter_queue:
                core.note_dead_letter(queue, self.now_ms)
        for queue_id in {lease.queue_id for lease in self._ended}:
            self._make_room(queue_id)
        promoted = [spot for spot in self.streams.promoted if row_id(spot.row) not in self.straight]
        self._give_back(sorted(promoted, key=lambda spot: spot.row))
        for queue_id, expires_ms in self._lives:
            queues[queue_id].next_expiry_ms = min(queues[queue_id].next_expiry_ms, expires_ms)
            core.wake_timer(expires_ms)
        for done in self._done:
            queue = queues[done.queue_id]
            queue.next_done_ms = min(queue.next_done_ms, done.done_ms + queue.config.retain_completed_ms)
            core.wake_timer(queue.next_done_ms)
        for waiting in self._waiting:
            queues[waiting.queue_id].next_due_ms = min(queues[waiting.queue_id].next_due_ms, waiting.due_ms)
            core.wake_timer(waiting.due_ms)

    def _give_back(self, spots: Sequence[InReady]) -> None:
        for spot in spots:
            queue = self.core.by_id.get(spot.queue_id)
            if queue is None:
                continue
            queue.scheduler.give_back(spot.lane, spot.row)
            queue.wake_waiters(1)
            if queue.is_dead_letter_queue:
                # It may have outlived its retention while it was leased: an instant long past makes the timer
                # look at once.
                self.core.note_dead_letter(queue, 0)

    def _make_room(self, queue_id: int) -> None:
        """Where unsettled messages are limited, each one that ended lets another go out."""
        queue = self.core.by_id.get(queue_id)
        if queue is None or not (
            queue.config.max_unsettled_per_key or queue.config.max_unsettled_per_consumer
        ):
            return
        ended = sorted(
            [lease for lease in self._ended if lease.queue_id == queue_id], key=lambda lease: lease.row
        )
        if queue.config.max_unsettled_per_key:
            for lease in ended:
                queue.scheduler.settled(lane_key(lease.lane))
        queue.wake_waiters(len(ended))

    # Details

    def _retry(self, lease: Lease, failed: MessageState, decision: RetryAt) -> None:
        flags = lease.row[26] | Flag.STATE
        if decision.due_ms > self.now_ms:
            waiting = InWaiting(lease.queue_id, decision.due_ms, lease.lane, move_row(lease.row, 0, flags))
            self._move(
                "delayed", InLease(lease), waiting, msgspec.structs.replace(failed, due_ms=decision.due_ms)
            )
            self._waiting.append(waiting)
        else:
            self._make_ready("retried", InLease(lease), failed)

    def _make_ready(self, kind: str, source: Spot, state: MessageState) -> None:
        """A new place at the tail of its lane; a message of a stream keeps its seq and stands where that puts
        it.
        """
        row, queue_id, lane = spot_row(source), spot_queue_id(source), spot_lane(source)
        flags = row_flags(row) | Flag.STATE
        if len(row) > ROW_BYTES:
            place = self._seq(source)
            self._move(
                kind,
                source,
                InStream(queue_id, lane, move_row(row, place, flags)),
                msgspec.structs.replace(state, place=place, due_ms=0),
            )
        else:
            place = self._place()
            target = InReady(queue_id, lane, move_row(row, place, flags))
            self._move(kind, source, target, msgspec.structs.replace(state, place=place, due_ms=0))
            self._appended.append(target)

    def _behind_breaker(
        self, queue: QueueState, reason: FailureReason, decision: RetryAt | Bury
    ) -> RetryAt | Bury:
        """Every failure counts for the queue's failure breaker, also one that ends in a death."""
        settings = queue.config.failure_breaker
        if not settings.failures:
            return decision
        earliest_ms = self.core.breaker(queue.queue_id, reason).after_failure(settings, self.now_ms)
        return put_off(decision, earliest_ms, self.now_ms)

    def _bury_failed(
        self,
        lease: Lease,
        state: MessageState | None,
        queue: QueueState,
        decision: Bury,
        reason: FailureReason,
        error: str,
        progress: int,
        attempts: int,
    ) -> None:
        failed = self._failed_state(lease, state, reason, error, decision.rule, progress, attempts, 0)
        if decision.reason is not None:
            # The record of the last try keeps its own reason.
            failed = msgspec.structs.replace(failed, reason=int(decision.reason))
        self.bury(InLease(lease), failed, queue)

    def _failed_state(
        self,
        lease: Lease,
        state: MessageState | None,
        reason: FailureReason,
        error: str,
        rule: str,
        progress: int,
        attempts: int,
        due_ms: int,
    ) -> MessageState:
        known = state or MessageState(lease.queue_id)
        if self._low is None:
            self._low = is_low(self.core)
        if self._low:
            error = short_error(error)
        record = FailureRecord(self.now_ms, attempts, int(reason), error, lease.consumer, rule, due_ms)
        return with_failure(
            known,
            record,
            queue_id=lease.queue_id,
            place=0,
            due_ms=0,
            attempts=attempts,
            deliveries=lease.deliveries,
            progress=known.progress | progress | Progress.FAILED,
        )

    def _is_over(self, lease: Lease) -> bool:
        """Did its time to live end while it was leased?"""
        return 0 < self._expires_ms(lease.row) <= self.now_ms

    def _expires_ms(self, row: bytes) -> int:
        """When the life of a message ends that comes back from a lease; 0 is never.

        While it was leased its time-to-live row may have been forgotten, so the move that brings it back
        writes it anew: after a restart the store's time may be some seconds earlier, and then its life must
        end again.
        """
        if not row_flags(row) & Flag.TTL:
            return 0
        message = self.core.message(row_id(row))
        return message.expires_ms if message is not None else 0

    def expire(self, source: Spot, state: MessageState | None, queue: QueueState) -> str:
        """Its time to live is over: dropped with a fact ("expired"), or "dead" where the queue says so."""
        if not queue.config.expired_to_dead:
            self.drop(source, "expired")
            return "expired"
        known = state or MessageState(queue.queue_id)
        record = FailureRecord(
            self.now_ms, known.attempts, FailureReason.UNKNOWN, "its time to live ended", "", "ttl"
        )
        self.bury(source, with_failure(known, record), queue)
        return "dead"

    def _side_rows(self, message_id: bytes, flags: int) -> tuple[int, tuple[int, str] | None]:
        """The time-to-live and live dedup rows that end with the message, in the queue it was enqueued to."""
        if not flags & _SIDE_ROWS:
            return 0, None
        message = self.core.message(message_id)
        if message is None:
            return 0, None
        return message.expires_ms, (message.queue_id, message.dedup_key) if message.live_dedup else None

    def _move(
        self,
        kind: str,
        source: Spot,
        target: Spot | None,
        state: MessageState | None,
        expires_ms: int = 0,
        live_dedup: tuple[int, str] | None = None,
    ) -> None:
        if isinstance(source, InLease) and target is not None and row_flags(spot_row(target)) & Flag.TTL:
            expires_ms = self._expires_ms(source.lease.row)
        message_id = row_id(spot_row(source))
        moved = Moved(kind, message_id, source, target, state, expires_ms, live_dedup, self.cause)  # type: ignore[arg-type]
        self.facts.append(moved)
        if target is not None and expires_ms and row_flags(spot_row(target)) & Flag.TTL:
            self._lives.append((spot_queue_id(target), expires_ms))
        if isinstance(source, InLease):
            self._ended.append(source.lease)
        elif isinstance(source, InReady):
            self._removed.append(source)
        if len(spot_row(source)) > ROW_BYTES:
            if target is None or len(spot_row(target)) == ROW_BYTES:
                self._leave_stream(source)
            else:
                self._stand(
                    source,
                    spot_row(target),
                    Standing.WAITING if isinstance(target, InWaiting) else Standing.READY,
                )

    def _leave_stream(self, source: Spot) -> None:
        row = spot_row(source)
        if isinstance(source, InWaiting):
            row = move_row(row, self._seq(source), row_flags(row))
        self.streams.get(spot_queue_id(source), row_stream(row)).leave(StreamRow(spot_lane(source), row))

    def _stand(self, source: Spot, row: bytes, standing: Standing) -> None:
        draft = self.streams.get(spot_queue_id(source), row_stream(row))
        draft.move(StreamRow(spot_lane(source), move_row(row, self._seq(source), row_flags(row))), standing)

    def _seq(self, source: Spot) -> int:
        """The seq of a message of a stream; a waiting one has it in its record only."""
        row = spot_row(source)
        if not isinstance(source, InWaiting):
            return row_place(row)
        state, message = self.core.store.states([row_id(row)])[0], self.core.message(row_id(row))
        if message is None:
            raise BrokenInvariant(f"expected the waiting message {row_id(row).hex()} to be stored")
        return seq_of(message, state)

    def _place(self) -> int:
        return next(self.places())
