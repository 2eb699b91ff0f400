"""Saying how it goes with the members of a numbered claim, and who works on which slice of it. One call is
one commit.

Outcomes and starts wait in a log of the claim until it is closed. Progress does not wait: it goes into the
state of the message at once, so that whoever reads the claim next, or the message in a later life, goes on
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fairlead.broker.consumer_words import Words, pack_words
from fairlead.broker.core import Core
from fairlead.broker.states import states_of
from fairlead.decide.arguments import check_bool
from fairlead.decide.slices import slice_of
from fairlead.errors import InvalidRequest, LimitReached
from fairlead.model.consumer import ConsumerRecord, Recorded, TakenUp
from fairlead.model.facts import ConsumerSaved, Fact, OutcomesRecorded, Restated
from fairlead.model.failure import FailureReason
from fairlead.model.handles import check_carry, check_fail, check_progress, read_handle
from fairlead.model.ids import show_id
from fairlead.model.lane import Flag, move_row, row_place
from fairlead.model.lease import Lease
from fairlead.model.limits import MAX_BATCH_MESSAGES, MAX_RECORDED_BYTES
from fairlead.model.message import MessageState
from fairlead.model.names import Scoped
from fairlead.model.settle import Complete, Extend, Fail, Release, Start

#: What is said of a message that was begun by one who then fell silent: it counts like a lease that ran out.
LEFT_BEGUN = "the process that ran it ended before it said how it went"


class Heard(NamedTuple):
    """Items as they are stored: a word of each, the claim that its handle names, and by its place in the list
    what an extend carries.
    """

    words: list[Recorded]
    claim_ids: list[int]
    carries: dict[int, bytes | None]


def record(core: Core, consumer: Scoped, generation: int, number: int, heard: Heard, part: str) -> None:
    # An extend that tells no progress is nothing to remember, beyond what it carries.
    words = (
        [word for word in heard.words if word.progress or word.kind != "extend"]
        if heard.carries
        else heard.words
    )
    raw = pack_words(words)
    with core.lock:
        core.check_open()
        state = core.consumer_book.opened(consumer, generation, number)
        before = after = state.record
        leases = _members(core, before, heard)
        if not words and not any(carry is not None for carry in heard.carries.values()):
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
            state.words.hear(words)
    core.confirm(commit, synced=True)


def _check_room(core: Core, heard: Heard, raw: bytes) -> None:
    """Texts and carries stop at the reserve. Bare outcomes go on into it: without them a claim cannot be
    closed.
    """
    carried = sum([len(carry) for carry in heard.carries.values() if carry])
    # A text is stored twice for a while: in the log of the claim, and at close with its message.
    is_bare = not carried and not any(word.error for word in heard.words)
    core.store.check_room(2 * len(raw) + carried, in_reserve=is_bare)


def take_up(core: Core, consumer: Scoped, generation: int, number: int, slice: int, slices: int) -> TakenUp:
    with core.lock:
        core.check_open()
        state = core.consumer_book.opened(consumer, generation, number)
        before, words = state.record, state.load_words(core.store)
        again, taken = _taken(before, slice, slices)
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
        words.hear(failed)
    core.confirm(commit, synced=True)
    return TakenUp(again, len(failed))


def read_items(items: object, part: str) -> Heard:
    """Checked alike for all: one that is wrong spoils the call, and nothing of it is recorded."""
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)) or len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest(
            "items",
            f"a list of at most {MAX_BATCH_MESSAGES} Complete, Fail, Release, Start or Extend",
            type(items),
        )
    heard = Heard([], [], {})
    for item in items:
        if not isinstance(item, (Complete, Fail, Release, Start, Extend)):
            raise InvalidRequest("items", "Complete, Fail, Release, Start or Extend", item)
        if part and isinstance(item, (Start, Extend)):
            raise InvalidRequest(
                "items",
                f"outcomes only under part {part!r}; Start and Extend are said without a part",
                type(item),
            )
        raw_id, claim_id = read_handle(item.delivery)
        heard.claim_ids.append(claim_id)
        if isinstance(item, Extend):
            heard.carries[len(heard.words)] = _check_extend(item)
        heard.words.append(_word(item, raw_id))
    return heard


def _check_extend(item: Extend) -> bytes | None:
    if item.duration is not None:
        raise InvalidRequest("duration", "None: a numbered claim lasts until it is closed", item.duration)
    return check_carry(item.carry)


def _word(item: Complete | Fail | Release | Start | Extend, raw_id: bytes) -> Recorded:
    if isinstance(item, Complete):
        return Recorded(raw_id, "complete", check_progress(item.progress))
    if isinstance(item, Release):
        return Recorded(raw_id, "release", keep_order=check_bool(item.keep_order, "keep_order"))
    if isinstance(item, Start):
        return Recorded(raw_id, "start")
    if isinstance(item, Extend):
        return Recorded(raw_id, "extend", check_progress(item.progress))
    fail = check_fail(item)
    return Recorded(raw_id, "fail", fail.progress, fail.error, int(fail.reason), fail.retry_in_ms, fail.dead)


def _members(core: Core, record: ConsumerRecord, heard: Heard) -> list[Lease]:
    """The lease of each item; all of them must be of the claim."""
    find, claim_id = core.leases.find, record.claim_id
    leases: list[Lease] = []
    for word, given in zip(heard.words, heard.claim_ids, strict=True):
        lease = find(word.id)
        if given != claim_id or lease is None or lease.claim_id != claim_id:
            raise InvalidRequest(
                "items",
                f"about messages of claim {record.number} of consumer {record.name!r}",
                show_id(word.id),
            )
        leases.append(lease)
    return leases


def _restated(core: Core, words: Words, heard: Heard, leases: list[Lease]) -> list[tuple[Lease, Restated]]:
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
        raw_id, progress = lease.id, heard.words[at].progress
        before = told.get(raw_id, words.progress.get(raw_id, 0))
        if (not progress and carry is None) or (progress and before | progress == before != progress):
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


def _taken(record: ConsumerRecord, slice: int, slices: int) -> tuple[bool, bytes]:
    """Whether it was taken up before, and the bits afterwards. What was cut otherwise may have been anywhere:
    all of it counts as taken.
    """
    if record.slices not in (0, slices):
        return True, b"\xff" * ((slices + 7) // 8)
    bits = bytearray(record.taken or bytes((slices + 7) // 8))
    at, bit = divmod(slice, 8)
    again = bool(bits[at] & 1 << bit)
    bits[at] |= 1 << bit
    return again, bytes(bits)


def _is_in(lease: Lease | None, slice: int, slices: int) -> bool:
    return lease is not None and slice_of(lease.row, slices) == slice


def _save(core: Core, record: ConsumerRecord, facts: Sequence[Fact]) -> int:
    seen = msgspec.structs.replace(record, seen_ms=core.now_ms())
    commit = core.commit([ConsumerSaved(seen), *facts])
    core.consumer_book.seen(core.consumer_book.put(seen), core.clock)
    core.wake_timer(seen.seen_ms + seen.ttl_ms)
    return commit
