"""Commands from bytes: however they arrive they are the same, and nothing but the error says that they are wrong."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.server.resp import parser
from fairlead.server.resp.parser import Command, CommandReader, LargeWord, join_words, size_of
from tests.doors.resp.wire import pack

_MAX_BYTES = 1000

commands = st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=5), max_size=5)
noise = st.lists(
    st.sampled_from(
        [
            b"*1\r\n",
            b"*3\r\n",
            b"$4\r\n",
            b"$0\r\n",
            b"PING",
            b"\r\n",
            b"\r",
            b"\n",
            b"*",
            b"$",
            b"-1",
            b"9",
            b"'",
            b'"',
            b"\\x4",
            b" ",
        ]
    )
    | st.binary(max_size=4),
    max_size=30,
).map(b"".join)


def read(pieces: list[bytes]) -> tuple[list[Command], str]:
    reader = CommandReader(_MAX_BYTES, 10)
    found = [command for piece in pieces for command in reader.feed(piece)]
    return found, str(reader.error)


@given(commands)
def test_commands_are_read_as_they_were_written(given: list[Command]) -> None:
    assert read([b"".join(pack(*command) for command in given)]) == (given, "None")


@given(commands, noise, st.lists(st.integers(0, 200), max_size=10))
def test_bytes_mean_the_same_however_they_arrive(given: list[Command], wrong: bytes, cuts: list[int]) -> None:
    raw = b"".join(pack(*command) for command in given) + wrong + pack("PING")
    places = sorted({0, len(raw), *[cut % (len(raw) + 1) for cut in cuts]})
    pieces = [raw[start:stop] for start, stop in pairwise(places)]
    whole = read([raw])
    for parts in (pieces, [raw[at : at + 1] for at in range(len(raw))]):
        found, error = read(parts)
        assert found == whole[0]
        # Its words may quote more or less of what was wrong.
        assert (error == "None") == (whole[1] == "None")


def test_what_is_kept_of_a_command_has_a_bound() -> None:
    reader = CommandReader(_MAX_BYTES, 10)
    reader.feed(b"*2\r\n$500\r\n" + b"x" * 500 + b"\r\n$400\r\nabc")
    assert 500 < reader.buffered < _MAX_BYTES
    assert reader.is_in_a_command
    reader = CommandReader(_MAX_BYTES, 10)
    reader.feed(b"*2\r\n$500\r\n" + b"x" * 500 + b"\r\n$501\r\n")
    assert reader.error is not None


def test_a_large_argument_is_put_together_once() -> None:
    reader = CommandReader(1 << 30, 10)
    reader.feed(b"*1\r\n$400000\r\n")
    for _ in range(100):
        assert reader.feed(b"x" * 4000) == []
    assert len(reader._pieces) == 101, "joined at every piece, it would take time in the square of its length"
    assert reader.feed(b"\r\n") == [[b"x" * 400_000]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"PING\r\n", [b"PING"]),
        (b"  a   b \n", [b"a", b"b"]),
        (b"\"a b\" 'c d'\r\n", [b"a b", b"c d"]),
        (b"\"\\x00\\n\\\"\" 'it\\'s'\r\n", [b'\x00\n"', b"it's"]),
        (b'""\r\n', [b""]),
    ],
)
def test_a_line_is_cut_into_words_as_redis_does(line: bytes, words: Command) -> None:
    assert read([line]) == ([words], "None")


@pytest.mark.parametrize("line", [b'"a\r\n', b"a'b\r\n", b'"a"b\r\n'])
def test_a_line_with_odd_quotes_is_refused(line: bytes) -> None:
    assert read([line])[1] != "None"


@given(commands, st.lists(st.integers(0, 200), max_size=10), st.integers(0, 20))
def test_large_arguments_are_the_same_once_they_are_joined(
    given_: list[Command], cuts: list[int], large: int
) -> None:
    raw = b"".join(pack(*command) for command in given_)
    places = sorted({0, len(raw), *[cut % (len(raw) + 1) for cut in cuts]})
    with mock.patch.object(parser, "LARGE_BYTES", large):
        found, error = read([raw[start:stop] for start, stop in pairwise(places)])
    assert ([join_words(one) for one in found], error) == (given_, "None")
    assert [size_of(one) for one in found] == [sum(map(len, one)) for one in given_]
    for one in found:
        assert all(word.pieces for word in one if isinstance(word, LargeWord))


def test_a_large_argument_without_a_line_end_is_refused() -> None:
    with mock.patch.object(parser, "LARGE_BYTES", 3):
        found, error = read([b"*1\r\n$5\r\nab", b"cde", b"xx*1\r\n"])
    assert found == []
    assert "line end" in error
