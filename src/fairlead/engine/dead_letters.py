"""Return of chosen dead letters to their queue, as far as they are unchanged."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.engine import moves
from fairlead.engine.choose import Candidate, is_unchanged
from fairlead.engine.met import meet_ids
from fairlead.engine.room import check_moves
from fairlead.engine.transaction import Transaction


def redrive_all(tx: Transaction, chosen: Sequence[Candidate], queue_id: int, *, clear_progress: bool) -> int:
    """Move the chosen messages that no claim holds in the dead-letter queue. Returns their number."""
    met = meet_ids(tx, [candidate.raw_id for candidate in chosen])
    facts = []
    for candidate in chosen:
        one = met.get(candidate.raw_id)
        if one is None or one.where != "ready" or one.state.queue_id != queue_id:
            continue
        if is_unchanged(candidate, one.state):
            state = one.state
            if clear_progress:
                state = msgspec.structs.replace(state, progress=0, carry=b"")
            fact = moves.redrive(tx, one.number, state)
            facts.append(msgspec.structs.replace(fact, cause="redrive"))
    check_moves(tx, facts)
    for fact in facts:
        tx.add(fact)
    return len(facts)
