from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.message import pack_headers, unpack_headers

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(st.dictionaries(texts, texts, max_size=5))
def test_packed_headers_read_back(headers: dict[str, str]) -> None:
    assert unpack_headers(pack_headers(headers)) == headers


def test_no_headers_take_no_room() -> None:
    assert pack_headers(None) == pack_headers({}) == b""
