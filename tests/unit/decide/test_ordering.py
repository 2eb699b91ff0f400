"""Who may go next in a stream: seqs and where each message stands, in; the front, out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.decide.ordering import Standing, find_front, first_waiting, may_follow
from fairlead.model.stream import StreamRow

STANDING = {"r": Standing.READY, "w": Standing.WAITING, "l": Standing.LEASED}


class Stream:
    """Written as a word: the n-th letter is how the message with seq n stands; a dot is one that is gone."""

    def __init__(self, word: str) -> None:
        self.letters = {seq: letter for seq, letter in enumerate(word, 1) if letter != "."}
        self.looked_at = 0

    def rows_from(self, seq: int) -> Iterator[StreamRow]:
        for at in sorted(at for at in self.letters if at >= seq):
            self.looked_at += 1
            yield row(at)

    def standing(self, row: StreamRow) -> Standing:
        return STANDING[self.letters[row.seq]]

    def front(self, let_by: tuple[int, ...] = (), all_after: int = 0) -> int:
        leased = [seq for seq, letter in self.letters.items() if letter == "l"]
        found = find_front(
            self.rows_from,
            self.standing,
            let_by=let_by,
            all_after=all_after,
            lowest_leased=min(leased, default=None),
        )
        return found.seq if found else 0


def row(seq: int) -> StreamRow:
    return StreamRow(b"", seq.to_bytes(8, "big") + bytes(16))


@pytest.mark.parametrize(
    ("word", "let_by", "all_after", "front"),
    [
        ("", (), 0, 0),
        ("r", (), 0, 1),
        ("rrr", (), 0, 1),
        ("..r", (), 0, 3),
        ("wrr", (), 0, 0),
        (".wrr", (), 0, 0),
        ("lrr", (), 0, 0),
        ("wrr", (2,), 0, 2),
        ("wrr", (3,), 0, 3),
        ("wrr", (2, 3), 0, 2),
        ("wwr", (2, 3), 0, 3),
        ("wrr", (9,), 0, 0),
        ("rrr", (3,), 0, 1),
        ("wrrr", (), 1, 2),
        ("wwrr", (), 1, 0),
        ("wwrr", (), 2, 3),
        ("wwrr", (4,), 1, 4),
        ("wrrr", (4,), 1, 2),
        ("wlr", (3,), 0, 0),
        ("wrl", (2,), 0, 2),
        ("wlr", (), 1, 0),
        ("..w", (), 2, 0),
    ],
)
def test_the_front_is_the_earliest_that_nobody_holds_up(
    word: str, let_by: tuple[int, ...], all_after: int, front: int
) -> None:
    assert Stream(word).front(let_by, all_after) == front


def test_a_blocked_stream_costs_the_same_however_many_queue_up_behind() -> None:
    stream = Stream("w" + "r" * 5000)
    assert stream.front() == 0
    assert stream.looked_at <= 2


@given(st.text("rwl.", max_size=12), st.sets(st.integers(1, 12), max_size=4))
def test_the_front_never_passes_work_in_progress_and_passes_a_wait_only_when_let_by(
    word: str, let_by: set[int]
) -> None:
    stream = Stream(word)
    front = stream.front(tuple(let_by))
    if not front:
        return
    earlier = {stream.letters[seq] for seq in stream.letters if seq < front}
    assert stream.letters[front] == "r"
    assert "l" not in earlier
    assert front in let_by or not earlier


@given(st.text("rwl.", max_size=12), st.sets(st.integers(1, 12), max_size=4))
def test_no_message_that_may_go_is_left_standing(word: str, let_by: set[int]) -> None:
    stream = Stream(word)
    if stream.front(tuple(let_by)):
        return
    for seq, letter in stream.letters.items():
        earlier = [stream.letters[at] for at in stream.letters if at < seq]
        may_go = letter == "r" and "l" not in earlier and (seq in let_by or not earlier)
        assert not may_go, f"{seq} of {word!r} could go"


@pytest.mark.parametrize(
    ("standing", "free", "let_by", "all_after", "follows"),
    [
        (Standing.READY, True, (), 0, True),
        (Standing.READY, False, (), 0, False),
        (Standing.READY, False, (5,), 0, True),
        (Standing.READY, False, (4,), 0, False),
        (Standing.READY, False, (), 4, True),
        (Standing.READY, False, (), 5, False),
        (Standing.WAITING, True, (5,), 4, False),
        (Standing.LEASED, True, (5,), 4, False),
    ],
)
def test_a_run_goes_on_as_long_as_each_may_go(
    standing: Standing, free: bool, let_by: tuple[int, ...], all_after: int, follows: bool
) -> None:
    assert (
        may_follow(row(5), standing, nothing_earlier_waits=free, let_by=let_by, all_after=all_after)
        is follows
    )


@pytest.mark.parametrize(
    ("word", "seq", "look_at", "waits"),
    [
        ("wr", 2, 10, True),
        ("rr", 2, 10, False),
        ("lr", 2, 10, False),
        ("rwr", 3, 10, True),
        ("rwr", 2, 10, False),
        ("rrwr", 4, 2, False),
    ],
)
def test_a_release_looks_for_someone_to_pass(word: str, seq: int, look_at: int, waits: bool) -> None:
    stream = Stream(word)
    first = first_waiting(stream.rows_from(0), stream.standing, look_at)
    assert (first is not None and first < seq) is waits
