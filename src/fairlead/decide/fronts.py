"""Which message of a stream may be delivered next.

A message is held up by an earlier live one that is leased (under another claim), or that waits for any reason. A
message that is allowed to pass goes before those that wait, never before one that is leased. Order is seq, never a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.model.limits import MAX_LET_BY
from fairlead.records.stream import SeqOf, Stream

#: How far back a release looks for a message that waits.
LOOK_BACK = 1000

Is = Callable[[int], bool]


def find_front(stream: Stream, seq_of: SeqOf, waits: Is) -> int:
    """The first message that may be delivered; 0: none may. The cost does not grow with what is behind."""
    numbers = stream.numbers
    if not numbers or (stream.leased and stream.leased[0] == numbers[0]):
        return 0
    if not waits(numbers[0]):
        return numbers[0]
    lowest_leased = seq_of(stream.leased[0]) if stream.leased else None
    passing = []
    if stream.all_after >= seq_of(numbers[0]):
        passing += numbers[(at := stream.index_after(stream.all_after, seq_of)) : at + 1]
    passing += sorted(stream.allowed_to_pass, key=seq_of)
    free = [
        number
        for number in passing
        if (lowest_leased is None or seq_of(number) < lowest_leased) and not waits(number)
    ]
    return min(free, key=seq_of, default=0)


def find_followers(
    stream: Stream,
    head: int,
    seq_of: SeqOf,
    waits: Is,
    is_leased: Is,
    limit: int,
    *,
    nothing_waits_before: bool = False,
) -> Sequence[int]:
    """Messages that may go out in the same claim as the head, in order and without a gap. `nothing_waits_before`:
    everything before the head is in the same claim.
    """
    numbers = stream.numbers
    start = stream.index_after(seq_of(head), seq_of)
    is_first = nothing_waits_before or numbers[0] == head
    after = numbers[(at := stream.index_after(stream.all_after, seq_of)) : at + 1]
    # A message that passes as one of all passes what waits up to that seq, and nobody who began to wait since.
    all_pass = stream.all_after and after and seq_of(after[0]) >= seq_of(head)
    found: list[int] = []
    for number in numbers[start : start + limit]:
        may_pass = (
            is_first or number in stream.allowed_to_pass or (all_pass and seq_of(number) > stream.all_after)
        )
        if not may_pass or waits(number) or is_leased(number):
            break
        found.append(number)
    return found


def waits_before(stream: Stream, number: int, seq_of: SeqOf, waits: Is) -> bool:
    """Whether an earlier message waits, among a bounded number."""
    seq = seq_of(number)
    return any(seq_of(other) < seq and waits(other) for other in stream.numbers[:LOOK_BACK])


def next_to_open(stream: Stream, seq_of: SeqOf, waits: Is) -> tuple[int, int] | None:
    """For an operator who lets later messages pass the one that waits at the head: the seq after which all may
    pass from now on, and a message that is allowed to pass by itself (0: none). None: nothing waits at the head.

    Said again, it is about the next message, if that waits too.
    """
    head = stream.numbers[0]
    if not waits(head):
        return None
    if stream.all_after < seq_of(head):
        return seq_of(head), 0
    later = stream.numbers[(at := stream.index_after(stream.all_after, seq_of)) : at + 1]
    if not later or not waits(later[0]):
        return stream.all_after, 0
    return seq_of(later[0]), later[0] if has_room_to_pass(stream) else 0


def has_room_to_pass(stream: Stream) -> bool:
    """Whether one more message of the stream may be allowed to pass."""
    return len(stream.allowed_to_pass) < MAX_LET_BY
