"""Values nested just deeply enough to be read, and too deeply for whoever must say what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.errors import InvalidRequest
from fairlead.verbs.inspect import Stats
from fairlead.wire.calls import ClaimCall, WriteCall, decode, encode
from fairlead.wire.depth import MAX_NESTED, check_depth
from fairlead.wire.writes import decode_fields


def nested(depth: int, innermost: Any = None) -> Any:
    for _ in range(depth):
        innermost = [innermost]
    return innermost


def test_values_as_deep_as_may_be_pass_and_deeper_ones_do_not() -> None:
    check_depth([1, "x", nested(MAX_NESTED), {"a": nested(MAX_NESTED - 1)}], "x")
    deep_key: Any = None
    for _ in range(MAX_NESTED):
        deep_key = (deep_key,)
    for value in (nested(MAX_NESTED + 1), {"a": nested(MAX_NESTED)}, {deep_key: 1}):
        with pytest.raises(InvalidRequest, match="nested at most"):
            check_depth([1, value], "x")


@pytest.mark.parametrize("depth", [40, 500, 900, 950, 960, 970, 980, 985, 990, 993, 996, 1000, 5000])
def test_no_depth_is_read_that_cannot_be_told_of(depth: int) -> None:
    deep = b"\x91" * depth + b"\xc0"
    for kind, raw in (
        (ClaimCall, b"\x81\xa7session" + deep),
        (WriteCall, b"\x82\xa4verb\xa1x\xa7arrived" + deep),
        (WriteCall, b"\x82\xa4verb\xa1x\xa6fields" + deep),
    ):
        with pytest.raises(InvalidRequest, match="app_metadata"):
            decode(raw, kind)
    with pytest.raises(InvalidRequest, match="arguments"):
        decode_fields(Stats, b"\x81\xa5queue" + deep)


def test_what_is_not_deep_is_what_it_was() -> None:
    assert decode(encode({"session": ["a", "b"]}), ClaimCall).session == ["a", "b"]
    assert decode_fields(Stats, encode({"queue": "q", "keys": True})) == Stats("q", keys=True)
