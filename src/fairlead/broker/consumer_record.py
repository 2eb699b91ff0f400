"""Saying how it goes with the members of a numbered claim, and who works on which slice of it. One call is
one commit.

Outcomes and starts wait in a log of the claim until it is closed. Progress does not wait: it goes into the
state of the message at once, so that whoever reads the claim next, or the message in a later life, goes on
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.broker.consumer_words import pack_words
from fairlead.broker.core import Core
from fairlead.broker.states import states_of
from fairlead.decide.claim_outcomes import ClaimOutcomes, is_outdated
from fairlead.decide.numbered_claims import LEFT_BEGUN, CheckedItems, take_slice
from fairlead.decide.slices import slice_of
from fairlead.errors import InvalidRequest, LimitReached
from fairlead.model.consumer import ConsumerRecord, Recorded, TakenUp
from fairlead.model.facts import ConsumerSaved, Fact, OutcomesRecorded, Restated
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.model.lane import Flag, move_row, row_place
from fairlead.model.lease import Lease
from fairlead.model.limits import MAX_RECORDED_BYTES
from fairlead.model.message import MessageState
from fairlead.model.names import Scoped


def record(
    core: Core, consumer: Scoped, generation: int, number: int, heard: CheckedItems, part: str
) -> None:
    words = heard.to_store()
    raw = pack_words(words)
    with core.lock:
        core.check_open()
        state = core.consumer_book.opened(consumer, generation, number)
        before = after = state.record
        leases = _members(core, before, heard)
        if not words and not heard.has_carry:
            return
        facts: list[Fact] = []
        if words:
            if before.recorded_bytes + len(raw) > MAX_RECORDED_BYTES:
                raise LimitReached(
                    f"bytes of outcomes in a claim of consumer {consumer.name!r}", MAX_RECORDED_BYTES
                )
            after = _with_words(after, raw)
            facts.append(OutcomesRecorded(consumer, number, before.recorded, part, raw))
        restated = _restated(core, state.load_words(core.store), heard, leases) if heard.carries else []
        _check_room(core, heard, raw)
        commit = _save(core, after, [*facts, *[fact for _, fact in restated]])
        for lease, fact in restated:
            lease.row = fact.lease.row
        if part:
            # Whether it counts is for `choose` to say.
            state.words = None
        elif state.words is not None:
            state.words.add(words)
    core.confirm(commit, synced=True)


def _check_room(core: Core, heard: CheckedItems, raw: bytes) -> None:
    """Texts and carries stop at the reserve. Bare outcomes go on into it: without them a claim cannot be
    closed.
    """
    carried = sum([len(carry) for carry in heard.carries.values() if carry])
    # A text is stored twice for a while: in the log of the claim, and at close with its message.
    is_bare = not carried and not any(word.error for word in heard.recorded)
    core.store.check_room(2 * len(raw) + carried, in_reserve=is_bare)


def take_up(core: Core, consumer: Scoped, generation: int, number: int, slice: int, slices: int) -> TakenUp:
    with core.lock:
        core.check_open()
        state = core.consumer_book.opened(consumer, generation, number)
        before, words = state.record, state.load_words(core.store)
        again, taken = take_slice(before, slice, slices)
        left = [member for member in words.begun if _is_in(core.leases.find(member), slice, slices)]
        failed = [
            Recorded(member, "fail", error=LEFT_BEGUN, reason=int(FailureReason.TIMEOUT_EXCEEDED))
            for member in left
        ]
        after = msgspec.structs.replace(before, slices=slices, taken=taken)
        facts: list[Fact] = []
        if failed:
            # Past the limit on what is recorded, if need be: who wants to go on must be able to, and each
            # start brings one at most.
            raw = pack_words(failed)
            after = _with_words(after, raw)
            facts.append(OutcomesRecorded(consumer, number, before.recorded, "", raw))
        commit = _save(core, after, facts)
        words.add(failed)
    core.confirm(commit, synced=True)
    return TakenUp(again, len(failed))


def _members(core: Core, record: ConsumerRecord, heard: CheckedItems) -> list[Lease]:
    """The lease of each item; all of them must be of the claim."""
    find, claim_id = core.leases.find, record.claim_id
    leases: list[Lease] = []
    for word, given in zip(heard.recorded, heard.claim_ids, strict=True):
        lease = find(word.id)
        if given != claim_id or lease is None or lease.claim_id != claim_id:
            raise InvalidRequest(
                "items",
                f"about messages of claim {record.number} of consumer {record.name!r}",
                show_id(word.id),
            )
        leases.append(lease)
    return leases


def _restated(
    core: Core, words: ClaimOutcomes, heard: CheckedItems, leases: list[Lease]
) -> list[tuple[Lease, Restated]]:
    """What the extends make of the states, one of each message: progress grows, and what is carried is what
    was carried last.

    One that tells less than was told in this claim before comes from somebody whose slice another has taken
    up since: what it carries is older than what is there.
    """
    extended = [leases[at] for at in heard.carries]
    states = {lease.id: state for lease, state in zip(extended, states_of(core, extended), strict=True)}
    told: dict[bytes, int] = {}
    changed: dict[bytes, tuple[Lease, Restated]] = {}
    for lease, (at, carry) in zip(extended, heard.carries.items(), strict=True):
        raw_id, progress = lease.id, heard.recorded[at].progress
        before = told.get(raw_id, words.progress.get(raw_id, 0))
        if (not progress and carry is None) or is_outdated(before, progress):
            continue
        told[raw_id] = before | progress
        known = states[raw_id] or MessageState(
            lease.queue_id, row_place(lease.row), deliveries=lease.deliveries - 1
        )
        state = msgspec.structs.replace(
            known, progress=known.progress | progress, carry=known.carry if carry is None else carry
        )
        states[raw_id] = state
        row = move_row(lease.row, row_place(lease.row), lease.row[26] | Flag.STATE)
        changed[raw_id] = lease, Restated(msgspec.structs.replace(lease, row=row), state)
    return [*changed.values()]


def _with_words(record: ConsumerRecord, raw: bytes) -> ConsumerRecord:
    return msgspec.structs.replace(
        record, recorded=record.recorded + 1, recorded_bytes=record.recorded_bytes + len(raw)
    )


def _is_in(lease: Lease | None, slice: int, slices: int) -> bool:
    return lease is not None and slice_of(lease.row, slices) == slice


def _save(core: Core, record: ConsumerRecord, facts: Sequence[Fact]) -> int:
    seen = msgspec.structs.replace(record, seen_ms=core.now_ms())
    commit = core.commit([ConsumerSaved(seen), *facts])
    core.consumer_book.seen(core.consumer_book.put(seen), core.clock)
    core.wake_timer(seen.seen_ms + seen.ttl_ms)
    return commit
