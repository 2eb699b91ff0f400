"""Values that are nearly always wrong, whatever they are given for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]

#: As MessagePack can carry them.
NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1, -(1 << 63), 0.5, float("nan"), float("inf"), 1e308,
    "", "x", "\0", "a\x1b[31m", "\u202e", "q/../q", "../../etc", "a/b/c", "-x", "--help", "x" * 5000, "é" * 300, "9" * 400 + "d",
    b"", b"\xff" * 40, [], [[]], ["x"], [None], [b"x"], {}, {"a": 1}, {1: 2}, {(1, 2): 3}, DEEP,
    msgspec.msgpack.Ext(5, b"x"), datetime(2026, 1, 1, tzinfo=UTC),
    {"policy": []}, {"policy": "fixed", "jitter": []}, {"failures": {}, "within": 1, "pause": []},
    [{"payload": 1}], [{"payload": b"x", "headers": {"a": b"x"}}], [{"payload": b"x", "headers": [1]}], [{"payload": b"x", "delay": 5}],
    [{"payload": b"x", "throttle_keys": {"a": 1}}], [{"payload": b"x", "throttle_keys": [[]]}], [{"payload": b"x", "fairness_key": []}],
    [{"payload": b"x", "weight": 1.5}],
    {"reason": []}, {"reason": 1e300}, {"error": 1}, {"error_regex": "("}, {"error_regex": "a" * 100_000},
    {"error_regex": "(a{1000}){1000}"}, {"error_regex": "(" * 5000}, {"key": 5}, {"header": [1, 2]}, {"header": "ab"}, {"older_than": 5},
    {"min_attempts": True}, {"max_attempts": -1}, {"unknown": 1},
    {"queue": "q", "limit": 0}, {"queue": []}, {"queue": "q", "wait": 1}, {"queue": "q", "started": 1}, {"queue": ["q", 1]},
    [["q", 1]], [["q", -1]], [["q", 1 << 63]], [["q", 1, 2]], [[None, 1]], [[["q"], 1]], [["q", True]], [["q", 1], ["q", 0]],
    [[b"x", b"\xc1"]], [[b"x", None, "k", 1.5]], [[b"x", None, "k", 1, ["a"] * 100 + [""]]], [[b"x", None, "k", 1, [], "s", 1 << 63]],
    [[b"x", None, "k", 1, [], "s", 1, "d", -5]], [[9, b"x" * 16, 1]], [[1, b"x" * 16, 1, "e", 0, (1 << 64) - 1, 1 << 63, True]],
    [[3, b"x" * 16, (1 << 64) - 1, None, None, 0, None, None, None, 1 << 62]], ["not-a-uuid"], "01890000-0000-7000-8000-000000000000",
]  # fmt: skip

#: Whole maps that are none.
NO_MAPS: list[bytes] = [
    b"", b"\xc0", b"\xc1", b"\x90", b"\xff" * 9, b"\x91" * 100_000, b"\x81" * 100_000, b"\x81\xa1a", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\x81\x80\x01", b"\x81\xa3\xed\xa0\x80\x01", b"\x80\x80", b"\xc7\x01\x05a",
    b"\x82\xa5queue\xa1q\xa5queue" + b"\x91" * 5000,
]  # fmt: skip
