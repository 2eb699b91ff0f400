"""Leases: the members of one claim that expire together share one object and one row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from operator import sub
from typing import TypeAlias

import msgspec

#: Consecutive numbers: the first one, and their count.
Run: TypeAlias = tuple[int, int]

#: The expiry of leases of a numbered claim, which last until the claim is closed or released.
NEVER_EXPIRES_MS = (1 << 63) - 1


class LeaseTerms(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The properties that all members of a lease share.

    `claim_id` is the fencing token. It contains the epoch, so a claim that a power cut undid never shares it
    with a later claim. `group` is unique: at first the claim's own id, and another one for members whose
    lease was extended or started separately. `token` is the caller's own, for idempotent claims. `home_id` is
    the queue that its members were enqueued into: `queue_id`, or the source of that dead-letter queue.
    """

    group: int
    claim_id: int
    queue_id: int
    home_id: int
    claimed_ms: int
    expires_ms: int
    lease_ms: int
    consumer: str
    token: str
    started: bool

    @property
    def is_numbered(self) -> bool:
        """Whether the lease belongs to a numbered claim: it ends with the claim, and nothing else may move
        its members.
        """
        return self.expires_ms == NEVER_EXPIRES_MS


class LeaseRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stored form of a lease. Runs of a numbered claim are in the claim's order, so that it reads the
    same after a restart.
    """

    terms: LeaseTerms
    runs: list[Run]


class GroupLease(msgspec.Struct, gc=False, eq=False):
    """A live object, which only `Memory.apply` changes. `live` counts the members that are still held.

    There may be one for each leased message. It refers to nothing that refers back to it, so the garbage
    collector does not track it.
    """

    terms: LeaseTerms
    numbers: Sequence[int]
    #: All members of the claim in the order of delivery, if these are not all of them.
    whole_claim: Sequence[int] = ()
    live: int = 0

    @property
    def claim_order(self) -> Sequence[int]:
        """All members of the claim in the order of delivery; after a restart, those of the group by number."""
        return self.whole_claim or self.numbers

    @property
    def is_numbered(self) -> bool:
        return self.terms.expires_ms == NEVER_EXPIRES_MS

    def row(self) -> LeaseRow:
        if len(self.numbers) == 1:
            return LeaseRow(self.terms, [(self.numbers[0], 1)])
        return LeaseRow(self.terms, to_runs(self.numbers, in_order=self.is_numbered))

    @classmethod
    def from_row(cls, row: LeaseRow) -> GroupLease:
        numbers = [number for first, count in row.runs for number in range(first, first + count)]
        return cls(row.terms, numbers)

    def ends_with(self, other: GroupLease) -> bool:
        """Whether both belong to one claim and expire at the same time."""
        mine, others = self.terms, other.terms
        return mine.claim_id == others.claim_id and mine.expires_ms == others.expires_ms

    def __lt__(self, other: GroupLease) -> bool:
        """Compares groups: in the heap of expiries, leases of one claim that expire together are neighbours."""
        return self.terms.group < other.terms.group


def to_runs(numbers: Sequence[int], *, in_order: bool = False) -> list[Run]:
    """Runs of consecutive numbers: sorted, or in the given order."""
    ordered = numbers if in_order else sorted(numbers)
    if not in_order and ordered[-1] - ordered[0] + 1 == len(ordered):
        return [(ordered[0], len(ordered))]
    # The differences of neighbours are computed in C: claims have up to 50,000 members, and few differences
    # are not 1.
    steps = enumerate(map(sub, islice(ordered, 1, None), ordered), 1)
    starts = [0, *[at for at, step in steps if step != 1], len(ordered)]
    return [(ordered[start], end - start) for start, end in pairwise(starts)]
