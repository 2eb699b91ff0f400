"""What memory knows of durable consumers beside their records: the holders of claims, the recorded outcomes,
and when to look for consumers that are away.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from fairlead.decide.claim_outcomes import ClaimOutcomes
from fairlead.decide.numbered_claims import expires_ms, why_in_claim
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.names import Scoped
from fairlead.records.consumer import ChosenParts, RecordedCall
from fairlead.records.lease import LeaseTerms

if TYPE_CHECKING:
    from fairlead.engine.claim_reading import ClaimReading


class ConsumerIndex:
    """Follows from the records of consumers and outcomes; `Memory.apply` keeps it up to date."""

    def __init__(self) -> None:
        #: By the id of the claim that has not ended.
        self.holders: dict[int, ConsumerRecord] = {}
        #: By the id of the claim; read on first use, and kept up to date from then on.
        self.outcomes: dict[int, ClaimOutcomes] = {}
        #: By the id of the claim, while a caller reads it.
        self.readings: WeakValueDictionary[int, ClaimReading] = WeakValueDictionary()
        #: Keeps the last reading alive, because its readers may come one after the other.
        self._last_reading: ClaimReading | None = None
        #: When a consumer may have been away for too long, or has steps to do; None if there is no such
        #: consumer. It may be too early, never too late.
        self.next_look_ms: int | None = None
        #: Consumers whose callers do the remaining steps; the timer skips these.
        self._foreground: Counter[Scoped] = Counter()

    def consumer_changed(self, before: ConsumerRecord | None, after: ConsumerRecord | None) -> None:
        if before is not None and (after is None or after.claim_id != before.claim_id):
            self.holders.pop(before.claim_id, None)
            self.outcomes.pop(before.claim_id, None)
            if self.readings.pop(before.claim_id, None) is self._last_reading:
                self._last_reading = None
        if after is None or not after.claim_id:
            return
        self.holders[after.claim_id] = after
        self._look_at(after)

    def keep_reading(self, claim_id: int, reading: ClaimReading) -> None:
        self.readings[claim_id] = self._last_reading = reading

    def outcomes_changed(self, claim_id: int, said: RecordedCall | ChosenParts | None) -> None:
        known = self.outcomes.get(claim_id)
        if known is None:
            return
        if isinstance(said, RecordedCall) and not said.part:
            known.add(said.recorded)
        else:
            # Whether outcomes under a part count depends on the chosen parts: read all of them again.
            del self.outcomes[claim_id]

    def looked(self) -> None:
        """Every consumer that was away has been handled: compute when to look again."""
        self.next_look_ms = None
        for record in self.holders.values():
            self._look_at(record)

    def begin_steps(self, consumer: Scoped) -> None:
        """A caller does the steps of the consumer from now on."""
        self._foreground[consumer] += 1

    def end_steps(self, consumer: Scoped) -> None:
        """The timer does the steps that the caller has left."""
        self._foreground -= Counter([consumer])
        self.next_look_ms = 0

    def _look_at(self, record: ConsumerRecord) -> None:
        if record.key in self._foreground:
            return
        look_ms = 0 if record.under_way else expires_ms(record)
        self.next_look_ms = look_ms if self.next_look_ms is None else min(look_ms, self.next_look_ms)

    def away(self, now_ms: int) -> list[ConsumerRecord]:
        """Consumers with an open claim that were not seen for their time to live."""
        return [record for record in self.holders.values() if record.in_hand and expires_ms(record) <= now_ms]

    def left_alone(self) -> ConsumerRecord | None:
        """A consumer whose claim has ended and has steps left that no caller does."""
        left = (one for one in self.holders.values() if one.under_way and one.key not in self._foreground)
        return next(left, None)

    def why_in_claim(self, terms: LeaseTerms) -> str:
        """Why no other caller may move a member of the lease; "" if one may."""
        if not terms.is_numbered:
            return ""
        holder = self.holders.get(terms.claim_id)
        if holder is None:
            return f"in a claim of consumer {terms.consumer!r} that is ending with its queue"
        return why_in_claim(holder)

    def lease_until(self, terms: LeaseTerms) -> int:
        """When the lease expires; in a numbered claim, when its consumer does."""
        holder = self.holders.get(terms.claim_id) if terms.is_numbered else None
        return terms.expires_ms if holder is None else expires_ms(holder)
