"""How a numbered claim ends: one record flips, and its messages follow in bounded durable steps.

Closing settles each member by the last word recorded about it, or completes it; releasing gives each back to
its place. A crash between two steps leaves the record as it was after the last one, and the timer goes on
with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import msgspec

from fairlead.broker.consumer_book import ConsumerState, forgotten_claim
from fairlead.broker.core import Core
from fairlead.broker.hooking import Answers, has_failure_hook
from fairlead.broker.moves import Moves
from fairlead.broker.room import step_of
from fairlead.broker.settle import Batch, ask_hooks
from fairlead.broker.states import states_of
from fairlead.errors import ClaimNotNext, ClaimReleased
from fairlead.model.consumer import CloseResult, ConsumerRecord, Recorded
from fairlead.model.durations import show_ms
from fairlead.model.facts import ConsumerDropped, ConsumerSaved, Fact, InLease
from fairlead.model.failure import FailureReason
from fairlead.model.lease import Lease
from fairlead.model.names import Scoped
from fairlead.model.settle import Fail, LeaseRef, Release, Settlement

#: Members of one step: completed ones cost little, and what is said of the others moves each on its own.
STEP = 4000
SAID_STEP = 500
RELEASE_STEP = 1000
#: A slow script may take its full time in each call.
HOOKED_STEP = 100


def close(core: Core, consumer: Scoped, generation: int, up_to: int) -> CloseResult:
    """Closed when the record has flipped; the answer comes when the steps are done."""
    with at_rest(core, consumer):
        record = core.consumer_book.current(consumer, generation).record
        if up_to == record.lost and up_to:
            raise ClaimReleased(consumer.name, up_to, record.lost_why)
        already = up_to <= record.last_closed
        if not already:
            if record.phase != "open" or up_to != record.number:
                raise ClaimNotNext(consumer.name, up_to, record.last_closed)
            _flip(core, record, "closing", seen_ms=core.now_ms(), settled={})
        commit = core.store.last_commit
    core.confirm(commit, synced=True)
    if already:
        return CloseResult(record.last_closed, dict(record.settled) if up_to == record.last_closed else {})
    settled = finish(core, consumer)
    core.confirm(synced=True)
    return CloseResult(up_to, settled)


def release(core: Core, consumer: Scoped, why: str, *, dropping: bool = False) -> int:
    """Let go of what the consumer has in hand, and of the consumer too when it is to be dropped. Returns how
    many messages it was.
    """
    with at_rest(core, consumer):
        record = core.consumer_book.get(consumer).record
        count = record.messages if record.in_hand else 0
        if record.in_hand:
            _let_go(core, record, why, dropping=dropping)
        elif dropping:
            core.commit([ConsumerDropped(consumer)])
            core.consumer_book.remove(consumer)
        commit = core.store.last_commit
    core.confirm(commit, synced=True)
    finish(core, consumer)
    core.confirm(synced=True)
    return count


def end_those_away(core: Core) -> bool:
    """Under the lock: consumers that were not seen for their time to live let go of what they have in hand."""
    ended = core.consumer_book.ended(core.clock.monotonic_ms())
    for state in ended:
        _let_go(core, state.record, f"its consumer was not seen for {show_ms(state.record.ttl_ms)}")
    return bool(ended)


def _let_go(core: Core, record: ConsumerRecord, why: str, *, dropping: bool = False) -> None:
    _flip(core, record, "releasing", lost=record.number, lost_why=why, dropping=dropping)


def _flip(core: Core, record: ConsumerRecord, phase: str, **fields: object) -> None:
    flipped = msgspec.structs.replace(record, phase=phase, last_closed=record.number, handled=0, **fields)
    core.commit([ConsumerSaved(flipped)])
    core.consumer_book.seen(core.consumer_book.put(flipped), core.clock)


@contextmanager
def at_rest(core: Core, consumer: Scoped) -> Iterator[None]:
    """The lock, with no step of the consumer left to do: whoever decides about its next claim must not meet
    the rest of the last one.
    """
    while True:
        finish(core, consumer)
        with core.lock:
            core.check_open()
            state = core.consumer_book.find(consumer)
            # Between the last step and the lock somebody may have closed the claim in hand, or its time may
            # have been over.
            if state is None or not state.record.under_way:
                yield
                return


def finish(core: Core, consumer: Scoped) -> dict[str, int]:
    """Without the lock: all steps that are left; returns how the members of a closed claim were settled."""
    foreground = core.consumer_book.foreground
    with core.lock:
        foreground[consumer] += 1
    try:
        while run_step(core, consumer):
            pass
    finally:
        with core.lock:
            foreground[consumer] -= 1
            if not foreground[consumer]:
                del foreground[consumer]
                # What this caller could not finish is the timer's from now on.
                core.timer.notify_all()
    with core.lock:
        state = core.consumer_book.find(consumer)
        return dict(state.record.settled) if state is not None else {}


def run_left_alone(core: Core) -> bool:
    """Without the lock: a step of what a crash, or a caller that failed, has left behind. False when there is
    nothing.
    """
    with core.lock:
        if core.closed:
            return False
        consumer = core.consumer_book.left_alone()
    return consumer is not None and run_step(core, consumer)


def run_step(core: Core, consumer: Scoped) -> bool:
    """Without the lock: one bounded commit; False when nothing is under way for the consumer."""
    with core.step():
        core.check_open()
        state = core.consumer_book.find(consumer)
        if state is None or not state.record.under_way:
            return False
        if state.record.phase == "releasing":
            _release_step(core, state)
            return True
        step = _Step(core, state)
        failures = step.failures()
        if not failures:
            _close_step(core, step, {})
            return True
    answers = ask_hooks(core, failures, closing=step.record.claim_id)
    with core.step():
        core.check_open()
        state = core.consumer_book.find(consumer)
        # Somebody else may have done the step meanwhile.
        if state is not None and state.record is step.record:
            _close_step(core, step, answers)
    return True


class _Step:
    """The next members of a claim that is being closed: those that are simply done, those that simply go back
    because nobody spoke of them, and what was said about the others.
    """

    def __init__(self, core: Core, state: ConsumerState) -> None:
        self.core = core
        self.record = record = state.record
        members, words = state.load_members(core.store), state.load_words(core.store)
        outcomes, begun = words.outcomes, words.begun
        gives_back = record.unspoken == "release"
        most_said = step_of(
            core, HOOKED_STEP if has_failure_hook(core.by_id.get(record.queue_id)) else SAID_STEP
        )
        most_back = step_of(core, RELEASE_STEP)
        #: With the progress that was told with it, which only a queue that keeps completed messages has a use
        #: for.
        self.done: list[tuple[Lease, int]] = []
        #: And whether anybody had begun it. A claim is larger than what its workers get to: that alone is no
        #: delivery.
        self.back: list[tuple[Lease, bool]] = []
        self.said: list[Settlement] = []
        self.handled = record.handled
        for member in members[record.handled : record.handled + STEP]:
            lease = core.leases.find(member)
            # One that is gone went with its queue.
            if lease is not None and lease.claim_id == record.claim_id:
                outcome = outcomes.get(member) if outcomes else None
                if outcome is None and gives_back:
                    self.back.append((lease, member in begun))
                elif outcome is None or outcome.kind == "complete":
                    self.done.append((lease, outcome.progress if outcome is not None else 0))
                else:
                    self.said.append(_settlement(outcome, record.claim_id))
            self.handled += 1
            if len(self.said) >= most_said or len(self.back) >= most_back:
                break
        self.ended = self.handled >= len(members)

    def failures(self) -> list[Settlement]:
        """Those that a hook is asked about."""
        if not has_failure_hook(self.core.by_id.get(self.record.queue_id)):
            return []
        return [item for item in self.said if isinstance(item, Fail)]


def _settlement(said: Recorded, claim_id: int) -> Settlement:
    handle = LeaseRef(said.id, claim_id)
    if said.kind == "release":
        return Release(handle, keep_order=said.keep_order)
    retry_in = None if said.retry_in_ms is None else timedelta(milliseconds=said.retry_in_ms)
    return Fail(handle, said.error, FailureReason(said.reason), said.progress, retry_in, said.dead)


def _close_step(core: Core, step: _Step, answers: Answers) -> None:
    record = step.record
    batch = Batch(core, answers, closing=record.claim_id)
    queue = core.by_id.get(record.queue_id)
    if queue is not None and record.queue_id in core.retaining:
        for (lease, progress), known in zip(
            step.done, states_of(core, [lease for lease, _ in step.done]), strict=True
        ):
            batch.moves.retain(InLease(lease), known, queue, progress)
    else:
        batch.moves.complete_all([lease for lease, _ in step.done])
    settled = Counter(record.settled)
    if step.done:
        settled["completed"] += len(step.done)
    settled.update(_give_back(core, batch.moves, step.back))
    # Last, because whether a release lets its message pass depends on who stands before it in its stream.
    settled.update([result.outcome for result in batch.decide(step.said)] if step.said else [])
    after = msgspec.structs.replace(record, handled=step.handled, settled=dict(settled))
    batch.moves.facts += _facts(after, ended=step.ended)
    batch.commit()
    _put(core, after, ended=step.ended)


def _release_step(core: Core, state: ConsumerState) -> None:
    record = state.record
    members = state.load_members(core.store)
    found = [
        core.leases.find(member)
        for member in members[record.handled : record.handled + step_of(core, RELEASE_STEP)]
    ]
    leases = [lease for lease in found if lease is not None and lease.claim_id == record.claim_id]
    moves = Moves(core, core.now_ms())
    _give_back(core, moves, [(lease, True) for lease in leases])
    after = msgspec.structs.replace(record, handled=record.handled + len(found))
    ended = after.handled >= len(members)
    moves.facts += _facts(after, ended=ended)
    moves.commit()
    _put(core, after, ended=ended)


def _give_back(core: Core, moves: Moves, back: Sequence[tuple[Lease, bool]]) -> list[str]:
    """To their places, in order, each with whether it counts as handed out. Returns what became of each: one
    that was handed out too often, or too long ago, is not there any longer.
    """
    leases = [lease for lease, _ in back]
    moves.load_streams(leases)
    states = states_of(core, leases)
    return [
        moves.release(lease, known, counts=counts)[0]
        for (lease, counts), known in zip(back, states, strict=True)
    ]


def _facts(after: ConsumerRecord, *, ended: bool) -> Sequence[Fact]:
    if not ended:
        return [ConsumerSaved(after)]
    last = ConsumerDropped(after.key) if after.dropping else ConsumerSaved(after.without_claim())
    return [last, forgotten_claim(after)]


def _put(core: Core, after: ConsumerRecord, *, ended: bool) -> None:
    if ended and after.dropping:
        core.consumer_book.remove(after.key)
    else:
        core.consumer_book.put(after.without_claim() if ended else after)
