"""Message numbers inside, UUIDv7 outside.

A message's number is `commit << 20 | index`: the commit that wrote its batch, and its index there. The number
never changes. Each commit number is used once, whoever owns the store, so message numbers are unique too. An
id consists of the time of the enqueue (48 bits), a counter, and the number spread over the 62 free bits of a
UUIDv7 by reversible arithmetic: an id leads to its number without an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import repeat
from struct import Struct, unpack

from fairlead.model.ids import show_id

COMMIT_SHIFT = 20
BLOCK_SHIFT = 12
BLOCK_MASK = (1 << BLOCK_SHIFT) - 1
#: Messages in one chunk, and chunks in one commit.
MAX_CHUNK_MESSAGES = 1 << BLOCK_SHIFT
MAX_BLOCKS = 1 << COMMIT_SHIFT - BLOCK_SHIFT
#: Claims in one commit.
MAX_CLAIMS = (1 << BLOCK_SHIFT) - 1

_INDEX_LIMIT = 1 << COMMIT_SHIFT
_INDEX_MASK = _INDEX_LIMIT - 1
_FOLD_BITS = 41
_FOLD_MASK = (1 << _FOLD_BITS) - 1
#: Odd, so it is invertible modulo a power of two: consecutive commits get ids that look unrelated.
_FOLD = 0x1A2B3C4D5F7
_UNFOLD = pow(_FOLD, -1, 1 << _FOLD_BITS)
#: Greater than every folded commit, so that a division separates the index from the commit.
_STRIDE = (1 << _FOLD_BITS) + 0x5DEECE66D % (1 << 31) | 1
_VARIANT = 2 << 62
_LOW_BYTES = 8
_DIGITS = 2 * _LOW_BYTES
#: From this many ids on, filling in digits and adding large numbers pay off.
_MANY = 32
#: The places of the second half's digits in the text of an id. A dash precedes the last twelve.
_DIGIT_PLACES = [*range(19, 23), *range(24, 36)]
_pack_id = Struct(">8sQ").pack


def claim_group(epoch: int, commit: int, index: int) -> int:
    """The id of a claim, or of a part of one. The index counts the claims of the commit from 1 on."""
    return epoch << 44 | commit << BLOCK_SHIFT | index


def id_prefix(now_ms: int, counter: int) -> bytes:
    """The first half of the ids of a chunk."""
    return (now_ms << 16 | 0x7000 | counter & 0xFFF).to_bytes(_LOW_BYTES, "big")


def id_base(number: int) -> int:
    """The second half of the id of index 0 in this number's commit."""
    return _VARIANT + ((number >> COMMIT_SHIFT) * _FOLD & _FOLD_MASK)


def id_of(prefix: bytes, number: int) -> bytes:
    # `id_base` without a call, because every single message passes here.
    base = _VARIANT + ((number >> COMMIT_SHIFT) * _FOLD & _FOLD_MASK)
    return prefix + (base + (number & _INDEX_MASK) * _STRIDE).to_bytes(_LOW_BYTES, "big")


def shown_ids(prefix: bytes, numbers: range) -> list[str]:
    """The ids of numbers of one commit, as text."""
    if len(numbers) == 1:
        return [show_id(id_of(prefix, numbers[0]))]
    count, low = len(numbers), id_base(numbers[0]) + (numbers[0] & _INDEX_MASK) * _STRIDE
    if count < _MANY or numbers.step > 1:
        head = show_id(prefix + bytes(_LOW_BYTES))[:19]
        stride = numbers.step * _STRIDE
        halves = range(low, low + count * stride, stride)
        # A dash precedes the last six bytes.
        return [head + half.to_bytes(_LOW_BYTES, "big").hex("-", 6) for half in halves]
    digits = _in_steps(low.to_bytes(_LOW_BYTES, "big"), count).hex().encode()
    # All ids in one text, one line for each. Their second halves are filled in digit by digit, each digit for
    # all of them.
    line = (show_id(prefix + bytes(_LOW_BYTES)) + "\n").encode()
    text = bytearray(line * count)
    for at in range(_DIGITS):
        text[_DIGIT_PLACES[at] :: len(line)] = digits[at::_DIGITS]
    return text.decode().split()


def _in_steps(low: bytes, count: int) -> bytes:
    """`count` ids or second halves, concatenated, each greater than the one before by the stride.

    They are the digits of one large number: `count` times the first, plus 0, 1, 2 and more strides. No sum
    overflows its digit, so one addition computes all of them.
    """
    width, room = len(low), 1 << count.bit_length()
    # The strides of a few sizes are cached. Those of the last ids are the lowest digits.
    strides = _strides(width, room) >> 8 * width * (room - count)
    return (int.from_bytes(low * count, "big") + strides).to_bytes(width * count, "big")


@cache
def _strides(width: int, count: int) -> int:
    """0, 1, 2 and more strides, as digits of this many bytes."""
    return int.from_bytes(b"".join([(at * _STRIDE).to_bytes(width, "big") for at in range(count)]), "big")


def ids_of(prefix: bytes, numbers: Sequence[int]) -> list[bytes]:
    """The raw ids of several numbers of one commit."""
    first, count = numbers[0], len(numbers)
    if count == 1:
        return [id_of(prefix, first)]
    # The commit adds the same to each product, so it is subtracted once.
    base = id_base(first) - (first >> COMMIT_SHIFT << COMMIT_SHIFT) * _STRIDE
    if count < _MANY:
        return [prefix + (base + number * _STRIDE).to_bytes(_LOW_BYTES, "big") for number in numbers]
    if numbers[-1] - first == count - 1 and [*numbers] == [*range(first, first + count)]:
        return [*ids_of_run(prefix, range(first, first + count))]
    halves = [base + number * _STRIDE for number in numbers]
    return [*map(_pack_id, repeat(prefix), halves)]


def ids_of_run(prefix: bytes, numbers: range) -> Sequence[bytes]:
    """`ids_of` for consecutive numbers."""
    return unpack("16s" * len(numbers), packed_ids(prefix, numbers))


def packed_ids(prefix: bytes, numbers: range) -> bytes:
    """The raw ids of consecutive numbers, concatenated."""
    return _in_steps(id_of(prefix, numbers[0]), len(numbers))


def find_number(raw_id: bytes) -> int | None:
    """The number in a raw id of 16 bytes; None for an id that no engine made."""
    spread = int.from_bytes(raw_id[_LOW_BYTES:], "big") - _VARIANT
    if spread < 0:
        return None
    index, folded = divmod(spread, _STRIDE)
    if index >= _INDEX_LIMIT or folded >> _FOLD_BITS:
        return None
    return (folded * _UNFOLD & _FOLD_MASK) << COMMIT_SHIFT | index
