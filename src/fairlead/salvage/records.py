"""Numbered claims and staged writes among the rows of a damaged directory: complete ones are kept, the others
are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.decide.staging import OWN_TOKENS
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.names import Scoped
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.records.consumer import ChosenParts, RecordedCall
from fairlead.records.staging import StagedPart
from fairlead.salvage.report import RepairReport


class ClaimMember(NamedTuple):
    """A message that a numbered claim holds."""

    id: bytes
    size: int


Said = Mapping[int, RecordedCall | ChosenParts]
#: The queue and the number of a part.
Where = tuple[int, int]


def why_broken(record: ConsumerRecord, members: Sequence[ClaimMember], said: Said) -> str | None:
    """Why a consumer's claim cannot be kept, or None if it can."""
    if record.phase == "idle" or not record.number:
        return "its record contradicts itself"
    if record.in_hand and len(members) != record.messages:
        return f"{len(members)} of its {record.messages} members are known"
    if record.in_hand and sum(member.size for member in members) != record.bytes:
        return "its members are not those that it had"
    calls = [call for call in sorted(said) if call]
    if calls != [*range(1, record.recorded + 1)]:
        return f"{len(calls)} of {record.recorded} calls about it are known"
    ids = {member.id for member in members}
    recorded = [one for call in said.values() if isinstance(call, RecordedCall) for one in call.recorded]
    if record.in_hand and any(one.id not in ids for one in recorded):
        return "a call about it names a message that is not its member"
    return None


def lose_claim(record: ConsumerRecord, why: str, report: RepairReport) -> ConsumerRecord:
    """The consumer without its claim, as after a deleted queue: the number counts as closed, and the consumer
    learns of the loss.
    """
    lost = replace(
        record, last_closed=record.number, lost=record.number, lost_why=f"the data was repaired: {why}"
    )
    claim = f"claim {record.number} of consumer {record.name!r} of queue {record.queue!r}"
    report.other.append(f"{claim} is gone ({why}); its saved messages are ready again")
    return lost.without_claim()


@dataclass
class StagedRows:
    """The rows of staged writes by key, and parts by queue and number."""

    chunks: dict[bytes, StagedChunk]
    parts: dict[Where, StagedPart]
    publishing: dict[bytes, Publishing]
    published: dict[bytes, Published]


def keep_staged(
    found: StagedRows,
    queue_ids: Collection[int],
    used: Collection[Where],
    has_pages: Callable[[Where, StagedPart], bool],
    report: RepairReport,
) -> StagedRows:
    """The rows that can be kept. `used` are parts that have become messages."""
    done = {record.write for record in found.published.values()}
    begun = {record.write: record for record in found.publishing.values() if record.write not in done}
    kept = StagedRows({}, {}, {}, found.published)
    names: dict[Scoped, set[str]] = {}
    cut_off: set[Where] = set()
    for key, chunk in found.chunks.items():
        parts = _parts_left(chunk, begun.get(chunk.write))
        # A finished write has no chunks; these are left over from before.
        if chunk.write in done:
            continue
        # A large enqueue had staged these when it was interrupted. No caller can publish them.
        if chunk.token.startswith(OWN_TOKENS) and chunk.write not in begun:
            cut_off |= {(chunk.queue_id, number) for number, _ in chunk.parts}
            continue
        is_whole = chunk.count == sum(count for _, count in chunk.parts) and all(
            _is_whole(chunk, (chunk.queue_id, number), count, found.parts, queue_ids, used, has_pages)
            for number, count in parts
        )
        if not is_whole:
            report.other.append(
                f"chunk {chunk.chunk!r} of the staged write {chunk.token!r} to {chunk.queue!r} is not whole, and is gone"
            )
            continue
        kept.chunks[key] = chunk
        names.setdefault(chunk.write, set()).add(chunk.chunk)
        kept.parts |= {(chunk.queue_id, number): found.parts[chunk.queue_id, number] for number, _ in parts}
    for key, record in found.publishing.items():
        if record.write not in done:
            kept.publishing[key] = _what_is_left(record, names.get(record.write, set()), report)
    lost = found.parts.keys() - kept.parts.keys() - set(used) - cut_off
    if lost:
        report.other.append(
            f"{len(lost)} parts of staged chunks are gone: no staged chunk that is whole has them"
        )
    return kept


def _parts_left(chunk: StagedChunk, record: Publishing | None) -> list[tuple[int, int]]:
    """The parts of a chunk that are not messages yet."""
    skipped = record.offset if record is not None and record.chunks[:1] == (chunk.chunk,) else 0
    left = []
    for number, count in chunk.parts:
        skipped -= count
        if skipped < 0:
            left.append((number, count))
    return left


def _is_whole(
    chunk: StagedChunk,
    where: Where,
    count: int,
    parts: Mapping[Where, StagedPart],
    queue_ids: Collection[int],
    used: Collection[Where],
    has_pages: Callable[[Where, StagedPart], bool],
) -> bool:
    part = parts.get(where)
    if part is None or where in used or part.count != count:
        return False
    if bool(part.deaths) != chunk.dead or len(part.deaths) not in (0, 1, count):
        return False
    # The pages of a deleted queue were deleted with it.
    return part.inline is not None or chunk.queue_id not in queue_ids or has_pages(where, part)


def _what_is_left(record: Publishing, names: Collection[str], report: RepairReport) -> Publishing:
    """The rest of a published write, which becomes messages because the broker confirmed the publication."""
    chunks = tuple(name for name in dict.fromkeys(record.chunks) if name in names)
    missing = [name for name in record.chunks if name not in chunks]
    if missing:
        report.other.append(f"chunks {missing} of the published write {record.token!r} are gone")
    is_same_first = chunks[:1] == record.chunks[:1]
    return replace(record, chunks=chunks, offset=record.offset if is_same_first else 0)
