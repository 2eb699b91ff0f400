"""What was said so far about the members of a claim in hand: rebuilt from the store once, then kept up to
date word by word.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.broker.leases import LeaseBook
from fairlead.model.consumer import Recorded
from fairlead.model.lane import ROW_BYTES, row_place
from fairlead.model.names import Scoped
from fairlead.store.port import Store

_PAGE = 64
_read_words = msgspec.msgpack.Decoder(list[Recorded]).decode
pack_words = msgspec.msgpack.Encoder().encode


class Words:
    """The last outcome counts. A start is no outcome: it never takes the place of one, and one takes its
    place.
    """

    def __init__(self) -> None:
        self.outcomes: dict[bytes, Recorded] = {}
        #: Members that were begun, and of which nobody has said how it went. A dict, for its order.
        self.begun: dict[bytes, None] = {}
        #: The progress told of each in this claim.
        self.progress: dict[bytes, int] = {}
        #: Members with an outcome that those behind them in their stream wait for.
        self._stopped: set[bytes] = set()
        self._stops: dict[bytes, int] | None = {}

    def hear(self, words: Iterable[Recorded]) -> None:
        for word in words:
            if word.kind == "start":
                if word.id not in self.outcomes:
                    self.begun[word.id] = None
            elif word.kind == "extend":
                self.progress[word.id] = self.progress.get(word.id, 0) | word.progress
            else:
                self.outcomes[word.id] = word
                self.begun.pop(word.id, None)
                self._stop_or_go(word)

    def _stop_or_go(self, word: Recorded) -> None:
        if word.kind != "complete":
            self._stopped.add(word.id)
        elif word.id in self._stopped:
            self._stopped.remove(word.id)
        else:
            return
        self._stops = None

    def stops(self, leases: LeaseBook) -> dict[bytes, int]:
        """The streams that go no further in this claim, each with the first seq at which it stops."""
        if self._stops is None:
            self._stops = {}
            for member in self._stopped:
                lease = leases.find(member)
                if lease is not None and len(lease.row) > ROW_BYTES:
                    stream, seq = lease.row[ROW_BYTES:], row_place(lease.row)
                    self._stops[stream] = min(seq, self._stops.get(stream, seq))
        return self._stops


def load_words(store: Store, consumer: Scoped, number: int) -> Words:
    """Of what was recorded without a part, or in a part that was chosen."""
    words, at, chosen = Words(), 0, {"", *store.claim_choice(consumer, number)}
    while page := store.claim_outcomes(consumer, number, at, _PAGE):
        at += len(page)
        for part, raw in page:
            if part in chosen:
                words.hear(_read_words(raw))
    return words
