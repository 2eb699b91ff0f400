"""What was said so far about the members of a claim in hand, read from the store."""

from __future__ import annotations

import msgspec

from fairlead.decide.claim_outcomes import ClaimOutcomes
from fairlead.model.consumer import Recorded
from fairlead.model.names import Scoped
from fairlead.store.port import Store

_PAGE = 64
_read_words = msgspec.msgpack.Decoder(list[Recorded]).decode
pack_words = msgspec.msgpack.Encoder().encode


def load_words(store: Store, consumer: Scoped, number: int) -> ClaimOutcomes:
    """Of what was recorded without a part, or in a part that was chosen."""
    words, at, chosen = ClaimOutcomes(), 0, {"", *store.claim_choice(consumer, number)}
    while page := store.claim_outcomes(consumer, number, at, _PAGE):
        at += len(page)
        for part, raw in page:
            if part in chosen:
                words.add(_read_words(raw))
    return words
