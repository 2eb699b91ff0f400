"""Rules of durable consumers and their numbered claims: arguments, generations, numbers, slices."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

import msgspec

from fairlead.decide.arguments import check_bool, check_count
from fairlead.errors import (
    ClaimClosed,
    ClaimNotNext,
    ClaimReleased,
    InvalidRequest,
    StaleConsumer,
    StaleSlice,
)
from fairlead.model.checks import check_text
from fairlead.model.consumer import ConsumerInfo, ConsumerRecord, DefaultOutcome, Recorded
from fairlead.model.durations import Duration, to_ms
from fairlead.model.handles import check_carry, check_fail, check_progress, read_handle
from fairlead.model.limits import (
    MAX_BATCH_MESSAGES,
    MAX_CLAIM,
    MAX_CONSUMER_BYTES,
    MAX_CONSUMER_TTL_MS,
    MAX_PART_BYTES,
    MIN_CONSUMER_TTL_MS,
)
from fairlead.model.names import Scoped, check_queue_name
from fairlead.model.settle import Complete, Extend, Fail, Release, Start

#: The error of a message that a worker started and left without an outcome. It counts like an expired lease.
LEFT_BEGUN = "the process that ran it ended before it said how it went"

# Arguments


def read_consumer(name: object, queue: object) -> Scoped:
    return Scoped(check_queue_name(queue), check_text(name, "name", MAX_CONSUMER_BYTES))


def check_whole(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(field, "a whole number, 0 or greater", value)
    return value


def check_slice(slice: int, slices: int) -> None:
    check_count(slices, "slices", most=MAX_CLAIM)
    if check_whole(slice, "slice") >= slices:
        raise InvalidRequest("slice", f"less than slices, which is {slices}", slice)


def check_default_outcome(default_outcome: object) -> None:
    if default_outcome not in ("complete", "release"):
        raise InvalidRequest("default_outcome", "'complete' or 'release'", default_outcome)


def read_consumer_ttl(ttl: Duration) -> int:
    ttl_ms = to_ms(ttl, "ttl")
    if not MIN_CONSUMER_TTL_MS <= ttl_ms <= MAX_CONSUMER_TTL_MS:
        raise InvalidRequest("ttl", "between 1s and 365d", ttl)
    return ttl_ms


def read_parts(parts: object) -> list[str]:
    if isinstance(parts, str) or not isinstance(parts, Sequence) or len(parts) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("parts", f"a list of at most {MAX_BATCH_MESSAGES} names of parts", parts)
    return [check_text(part, "parts", MAX_PART_BYTES) for part in parts]


class CheckedItems(NamedTuple):
    """The items in stored form: a record of each, the claim that its handle names, and the carries of
    extensions by position in the list.
    """

    recorded: list[Recorded]
    claim_ids: list[int]
    carries: dict[int, bytes | None]

    def to_store(self) -> list[Recorded]:
        """The records to store. An extension without progress needs none, because its carry goes into the
        message's state.
        """
        if not self.carries:
            return self.recorded
        return [one for one in self.recorded if one.progress or one.kind != "extend"]

    def in_steps(self, size: int) -> list[CheckedItems]:
        """The same items in lists of at most `size`; at least one list, which may be empty."""
        starts = range(0, max(1, len(self.recorded)), size)
        steps = [
            CheckedItems(self.recorded[start : start + size], self.claim_ids[start : start + size], {})
            for start in starts
        ]
        for at, carry in self.carries.items():
            steps[at // size].carries[at % size] = carry
        return steps

    @property
    def has_carry(self) -> bool:
        return any(carry is not None for carry in self.carries.values())


def read_items(items: object, part: str) -> CheckedItems:
    """Check all items. One wrong item fails the whole call, and nothing of it is recorded."""
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)) or len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest(
            "items",
            f"a list of at most {MAX_BATCH_MESSAGES} Complete, Fail, Release, Start or Extend",
            type(items),
        )
    checked = CheckedItems([], [], {})
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
        checked.claim_ids.append(claim_id)
        if isinstance(item, Extend):
            checked.carries[len(checked.recorded)] = _check_extend(item)
        checked.recorded.append(_to_record(item, raw_id))
    return checked


def _check_extend(item: Extend) -> bytes | None:
    if item.duration is not None:
        raise InvalidRequest("duration", "None: a numbered claim lasts until it is closed", item.duration)
    return check_carry(item.carry)


def _to_record(item: Complete | Fail | Release | Extend | Start, raw_id: bytes) -> Recorded:
    if isinstance(item, Complete):
        return Recorded(raw_id, "complete", check_progress(item.progress))
    if isinstance(item, Release):
        return Recorded(raw_id, "release", keep_order=check_bool(item.keep_order, "keep_order"))
    if isinstance(item, Start):
        return Recorded(raw_id, "start")
    if isinstance(item, Extend):
        return Recorded(raw_id, "extend", check_progress(item.progress))
    fail = check_fail(item)
    if fail.close:
        raise InvalidRequest(
            "close", "None: a numbered claim says later what becomes of its messages", fail.close
        )
    return Recorded(raw_id, "fail", fail.progress, fail.error, int(fail.reason), fail.retry_in_ms, fail.dead)


# Generations and numbers


def check_generation(record: ConsumerRecord, generation: int) -> None:
    """Raise `StaleConsumer` unless this is the newest generation."""
    if record.generation != generation:
        raise StaleConsumer(record.name, generation, record.generation)


def check_not_over(record: ConsumerRecord, number: int) -> None:
    if number and number == record.lost:
        raise ClaimReleased(record.name, number, record.lost_why)
    if number <= record.last_closed:
        raise ClaimClosed(record.name, number, record.last_closed)


def check_next(record: ConsumerRecord, generation: int, number: int) -> None:
    """Check that the number is the next one, or that of the open claim."""
    check_generation(record, generation)
    check_not_over(record, number)
    if number != record.last_closed + 1:
        raise ClaimNotNext(record.name, number, record.last_closed)


def check_opened(record: ConsumerRecord, generation: int, number: int) -> None:
    """Check that the open claim has this number, and that a caller has received the claim."""
    check_generation(record, generation)
    check_not_over(record, number)
    if record.phase != "open" or record.number != number:
        raise ClaimNotNext(record.name, number, record.last_closed)


def check_same_default_outcome(record: ConsumerRecord, default_outcome: DefaultOutcome) -> None:
    """Refuse a change while a claim is open: the consumer that made the claim relied on this default outcome."""
    if record.in_hand and record.default_outcome != default_outcome:
        expected = f"{record.default_outcome!r} while claim {record.number} is open: close it, or let go of it ({_release_command(record)})"
        raise InvalidRequest("default_outcome", expected, default_outcome)


def why_in_claim(record: ConsumerRecord) -> str:
    """Why no other caller may move a member of the open claim."""
    return f"in claim {record.number} of consumer {record.name!r}: `{_release_command(record)}` lets go of it"


def _release_command(record: ConsumerRecord) -> str:
    return f"fairlead consumer release {record.queue} {quote(record.name)}"


# What follows


def grant_turn(turns: tuple[int, ...], slice: int, slices: int) -> tuple[int, ...]:
    """The turns of all slices once this one begins.

    A claim that is cut into another number of slices overlaps every earlier slice, so all earlier turns end, and no
    slice of the new cut counts as untouched.
    """
    if turns and len(turns) != slices:
        turns = (max(turns) + 1,) * slices
    turns = turns or (0,) * slices
    return (*turns[:slice], turns[slice] + 1, *turns[slice + 1 :])


def has_begun(turns: tuple[int, ...], slice: int, slices: int) -> bool:
    """Whether a task began part of the slice earlier."""
    return bool(turns) and (len(turns) != slices or turns[slice] > 0)


def check_turn(record: ConsumerRecord, slice: int, turn: int) -> None:
    """Raise `StaleSlice` if the slice has begun again since `turn` was granted. Turn 0 asks for no check."""
    if not turn:
        return
    current = record.turns[slice] if slice < len(record.turns) else 0
    if turn != current:
        raise StaleSlice(record.name, record.number, slice, turn, current)


def lose_queue(record: ConsumerRecord) -> ConsumerRecord:
    """The consumer after its queue was deleted: its open claim is lost."""
    if not record.in_hand:
        # The claim was closed or released already; the rest of it went with the queue.
        return record.without_claim()
    lost = msgspec.structs.replace(
        record, last_closed=record.number, lost=record.number, lost_why=f"queue {record.queue!r} was deleted"
    )
    return lost.without_claim()


def expires_ms(record: ConsumerRecord) -> int:
    return record.seen_ms + record.ttl_ms


def info_of(record: ConsumerRecord) -> ConsumerInfo:
    in_hand = record.in_hand
    return ConsumerInfo(
        name=record.name,
        queue=record.queue,
        generation=record.generation,
        last_closed=record.last_closed,
        open=record.number if in_hand else 0,
        messages=record.messages if in_hand else 0,
        bytes=record.bytes if in_hand else 0,
        lost=record.lost,
        ttl_ms=record.ttl_ms,
        seen_at=record.seen_ms,
        expires_at=expires_ms(record),
        default_outcome=record.default_outcome,
    )
