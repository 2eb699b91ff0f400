"""Which message of a stream may be delivered next.

An earlier live message blocks the later ones while it is leased under another claim, or waits for any reason.
A message that is allowed to pass may go before messages that wait, never before one that is leased. The order
is that of seq, never of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fairlead.model.limits import MAX_LET_BY
from fairlead.records.stream import SeqOf, Stream

#: How many messages back a release looks for a message that waits.
LOOK_BACK = 1000

Is = Callable[[int], bool]


def find_front(stream: Stream, seq_of: SeqOf, waits: Is) -> int:
    """The first message that may be delivered, or 0 if none may. The cost does not grow with the messages
    behind it.
    """
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
    """Messages that may be delivered in the same claim as the head, in order and without a gap.

    `nothing_waits_before`: all earlier messages of the stream are in the same claim.
    """
    numbers = stream.numbers
    start = stream.index_after(seq_of(head), seq_of)
    is_first = nothing_waits_before or numbers[0] == head
    after = numbers[(at := stream.index_after(stream.all_after, seq_of)) : at + 1]
    # "All may pass" covers messages that waited up to that seq, not messages that began to wait later.
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
    """Whether an earlier message waits, among a bounded number of them."""
    seq = seq_of(number)
    return any(seq_of(other) < seq and waits(other) for other in stream.numbers[:LOOK_BACK])


def next_to_open(stream: Stream, seq_of: SeqOf, waits: Is) -> tuple[int, int] | None:
    """Find how an operator can let later messages pass the message that waits at the head.

    Returns the seq after which all messages may pass from now on, and a message that is then allowed to pass
    by itself (0: none); None if nothing waits at the head. A repeated call concerns the next message, if that
    one waits too.
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
    """Whether the stream's list of messages that may pass has room for one more."""
    return len(stream.allowed_to_pass) < MAX_LET_BY
