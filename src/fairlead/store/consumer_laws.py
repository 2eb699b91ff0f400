"""What must hold about numbered claims: what a consumer has in hand is leased to it, all of it and nothing
else, and what was said is about that.
"""

from __future__ import annotations

import msgspec

from fairlead.model.consumer import ConsumerRecord, Recorded
from fairlead.model.ids import show_id
from fairlead.model.lease import Lease
from fairlead.store.port import Store

_PAGE = 64
_read_words = msgspec.msgpack.Decoder(list[Recorded]).decode


def check_consumers(store: Store) -> list[str]:
    """Every broken law, as a sentence."""
    # Leases of a queue that is being deleted belong to nobody: its consumers have lost them.
    queues = {record.queue_id for record in store.queues() if record.name}
    pinned = {lease.id: lease for lease in store.leases() if lease.pinned and lease.queue_id in queues}
    problems = [problem for record in store.consumers() for problem in _claim_in_hand(store, record, pinned)]
    return problems + [
        f"message {show_id(id)} is leased to a numbered claim that does not have it" for id in pinned
    ]


def _claim_in_hand(store: Store, record: ConsumerRecord, pinned: dict[bytes, Lease]) -> list[str]:
    """Of one that is over, those that its steps have not come to. What it has is taken out of `pinned`."""
    name = f"claim {record.number} of consumer {record.name!r} of {record.queue!r}"
    members, problems = store.claim_members(record.key, record.number), []
    calls, wrong = _look_at_words(store, record, set(members))
    if (len(members), calls) != (record.messages, record.recorded):
        problems.append(
            f"{name} has {len(members)} members and {calls} outcomes, its record says {record.messages} and {record.recorded}"
        )
    problems += [f"{name} {what}" for what in wrong]
    if len(set(members)) != len(members):
        problems.append(f"{name} has a member twice")
    if (record.phase == "idle") != (record.number == 0) or (record.phase == "idle") != (record.claim_id == 0):
        problems.append(f"{name} is {record.phase}, with claim id {record.claim_id:x}")
    if len(record.taken) != (record.slices + 7) // 8 or (record.slices and record.phase == "idle"):
        problems.append(
            f"{name} is cut into {record.slices} slices, with {len(record.taken)} bytes to say which were taken up"
        )
    for member in members[record.handled :]:
        lease = pinned.pop(member, None)
        if lease is None or (lease.claim_id, lease.queue_id) != (record.claim_id, record.queue_id):
            problems.append(f"message {show_id(member)} is in {name}, but not leased to it")
    return problems


def _look_at_words(store: Store, record: ConsumerRecord, members: set[bytes]) -> tuple[int, list[str]]:
    """In how many calls something was said, and what of it cannot be."""
    calls, problems = 0, list[str]()
    while page := store.claim_outcomes(record.key, record.number, calls, _PAGE):
        for at, (_, raw) in enumerate(page, calls):
            try:
                strangers = [word.id for word in _read_words(raw) if word.id not in members]
            except msgspec.DecodeError as why:
                problems.append(f"cannot be read in what call {at} said: {why}")
            else:
                problems += [
                    f"has words about message {show_id(stranger)}, which is not in it"
                    for stranger in strangers
                ]
        calls += len(page)
    return calls, problems
