"""Watches every commit from outside the engine and says which promise it breaks.

The witness knows three things: the events of each commit, what the driver asked for in the call under way, and
the time. From them it keeps its own picture of every message and every stream. No message may move without a
cause: somebody asked for it in this call, a lease ran out, a time came, or a long operation is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fairlead import Complete, Extend, Fail, Release, Start
from fairlead.model.durations import to_ms
from fairlead.model.failure import FailureReason, read_reason
from fairlead.model.ids import show_id
from fairlead.model.message import HELD, MessageState
from fairlead.model.queue import QueueConfig, QueueRecord
from fairlead.store.rows import session_of_answer
from fairlead.testing import ManualClock
from fairlead.testing.sizes import read_size
from tests.simulation import events as e
from tests.simulation.picture import DONE, LEASED, READY, WAITING, BrokenPromise, Doing, Picture, Seen
from tests.simulation.random_hooks import RandomHooks
from tests.simulation.road import Try, road


class Witness:
    def __init__(self, clock: ManualClock, hooks: RandomHooks, let_by_limit: int) -> None:
        self.clock = clock
        self._began_ms = clock.now_ms() - clock.monotonic_ms()
        self.hooks = hooks
        self.now = Picture()
        self.doing = Doing("open")
        self._let_by_limit = let_by_limit
        self._synced = Picture()
        self._switched: list[Seen] = []
        self._before: dict[bytes, Seen] = {}

    # What the driver says

    def synced(self) -> None:
        self._synced = self.now.copy()

    def lost_power(self) -> None:
        self.now = self._synced.copy()

    def now_ms(self) -> int:
        """The store's time, which goes on over restarts and which no step of the wall clock moves."""
        return self._began_ms + self.clock.monotonic_ms()

    # What the store says

    def see(self, events: Iterable[Any]) -> None:
        self._switched = []
        self._before = dict(self.now.messages)
        for event in events:
            if isinstance(event, e.Leased):
                # An exchange settles before it claims, and may do both in one commit.
                self._switch_released()
            _HANDLERS[type(event)](self, event)
        self._switch_released()
        self._tidy_streams()

    def _switch_released(self) -> None:
        for seen in self._switched:
            self._switch(self.now.messages[seen.id])
        self._switched = []

    def _enqueued(self, fact: e.Enqueued) -> None:
        queue = self.now.queues[fact.queue_id]
        self.must(queue.name in self.doing.into, f"messages came into {queue.name!r} that nobody sent there")
        for message in fact.messages:
            self._new(message, fact.queue_id)

    def _new(self, message: e.NewMessage, queue_id: int) -> Seen:
        seq = message.seq
        self.must(
            message.id not in self.now.messages and message.id not in self.now.gone,
            f"{show_id(message.id)} is not a new id",
        )
        self.must(message.payload not in self.now.payloads, f"{message.payload!r} was enqueued twice")
        self.now.payloads[message.payload] = message.id
        seen = Seen(
            message.id,
            queue_id,
            WAITING if message.due_ms else READY,
            message.payload,
            message.throttles,
            message.stream,
            seq,
            message.due_ms,
            message.ttl_ms,
        )
        if seq:
            members = self.now.members(queue_id, seen.stream)
            self.must(
                not members or members[-1].seq < seq,
                f"{message.payload!r} did not join the tail of its stream",
            )
        return self._put(seen)

    def _quarantined(self, fact: e.Quarantined) -> None:
        self.must(self.doing.verb == "quarantine", "nobody asked for a quarantine")
        for message, state in zip(fact.messages, fact.states, strict=True):
            seen = self._new(message, fact.queue_id)
            self._put(
                seen._replace(
                    ttl_ms=0, failures=1, dead_since=state.dead_since_ms, source=state.source_queue_id
                )
            )
            self._check_record(seen._replace(failures=0), state)

    def _leased(self, fact: e.Leased) -> None:
        now_ms, monotonic_ms = self.now_ms(), self.clock.monotonic_ms()
        leases = fact.members
        taken = {lease.id for lease in leases}
        self.must(len(taken) == len(leases), "a claim took a message twice")
        for lease in leases:
            seen = self._live(lease.id, lease.claim_id)
            queue = self.now.queues[seen.queue_id]
            self.must(
                queue.name in self.doing.claims_from,
                f"{self.say(seen)} was claimed from {queue.name!r}, which nobody asked for",
            )
            self.must(not queue.paused, f"{self.say(seen)} was claimed from a paused queue")
            self.must(seen.where == READY, f"{self.say(seen)} was claimed and is {seen.where}")
            self.must(
                lease.deliveries == seen.deliveries + 1,
                f"{self.say(seen)} is delivered for the {lease.deliveries}. time",
            )
            if seen.seq:
                self._check_order(seen, taken)
        for lease in leases:
            self._put(
                self._live(lease.id, lease.claim_id)._replace(
                    where=LEASED,
                    claim_id=lease.claim_id,
                    consumer=fact.consumer,
                    started=lease.started,
                    expires_ms=lease.expires_ms,
                    deadline_ms=monotonic_ms + lease.expires_ms - now_ms,
                    deliveries=lease.deliveries,
                )
            )

    def _check_order(self, seen: Seen, taken: set[bytes]) -> None:
        """No earlier one is being worked on by another claim, or waits, or could have gone, unless this one
        was let by.
        """
        for earlier in self.now.members(seen.queue_id, seen.stream):
            if earlier.seq >= seen.seq:
                return
            if earlier.id in taken:
                continue
            self.must(
                earlier.where != LEASED,
                f"{self.say(seen)} was claimed while {self.say(earlier)} is being worked on",
            )
            self.must(
                earlier.where != WAITING or self.now.passes(seen, earlier),
                f"{self.say(seen)} overtook {self.say(earlier)}, which waits",
            )
            self.must(
                earlier.where != READY or not self.now.may_go(earlier),
                f"{self.say(seen)} overtook {self.say(earlier)}, which could go",
            )

    def _completed(self, fact: e.Completed) -> None:
        for member in fact.members:
            seen = self._live(member.id, member.claim_id)
            self.must(self._asked(seen, Complete), f"{self.say(seen)} was completed and nobody said so")
            self.must(not self.config(seen.queue_id).retain_completed_ms, f"{self.say(seen)} was not kept")
            self._end(seen, "completed")

    def _moved(self, fact: e.Moved) -> None:
        seen = self._live(fact.id, fact.claim_id)
        if fact.source is not None:
            self._check_source(seen, fact, fact.source)
        if seen.where == DONE:
            self.must(fact.target is None, f"{self.say(seen)} was {fact.kind} though it is done")
        check: Callable[[Seen, e.Moved], None] = getattr(self, "_check_" + fact.kind)
        check(seen, fact)
        if fact.target is None:
            self._end(seen, fact.kind)
            return
        state = fact.state
        self.must(state is not None, f"{self.say(seen)} was {fact.kind} and nothing is known about it")
        assert state is not None
        self.must(
            fact.kind == "redriven" or state.progress & seen.progress == seen.progress,
            f"{self.say(seen)} lost progress: {seen.progress} became {state.progress}",
        )
        self._put(_after(seen, fact.target, state, fact.kind))

    def _check_source(self, seen: Seen, fact: e.Moved, source: e.Place) -> None:
        since = {WAITING: (seen.due_ms, source.due_ms), DONE: (seen.done_ms, source.done_ms)}
        known, told = since.get(source.where, (0, 0))
        self.must(
            (seen.where, known) == (source.where, told),
            f"{self.say(seen)} was {fact.kind} from {source.where}",
        )

    # One check for each kind of move

    def _check_released(self, seen: Seen, fact: e.Moved) -> None:
        self.must(seen.where == LEASED, f"{self.say(seen)} was released and is {seen.where}")
        if self._asked(seen, Release):
            # The first outcome of a delivery counts; a second one in the same call is `lost_lease`.
            first = next(one for one in self.doing.items if _names(one, seen) and type(one) is Release)
            if seen.seq and not first.keep_order:
                self._switched.append(seen)
        elif self._asked(seen, Fail):
            self.must(seen.dead_since != 0, f"{self.say(seen)} failed and was released")
        elif self.doing.verb == "goodbye":
            self.must(
                seen.consumer == self.doing.consumer,
                f"{self.say(seen)} was released by the goodbye of another",
            )
        else:
            self._check_lease_is_over(seen)
            late = not seen.started or seen.dead_since or not self._first_of_run(seen)
            self.must(bool(late), f"{self.say(seen)} was started and expired, and that was no failure")
        self._same_count(seen, fact.state)

    def _check_retried(self, seen: Seen, fact: e.Moved) -> None:
        self._check_failure(seen, fact, dies=False, due_ms=self.now_ms())

    def _check_delayed(self, seen: Seen, fact: e.Moved) -> None:
        assert fact.target is not None
        self._check_failure(seen, fact, dies=False, due_ms=fact.target.due_ms)

    def _check_buried(self, seen: Seen, fact: e.Moved) -> None:
        state, config = fact.state, self.config(seen.queue_id)
        assert state is not None
        self.must(not seen.dead_since, f"{self.say(seen)} is dead and was buried again")
        # A failure after the end of its life is written down, and so is the end.
        self._check_record(
            seen, state, records=2 if state.rule == "ttl" and state.attempts > seen.attempts else 1
        )
        if state.rule == "operator":
            self.must(self._operator("bury", seen), f"nobody buried {self.say(seen)}")
            self._same_count(seen, state, records=1)
        elif state.rule == "ttl":
            self.must(
                config.expired_to_dead and 0 < seen.ttl_ms <= self.now_ms(),
                f"{self.say(seen)} died before its time",
            )
            over = seen.where != LEASED or self._lease_ends(seen)
            self.must(over, f"{self.say(seen)} died of age in the hands of its holder")
        elif state.rule == "max_deliveries":
            self.must(
                0 < config.max_deliveries <= seen.deliveries,
                f"{self.say(seen)} was handed out {seen.deliveries} times",
            )
            self._same_count(seen, state, records=1)
        else:
            self._check_failure(seen, fact, dies=True, due_ms=0)

    def _check_due(self, seen: Seen, fact: e.Moved) -> None:
        assert fact.state is not None
        if self._operator("retry", seen) and seen.attempts and fact.state.attempts == 0:
            return
        came = seen.due_ms <= self.now_ms() if seen.due_ms != HELD else self._operator("unhold", seen)
        self.must(came, f"{self.say(seen)} became due too early")
        self._same_count(seen, fact.state)

    def _check_held(self, seen: Seen, fact: e.Moved) -> None:
        self.must(self._operator("hold", seen), f"nobody holds {self.say(seen)}")
        self._same_count(seen, fact.state)

    def _check_redriven(self, seen: Seen, fact: e.Moved) -> None:
        asked = (
            self.doing.verb == "redrive"
            or self._operator("retry", seen)
            or self.now.under_way("redrive", seen.queue_id)
        )
        self.must(
            bool(seen.dead_since) and seen.where == READY and asked, f"nobody redrives {self.say(seen)}"
        )
        assert fact.state is not None
        assert fact.target is not None
        self.must(
            fact.state.attempts == 0, f"{self.say(seen)} has {fact.state.attempts} attempts in its new life"
        )
        self.must(_failures(fact.state) == seen.failures, f"{self.say(seen)} forgot its failures")
        stream, seq = fact.target.stream, fact.target.seq
        members = self.now.members(fact.target.queue_id, stream) if stream else []
        self.must(
            not members or members[-1].seq < seq, f"{self.say(seen)} did not join the tail of its stream"
        )

    def _check_expired(self, seen: Seen, fact: e.Moved) -> None:
        now_ms = self.now_ms()
        if seen.where == DONE:
            kept_ms = self.config(seen.queue_id).retain_completed_ms
            self.must(
                not kept_ms or kept_ms <= now_ms - seen.done_ms, f"{self.say(seen)} was not kept long enough"
            )
        elif seen.dead_since:
            kept_ms = self.config(seen.source).dead_retention_ms if seen.source in self.now.queues else 0
            self.must(
                seen.where == READY and 0 < kept_ms <= now_ms - seen.dead_since,
                f"{self.say(seen)} was not kept long enough",
            )
        else:
            self.must(0 < seen.ttl_ms <= now_ms, f"{self.say(seen)} expired before its time")
            self.must(
                seen.where != LEASED or self._lease_ends(seen),
                f"{self.say(seen)} expired in the hands of its holder",
            )

    def _check_dropped(self, seen: Seen, fact: e.Moved) -> None:
        queue = self.now.queues[seen.queue_id]
        pending = seen.where in (READY, WAITING)
        in_reach = self.doing.verb in ("purge", "drain") and self.doing.queue == queue.name and pending
        pruned = self.doing.verb == "prune" and (
            bool(seen.dead_since) or (seen.where == DONE and queue.name == self.doing.queue)
        )
        purged = pending and self.now.under_way("purge", seen.queue_id)
        self.must(
            not queue.name or in_reach or pruned or purged or self._operator("drop", seen),
            f"nobody dropped {self.say(seen)}",
        )

    def _check_completed(self, seen: Seen, fact: e.Moved) -> None:
        said = self._operator("done", seen) and not seen.dead_since
        self.must(said or self._asked(seen, Complete), f"{self.say(seen)} was completed and nobody said so")
        keeps = bool(self.config(seen.queue_id).retain_completed_ms)
        self.must(
            keeps == (fact.target is not None and fact.target.where == DONE),
            f"{self.say(seen)} was kept, or not, against what its queue says",
        )
        if fact.state is not None:
            self._same_count(seen, fact.state)
            self.must(
                fact.state.done_ms == self.now_ms(), f"{self.say(seen)} was done at {fact.state.done_ms}"
            )

    def _check_failure(self, seen: Seen, fact: e.Moved, *, dies: bool, due_ms: int) -> None:
        """One more attempt, its record, and what the road says about it."""
        state, config = fact.state, self.config(seen.queue_id)
        assert state is not None
        self.must(
            seen.where == LEASED and not seen.dead_since, f"{self.say(seen)} failed and is {seen.where}"
        )
        self.must(
            state.attempts == seen.attempts + 1,
            f"{self.say(seen)} failed once more and now has {state.attempts} attempts",
        )
        self._check_record(seen, state)
        item = next((item for item in self.doing.items if _names(item, seen) and type(item) is Fail), None)
        if item is not None or self._operator("fail", seen):
            reason, given = read_reason(item.reason if item else FailureReason.UNKNOWN).word, item
        else:
            reason, given = "timeout_exceeded", None
            self._check_lease_is_over(seen)
            self.must(
                seen.started and self._first_of_run(seen),
                f"{self.say(seen)} expired, but its work had not begun",
            )
        retry_in_ms = None if given is None or given.retry_in is None else to_ms(given.retry_in, "retry_in")
        instructed = given is not None and (given.dead or retry_in_ms is not None)
        hook = None
        if config.on_failure and not instructed:
            hook = self.hooks.answers.get((show_id(seen.id), state.attempts))
            self.must(hook is not None, f"the hook was not asked about {self.say(seen)}")
            hook = hook if hook is not None and hook.outcome == "ran" else None
        due = road(
            Try(state.attempts, reason, bool(seen.seq), retry_in_ms, bool(given and given.dead), hook), config
        )
        rule = state.rule.removesuffix(" + failure_breaker")
        self.must(
            (rule, dies) == (due.rule, due.dies),
            f"{self.say(seen)} came under the rule {state.rule!r}, due was {due}",
        )
        self.must(state.failures[-1].reason == read_reason(reason), f"{self.say(seen)} failed for {reason}")
        if not dies:
            waits_ms = due_ms - self.now_ms()
            longer = rule != state.rule and waits_ms > due.low_ms
            self.must(
                longer or due.low_ms <= waits_ms <= due.high_ms,
                f"{self.say(seen)} waits {waits_ms} ms, due was {due}",
            )

    def _check_record(self, seen: Seen, state: MessageState, records: int = 1) -> None:
        """Every failure, and every death, is written down with its reason and the rule that decided."""
        self.must(
            bool(state.failures) and bool(state.rule) and bool(state.reason),
            f"{self.say(seen)} has no record of its failure",
        )
        last = state.failures[-1]
        self.must(
            (last.rule, last.at_ms) == (state.rule, self.now_ms()),
            f"the last record of {self.say(seen)} is {last}",
        )
        self.must(
            _failures(state) == seen.failures + records,
            f"{self.say(seen)} had {seen.failures} failures, now {_failures(state)}",
        )

    def _same_count(self, seen: Seen, state: MessageState | None, *, records: int = 0) -> None:
        kept = state is not None and (state.attempts, _failures(state)) == (
            seen.attempts,
            seen.failures + records,
        )
        self.must(kept, f"{self.say(seen)} did not fail, and has {state}")

    # Leases that go on

    def _restated(self, fact: e.Restated) -> None:
        seen = self._live(fact.id, fact.claim_id)
        self.must(fact.state.progress & seen.progress == seen.progress, f"{self.say(seen)} lost progress")
        self._same_count(seen, fact.state)
        self._put(seen._replace(progress=fact.state.progress))

    def _recounted(self, fact: e.Recounted) -> None:
        seen = self._live(fact.id)
        self.must(fact.state.progress == seen.progress, f"{self.say(seen)} lost progress")
        self._put(seen._replace(attempts=fact.state.attempts))

    def _extended(self, fact: e.Extended) -> None:
        for member in fact.members:
            seen = self._live(member.id, member.claim_id)
            self.must(self._asked(seen, Extend), f"nobody extended {self.say(seen)}")
            left_ms = member.expires_ms - self.now_ms()
            deadline_ms = self.clock.monotonic_ms() + left_ms
            self._put(
                seen._replace(expires_ms=member.expires_ms, deadline_ms=deadline_ms, started=member.started)
            )

    def _started(self, fact: e.Started) -> None:
        for member in fact.members:
            seen = self._live(member.id, member.claim_id)
            self.must(
                self._asked(seen, Start) or self._asked(seen, Extend), f"nobody started {self.say(seen)}"
            )
            self._put(seen._replace(started=member.started))

    # Queues, streams, long operations

    def _queue_saved(self, fact: e.QueueSaved) -> None:
        self.now.queues[fact.record.queue_id] = fact.record

    def _queue_unlinked(self, fact: e.QueueUnlinked) -> None:
        self.must(self.doing.verb == "delete", f"nobody deleted {fact.name!r}")
        self.now.queues[fact.queue_id] = QueueRecord(fact.queue_id, "", QueueConfig(), 0)

    def _queue_cleared(self, fact: e.QueueCleared) -> None:
        left = [self.say(seen) for seen in self.now.messages.values() if seen.queue_id == fact.queue_id]
        self.must(not left, f"a queue was cleared and holds {left}")
        del self.now.queues[fact.queue_id]

    def _queue_deleted(self, fact: e.QueueDeleted) -> None:
        record = self.now.queues[fact.queue_id]
        self.must(self.doing.verb == "delete", f"nobody deleted {record.name!r}")
        for seen in list(self.now.messages.values()):
            if seen.queue_id in (fact.queue_id, record.dlq_id):
                self._end(seen, "dropped")
        for queue_id in (fact.queue_id, record.dlq_id):
            self.now.queues.pop(queue_id, None)

    def _stream_opened(self, fact: e.StreamOpened) -> None:
        if (
            self.doing.verb == "release_stream"
            and self.doing.stream == fact.stream
            and self.now.queues[fact.queue_id].name == self.doing.queue
        ):
            self._open_stream(fact.queue_id, fact.stream)

    def _open_stream(self, queue_id: int, name: str) -> None:
        """The first that waits is passed by all behind it; said again, the next that waits is, and keeps what
        it was allowed.
        """
        stream, members = (queue_id, name), self.now.members(queue_id, name)
        opened = self.now.all_after.get(stream, 0)
        if opened < members[0].seq:
            self.now.all_after[stream] = members[0].seq
            return
        behind = next((seen for seen in members if seen.seq > opened), None)
        if behind is not None and behind.where == WAITING:
            self.now.all_after[stream] = behind.seq
            let_by = self._live_let_by(stream)
            if len(let_by) < self._let_by_limit:
                self.now.let_by[stream] = let_by | {behind.seq}

    def _request_remembered(self, fact: e.RequestRemembered) -> None:
        self.must(self.doing.verb == "exchange", "a request was remembered outside of an exchange")
        self.must(fact.key not in self.now.requests, "a request had a second effect")
        self.must(
            fact.key not in self.now.forgotten, "a request that was answered long ago had a second effect"
        )
        self.now.requests[fact.key] = self.clock.monotonic_ms()

    def _requests_forgotten(self, fact: e.RequestsForgotten) -> None:
        arrived = self.doing.arrived
        for key in fact.keys:
            has_arrived = session_of_answer(key) == session_of_answer(arrived) and key <= arrived
            remembered_ms = self.now.requests.pop(key, None)
            if remembered_ms is None:
                continue
            age_ms = self.clock.monotonic_ms() - remembered_ms
            self.must(
                has_arrived or age_ms > read_size("session_kept_ms"),
                f"{key!r} was forgotten, nobody said that its answer has arrived",
            )
            self.now.forgotten[key] = "answered" if has_arrived else "old"

    def _sessions_forgotten(self, fact: e.SessionsForgotten) -> None:
        keys = [key for key in self.now.requests if session_of_answer(key) in fact.keys]
        self._requests_forgotten(e.RequestsForgotten(keys))

    def _intent_saved(self, fact: e.IntentSaved) -> None:
        self.now.intents[fact.intent.intent_id] = fact.intent

    def _intent_ended(self, fact: e.IntentEnded) -> None:
        self.now.intents.pop(fact.intent_id, None)

    def _switch(self, seen: Seen) -> None:
        """A release as the switch: it lets the message by when an earlier one waits, as far as the list goes."""
        if self.config(seen.queue_id).ordering == "strict":
            return
        stream = seen.queue_id, seen.stream
        let_by = self._live_let_by(stream)
        waits = any(other.where == WAITING and other.seq < seen.seq for other in self.now.members(*stream))
        if waits and len(let_by) < self._let_by_limit:
            self.now.let_by[stream] = let_by | {seen.seq}

    def _live_let_by(self, stream: tuple[int, str]) -> frozenset[int]:
        return self.now.let_by.get(stream, frozenset()) & {other.seq for other in self.now.members(*stream)}

    def _tidy_streams(self) -> None:
        for stream in list(self.now.let_by):
            self.now.let_by[stream] = self._live_let_by(stream)
        for stream, seq in list(self.now.all_after.items()):
            members = self.now.members(*stream)
            if not members or members[0].seq > seq:
                del self.now.all_after[stream]

    # Order

    def _first_of_run(self, seen: Seen) -> bool:
        """Was it, when this commit began, the first that is left of its run: of the leases of one claim on
        one stream?
        """
        if not seen.seq:
            return True
        claimed = [
            other
            for other in self._before.values()
            if other.where == LEASED and other.claim_id == seen.claim_id
        ]
        return not any(
            (o.queue_id, o.stream) == (seen.queue_id, seen.stream) and o.seq < seen.seq for o in claimed
        )

    # Helpers

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenPromise(f"{what} (during {self.doing.verb})")

    def say(self, seen: Seen) -> str:
        stream = f", {seen.stream}/{seen.seq >> 20}.{seen.seq & 0xFFFFF}" if seen.seq else ""
        return f"{seen.payload.decode()} ({seen.where}{stream})"

    def config(self, queue_id: int) -> QueueConfig:
        return self.now.queues[queue_id].config

    def _live(self, message_id: bytes, claim_id: int = 0) -> Seen:
        seen = self.now.messages.get(message_id)
        if seen is None:
            raise BrokenPromise(
                f"{show_id(message_id)} moves and is {self.now.gone.get(message_id, 'unknown')} (during {self.doing.verb})"
            )
        self.must(
            not claim_id or seen.where != LEASED or claim_id == seen.claim_id,
            f"{self.say(seen)} moves under a stale lease",
        )
        return seen

    def _put(self, seen: Seen) -> Seen:
        self.now.messages[seen.id] = seen
        return seen

    def _end(self, seen: Seen, how: str) -> None:
        del self.now.messages[seen.id]
        self.now.gone[seen.id] = how

    def _asked(self, seen: Seen, kind: type) -> bool:
        return any(type(item) is kind and _names(item, seen) for item in self.doing.items)

    def _operator(self, verb: str, seen: Seen) -> bool:
        doing = self.doing
        home = self.now.queues.get(seen.source if seen.dead_since else seen.queue_id)
        in_reach = home is not None and home.name == doing.queue.removesuffix(".dlq")
        return doing.verb == verb and in_reach and (doing.ids is None or show_id(seen.id) in doing.ids)

    def _check_lease_is_over(self, seen: Seen) -> None:
        early_ms = seen.deadline_ms - self.clock.monotonic_ms()
        self.must(
            self.doing.verb != "exchange",
            f"an exchange ended the lease of {self.say(seen)}; the timer does that",
        )
        self.must(early_ms <= 0, f"the lease of {self.say(seen)} ended {early_ms} ms early")

    def _lease_ends(self, seen: Seen) -> bool:
        said = self._asked(seen, Release) or self._asked(seen, Fail) or self._operator("fail", seen)
        return said or self.doing.verb == "goodbye" or seen.deadline_ms <= self.clock.monotonic_ms()


def _after(seen: Seen, target: e.Place, state: MessageState, kind: str) -> Seen:
    seq = target.seq if kind == "redriven" else seen.seq
    return seen._replace(
        queue_id=target.queue_id,
        where=target.where,
        done_ms=state.done_ms,
        due_ms=target.due_ms,
        stream=target.stream,
        seq=seq if target.stream else 0,
        ttl_ms=0 if kind in ("buried", "redriven", "completed") else seen.ttl_ms,
        claim_id=0,
        consumer="",
        started=False,
        attempts=state.attempts,
        failures=_failures(state),
        progress=state.progress,
        deliveries=state.deliveries,
        dead_since=state.dead_since_ms,
        source=state.source_queue_id,
        throttles=target.throttles,
    )


def _names(item: Any, seen: Seen) -> bool:
    return (
        item.delivery.id == show_id(seen.id)
        and seen.where == LEASED
        and item.delivery.lease == f"{seen.claim_id:x}"
    )


def _failures(state: MessageState) -> int:
    return len(state.failures) + state.failures_cut


_HANDLERS: dict[type, Callable[..., None]] = {
    e.Enqueued: Witness._enqueued,
    e.Quarantined: Witness._quarantined,
    e.Leased: Witness._leased,
    e.Completed: Witness._completed,
    e.Moved: Witness._moved,
    e.Restated: Witness._restated,
    e.Recounted: Witness._recounted,
    e.Extended: Witness._extended,
    e.Started: Witness._started,
    e.QueueSaved: Witness._queue_saved,
    e.QueueUnlinked: Witness._queue_unlinked,
    e.QueueCleared: Witness._queue_cleared,
    e.QueueDeleted: Witness._queue_deleted,
    e.StreamOpened: Witness._stream_opened,
    e.RequestRemembered: Witness._request_remembered,
    e.RequestsForgotten: Witness._requests_forgotten,
    e.SessionsForgotten: Witness._sessions_forgotten,
    e.IntentSaved: Witness._intent_saved,
    e.IntentEnded: Witness._intent_ended,
}
