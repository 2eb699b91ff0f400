from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.lane import Flag, pack_lane, row_flags, row_id, row_place, row_size, row_weight
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import Message, pack_headers, unpack_headers

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(st.dictionaries(texts, texts, max_size=5))
def test_packed_headers_read_back(headers: dict[str, str]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


def test_no_headers_take_no_room() -> None:
    assert pack_headers(None) == pack_headers({}) == b""


@given(st.integers(0, 2**50), st.booleans(), st.booleans(), st.integers(1, 1000), st.binary(max_size=50))
def test_the_row_of_a_message_says_what_else_is_stored_about_it(
    place: int, ttl: bool, live: bool, weight: int, payload: bytes
) -> None:
    message = Message(
        id=b"i" * 16,
        queue_id=1,
        lane=pack_lane("k"),
        weight=weight,
        headers=pack_headers({"a": "b"}),
        payload=payload,
        enqueued_ms=5,
        place=place,
        expires_ms=9 if ttl else 0,
        dedup_key="d" if live else "",
        live_dedup=live,
    )
    row = message.row(place, message.flags)
    assert (row_place(row), row_id(row), row_weight(row)) == (place, message.id, weight)
    assert row_size(row) == message.size == len(payload) + len(pack_headers({"a": "b"}))
    assert bool(row_flags(row) & Flag.TTL) == ttl
    assert bool(row_flags(row) & Flag.LIVE_DEDUP) == live
    assert not row_flags(row) & Flag.STATE
    lease = Lease(
        queue_id=1, lane=message.lane, row=row, claim_id=1, expires_ms=1, deliveries=1, started=True
    )
    assert lease.id == message.id


@given(st.integers(1, 2**60), st.integers(1, 2**60))
def test_two_claims_never_share_a_lease_token(one: int, other: int) -> None:
    tokens = [
        Claim(claim_id=n, consumer="", token="", granted_ms=0, lease_ms=1).lease_token for n in (one, other)
    ]
    assert (tokens[0] == tokens[1]) == (one == other)
