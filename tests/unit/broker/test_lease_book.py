"""The lease book finds every overdue lease, and each of them once."""

from __future__ import annotations

from fairlead.broker.leases import LeaseBook
from fairlead.model.lane import pack_lane, pack_row
from fairlead.model.lease import Claim, Lease

CLAIM = Claim(claim_id=7, consumer="c", token="", granted_ms=0, lease_ms=100)


def lease(number: int) -> Lease:
    row = pack_row(number, number.to_bytes(16, "big"), 1, 0, 10)
    return Lease(1, pack_lane("k"), row, CLAIM.claim_id, expires_ms=100, deliveries=1, started=True, deadline_ms=100, consumer="c")


def test_leases_of_one_claim_found_at_open_are_overdue_once_each() -> None:
    book = LeaseBook()
    for number in range(3):
        book.load(CLAIM, lease(number))
    assert len(book.overdue(100, 1000)) == 3


def test_a_lease_moved_to_an_earlier_end_is_overdue_once() -> None:
    book = LeaseBook()
    held = [lease(1), lease(2)]
    book.add(CLAIM, held)
    book.extend(held[0], 50, 50)
    assert book.overdue(60, 1000) == [held[0]]
    assert book.overdue(100, 1000) == held
