"""What must hold about numbered claims: what a consumer has in hand is leased to it, all of it and nothing else."""

from __future__ import annotations

from fairlead.model.consumer import ConsumerRecord
from fairlead.model.ids import show_id
from fairlead.model.lease import Lease
from fairlead.store.port import Store

_PAGE = 64


def check_consumers(store: Store) -> list[str]:
    """Every broken law, as a sentence."""
    # Leases of a queue that is being deleted belong to nobody: its consumers have lost them.
    queues = {record.queue_id for record in store.queues() if record.name}
    pinned = {lease.id: lease for lease in store.leases() if lease.pinned and lease.queue_id in queues}
    problems = [problem for record in store.consumers() for problem in _claim_in_hand(store, record, pinned)]
    return problems + [f"message {show_id(id)} is leased to a numbered claim that does not have it" for id in pinned]


def _claim_in_hand(store: Store, record: ConsumerRecord, pinned: dict[bytes, Lease]) -> list[str]:
    """Of one that is over, those that its steps have not come to. What it has is taken out of `pinned`."""
    name = f"claim {record.number} of consumer {record.name!r}"
    members, problems = store.claim_members(record.name, record.number), []
    said = _count_outcomes(store, record)
    if (len(members), said) != (record.messages, record.recorded):
        problems.append(f"{name} has {len(members)} members and {said} outcomes, its record says {record.messages} and {record.recorded}")
    if len(set(members)) != len(members):
        problems.append(f"{name} has a member twice")
    if (record.phase == "idle") != (record.number == 0) or (record.phase == "idle") != (record.claim_id == 0):
        problems.append(f"{name} is {record.phase}, with claim id {record.claim_id:x}")
    for member in members[record.handled :]:
        lease = pinned.pop(member, None)
        if lease is None or (lease.claim_id, lease.queue_id) != (record.claim_id, record.queue_id):
            problems.append(f"message {show_id(member)} is in {name}, but not leased to it")
    return problems


def _count_outcomes(store: Store, record: ConsumerRecord) -> int:
    count = 0
    while page := len(store.claim_outcomes(record.name, record.number, count, _PAGE)):
        count += page
    return count
