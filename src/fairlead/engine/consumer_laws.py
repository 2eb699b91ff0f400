"""Invariants of numbered claims: all members of an open claim are leased to it, and nothing else is; it reads
the same after a restart; and recorded outcomes are about its members.
"""

from __future__ import annotations

from collections import defaultdict

from fairlead.decide.claim_outcomes import ClaimOutcomes
from fairlead.engine.memory import Memory
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.ids import show_id
from fairlead.records.consumer import ChosenParts, RecordedCall
from fairlead.records.ids import BLOCK_MASK, id_of
from fairlead.records.lease import GroupLease
from fairlead.store.kv.port import KeyValueStore, Table
from fairlead.store.rows import read_outcomes


def consumer_differences(memory: Memory, again: Memory) -> list[str]:
    """Differences from `again`, which is the memory that a reopening would build."""
    if _members(memory, _claims(memory)) == _members(again, _claims(again)):
        return []
    return ["the members of numbered claims, or their order, differ after a reopening"]


def broken_consumer_laws(memory: Memory, store: KeyValueStore) -> list[str]:
    said, leases = read_outcomes(store), _claims(memory)
    records = {
        record.claim_id: record for record in memory.records[Table.CONSUMERS].values() if record.claim_id
    }
    broken = []
    if memory.consumers.holders != records:
        broken.append("the holders of numbered claims differ from the records of their consumers")
    broken += [f"numbered claim {claim_id:x} has no consumer" for claim_id in leases.keys() - records.keys()]
    broken += [
        f"outcomes of claim {claim_id:x} have no consumer" for claim_id in said.keys() - records.keys()
    ]
    for consumer in memory.records[Table.CONSUMERS].values():
        if consumer.turns and not consumer.claim_id:
            broken.append(f"consumer {consumer.name!r} has turns of slices, but no claim")
    for claim_id, record in records.items():
        broken += [
            f"claim {record.number} of consumer {record.name!r} {problem}"
            for problem in _problems(memory, record, leases.get(claim_id, []), said.get(claim_id, {}))
        ]
    return broken


def _claims(memory: Memory) -> dict[int, list[GroupLease]]:
    found: dict[int, list[GroupLease]] = defaultdict(list)
    for lease in sorted({lease for lease in memory.held.values() if lease.is_numbered}):
        found[lease.terms.claim_id].append(lease)
    return found


def _members(memory: Memory, claims: dict[int, list[GroupLease]]) -> dict[int, list[int]]:
    return {
        claim_id: [number for lease in leases for number in memory.members_of(lease)]
        for claim_id, leases in claims.items()
    }


def _problems(
    memory: Memory,
    record: ConsumerRecord,
    leases: list[GroupLease],
    said: dict[int, RecordedCall | ChosenParts],
) -> list[str]:
    broken = []
    members = [number for lease in leases for number in memory.members_of(lease)]
    size = sum(memory.chunk_of(number).columns.size_of(number & BLOCK_MASK) for number in members)
    if record.in_hand and (len(members), size) != (record.messages, record.bytes):
        broken.append(f"has {len(members)} members of {size} bytes, its record says otherwise: {record}")
    if record.phase == "idle" or not record.number:
        broken.append(f"is {record.phase}, with claim id {record.claim_id:x}")
    calls = sorted(call for call in said if call)
    if calls != [*range(1, record.recorded + 1)]:
        broken.append(f"has outcomes of calls {calls}, its record says {record.recorded}")
    if record.phase == "open":
        ids = {id_of(memory.chunk_of(number).prefix, number) for number in members}
        strangers = _outcome_ids(said) - ids
        if strangers:
            broken.append(f"has outcomes of messages that are not in it: {sorted(map(show_id, strangers))}")
    known = memory.consumers.outcomes.get(record.claim_id)
    if known is not None and record.phase == "open" and _shown(known) != _shown(_told(said)):
        broken.append("has other outcomes in memory than in the store")
    look_ms = memory.consumers.next_look_ms
    if look_ms is None or look_ms > (0 if record.under_way else record.seen_ms + record.ttl_ms):
        broken.append("ends without anybody looking")
    return broken


def _outcome_ids(said: dict[int, RecordedCall | ChosenParts]) -> set[bytes]:
    return {one.id for call in said.values() if isinstance(call, RecordedCall) for one in call.recorded}


def _told(said: dict[int, RecordedCall | ChosenParts]) -> ClaimOutcomes:
    chosen, told = {""}, ClaimOutcomes()
    for _, one in sorted(said.items()):
        if isinstance(one, ChosenParts):
            chosen.update(one.parts)
        elif one.part in chosen:
            told.add(one.recorded)
    return told


def _shown(told: ClaimOutcomes) -> tuple[object, ...]:
    return told.outcomes, list(told.begun), told.progress
