"""Convert between ids of entries, `<ms>-<seq>`, and ids of messages, without state.

The first part is the time in the id of the message, the second part is the number of the message. The other
bits of the id follow from the number, so nothing is lost. Numbers grow with every enqueue, so ids are in the
order of enqueues. The first part has 48 bits, the second part 61.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fairlead.errors import InvalidRequest
from fairlead.model.ids import find_id, first_id_of, id_time_ms, show_id
from fairlead.records.ids import COMMIT_SHIFT, find_number, id_of, id_prefix

MAX_MS = (1 << 48) - 1
MAX_SEQ = (1 << 61) - 1

#: Redis accepts parts of 64 bits, which have at most twenty digits.
_ENTRY_ID = re.compile(rb"(\d{1,20})(?:-(\d{1,20}))?")


class EntryId(NamedTuple):
    ms: int
    seq: int

    @property
    def shown(self) -> bytes:
        return b"%d-%d" % self

    @property
    def raw_id(self) -> bytes:
        """The id of the message. An entry id that no message can have gives the id of a message that does not
        exist.
        """
        if self.ms > MAX_MS or self.seq > MAX_SEQ:
            return bytes(16)
        return id_of(id_prefix(self.ms, self.seq >> COMMIT_SHIFT), self.seq)

    @property
    def message_id(self) -> str:
        return show_id(self.raw_id)


FIRST = EntryId(0, 0)
LAST = EntryId(MAX_MS, MAX_SEQ)


def entry_id_of(raw_id: bytes) -> EntryId:
    return EntryId(id_time_ms(raw_id), find_number(raw_id) or 0)


def entry_id_of_text(message_id: str) -> EntryId:
    return entry_id_of(find_id(message_id) or bytes(16))


def read_entry_id(word: bytes, *, seq: int = 0) -> EntryId:
    """`seq` is the second part for an id that has only the first part."""
    found = _ENTRY_ID.fullmatch(word)
    if found is None:
        expected = "the id of an entry, such as 1526919030474-55"
        raise InvalidRequest("id", expected, word[:80].decode(errors="replace"))
    return EntryId(int(found[1]), seq if found[2] is None else int(found[2]))


def read_start(word: bytes) -> EntryId:
    """The first id of a range, from `-`, an id, or `(` with the id before the first."""
    if word == b"-":
        return FIRST
    if word.startswith(b"("):
        before = read_entry_id(word[1:])
        return EntryId(before.ms, before.seq + 1)
    return read_entry_id(word)


def read_end(word: bytes) -> EntryId:
    """The last id of a range, from `+`, an id, or `(` with the id after the last."""
    if word == b"+":
        return LAST
    if word.startswith(b"("):
        behind = read_entry_id(word[1:])
        return EntryId(behind.ms, behind.seq - 1) if behind.seq else EntryId(behind.ms - 1, MAX_SEQ)
    return read_entry_id(word, seq=MAX_SEQ)


def bound_at(ms: int) -> str:
    """A bound for `browse`: no message of this millisecond or of a later one comes before the bound."""
    return "" if ms <= 0 else show_id(first_id_of(min(ms, MAX_MS)))
