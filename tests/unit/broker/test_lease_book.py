"""Who holds what until when."""

from __future__ import annotations

from fairlead.broker.leases import LeaseBook
from fairlead.model.facts import ClaimEnded
from fairlead.model.lane import pack_lane, pack_row
from fairlead.model.lease import NEVER_EXPIRES_MS, Claim, Lease

LANE = pack_lane("k")


def grant(
    book: LeaseBook, claim_id: int, numbers: list[int], *, token: str = "", queue_id: int = 1
) -> list[Lease]:
    """Leases of ann that end at 100."""
    claim = Claim(claim_id, "ann", token, 0, 100)
    leases = [Lease(queue_id, LANE, row(number), claim_id, 100, 1, True, 100, "ann") for number in numbers]
    book.add(claim, leases)
    return list(leases)


def row(number: int) -> bytes:
    return pack_row(number, number.to_bytes(16, "big"), 1, 0, 0)


def test_leases_are_overdue_at_their_deadline_and_stay_until_they_are_removed() -> None:
    book = LeaseBook()
    leases = grant(book, 1, [1, 2])
    assert book.overdue(99, 10) == []
    assert book.overdue(100, 10) == leases
    assert book.next_deadline_ms() == 101, "should the expiry not be committed, they are found again"
    assert book.overdue(101, 10) == leases
    book.remove(leases)
    assert book.overdue(200, 10) == []
    assert book.next_deadline_ms() is None


def test_a_lease_moved_to_an_earlier_end_is_found_then_and_the_others_later() -> None:
    book = LeaseBook()
    first, second = grant(book, 1, [1, 2])
    book.extend(first, 50, 50)
    assert book.next_deadline_ms() == 50
    assert book.overdue(50, 10) == [first]
    book.remove([first])
    assert book.overdue(99, 10) == []
    assert book.overdue(100, 10) == [second]


def test_a_lease_moved_to_a_later_end_is_not_found_before() -> None:
    book = LeaseBook()
    first, second = grant(book, 1, [1, 2])
    book.extend(first, 300, 300)
    assert book.overdue(100, 10) == [second]
    book.remove([second])
    assert book.overdue(299, 10) == []
    assert book.overdue(300, 10) == [first]


def test_a_group_ends_with_its_last_lease_and_not_when_another_enters_it() -> None:
    book = LeaseBook()
    first, second = grant(book, 1, [1, 2])
    assert book.ended_by([first]) == []
    assert book.ended_by([first, second]) == [ClaimEnded(100, 1)]
    book.remove([first])
    assert book.ended_by([second]) == [ClaimEnded(100, 1)]
    assert book.ended_by([second], [second]) == []


def test_consumers_are_counted_per_queue_and_forgotten_with_their_last_lease() -> None:
    book = LeaseBook()
    in_one = grant(book, 1, [1, 2])
    in_two = grant(book, 2, [3], queue_id=2)
    assert (book.unsettled("ann", 1), book.unsettled("ann", 2), book.unsettled("bob", 1)) == (2, 1, 0)
    assert (book.consumers(1), book.consumers(2)) == ({"ann"}, {"ann"})
    book.remove(in_one)
    assert (book.consumers(1), book.of_consumer("ann")) == (set(), in_two)
    book.remove(in_two)
    assert book.of_consumer("ann") == []


def test_a_token_names_the_live_leases_of_all_its_claims() -> None:
    book = LeaseBook()
    first = grant(book, 1, [1, 2], token="t")
    second = grant(book, 2, [3], token="t")
    assert book.under_token("t") == [*first, *second]
    book.remove(first)
    assert book.under_token("t") == second
    book.remove(second)
    assert book.under_token("t") == []


def test_leases_read_back_one_by_one_make_the_same_book() -> None:
    book = LeaseBook()
    claim = Claim(1, "ann", "t", 0, 100)
    leases = [Lease(1, LANE, row(number), 1, 100 * number, 1, True, 100 * number, "ann") for number in (2, 1)]
    for lease in leases:
        book.load(claim, lease)
    assert set(map(id, book.under_token("t"))) == set(map(id, leases))
    assert book.overdue(100, 10) == [leases[1]]
    assert book.ended_by([leases[1]]) == [ClaimEnded(100, 1)]
    book.remove([leases[1]])
    assert book.overdue(200, 10) == [leases[0]]


def test_a_claim_that_never_expires_grows_piece_by_piece_and_leaves_nothing_to_wake_up_for() -> None:
    book = LeaseBook()
    claim = Claim(1, "etl", "", 0, NEVER_EXPIRES_MS)
    pieces = [
        [Lease(1, LANE, row(n), 1, NEVER_EXPIRES_MS, 1, True, NEVER_EXPIRES_MS, "etl") for n in numbers]
        for numbers in ([1, 2], [3])
    ]
    for piece in pieces:
        book.add(claim, list(piece))
    first, second, third = (lease for piece in pieces for lease in piece)
    assert book.next_deadline_ms() is None
    assert book.of_consumer("etl") == [first, second, third]
    assert book.unsettled("etl", 1) == 3
    assert book.ended_by([first, second]) == []
    book.remove([first, second])
    assert book.ended_by([third]) == [ClaimEnded(NEVER_EXPIRES_MS, 1)]
    book.remove([third])
    assert book.of_consumer("etl") == []
    loaded = LeaseBook()
    for lease in (first, second, third):
        loaded.load(claim, lease)
    assert loaded.next_deadline_ms() is None
    assert len(loaded.of_consumer("etl")) == 3
