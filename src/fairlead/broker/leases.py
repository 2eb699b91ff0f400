"""Who holds what until when: every lease of the broker, in memory, rebuilt at open from the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappop, heappush

from fairlead.model.facts import ClaimEnded
from fairlead.model.lane import ROW_BYTES, row_place
from fairlead.model.lease import NEVER_EXPIRES_MS, Claim, Lease


class _ClaimState:
    __slots__ = ("by_expiry", "claim", "leases", "live")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        #: All leases ever granted under the claim; the dead ones are dropped when the list is walked.
        self.leases: list[Lease] = []
        self.live = 0
        #: How many live leases expire when; each entry is one stored lease_expiry row.
        self.by_expiry: dict[int, int] = {}


class LeaseBook:
    """Used under the engine lock. Time in here is monotonic (`deadline_ms`) except for `expires_ms`."""

    def __init__(self) -> None:
        self._leases: dict[bytes, Lease] = {}
        self._claims: dict[int, _ClaimState] = {}
        self._by_token: dict[str, list[int]] = {}
        self._by_consumer: dict[str, dict[int, int]] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._streams: dict[tuple[int, bytes], dict[int, int]] = {}
        #: Overdue, and found so by somebody who may not ask the hook about them.
        self.unasked: dict[bytes, Lease] = {}

    # Asking

    def find(self, message_id: bytes) -> Lease | None:
        return self._leases.get(message_id)

    def __len__(self) -> int:
        return len(self._leases)

    def all(self) -> list[Lease]:
        return list(self._leases.values())

    def claim(self, claim_id: int) -> Claim:
        return self._claims[claim_id].claim

    def under_token(self, token: str) -> list[Lease]:
        """What is still leased under a caller's claim token."""
        return [
            lease
            for claim_id in self._by_token.get(token, ())
            for lease in self._live(self._claims[claim_id])
        ]

    def of_consumer(self, consumer: str) -> list[Lease]:
        if consumer not in self._by_consumer:
            return []
        return [
            lease
            for state in self._claims.values()
            if state.claim.consumer == consumer
            for lease in self._live(state)
        ]

    def of_queue(self, queue_id: int) -> list[Lease]:
        return [lease for lease in self._leases.values() if lease.queue_id == queue_id]

    def unsettled(self, consumer: str, queue_id: int) -> int:
        return self._by_consumer.get(consumer, {}).get(queue_id, 0)

    def consumers(self, queue_id: int) -> set[str]:
        return {consumer for consumer, queues in self._by_consumer.items() if queue_id in queues}

    def leased_seqs(self, queue_id: int, stream: str) -> Iterable[int]:
        """Which messages of a stream are being worked on."""
        return self._streams.get((queue_id, stream.encode()), {})

    def holds_seq(self, queue_id: int, stream: str, seq: int) -> bool:
        return seq in self._streams.get((queue_id, stream.encode()), {})

    def first_of_run(self, lease: Lease) -> bool:
        """Is it the earliest message of its stream that is still leased under its claim?"""
        held = self._streams.get((lease.queue_id, lease.row[ROW_BYTES:]), {})
        seq = row_place(lease.row)
        return not any(other < seq and claim_id == lease.claim_id for other, claim_id in held.items())

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def ended_by(self, leaving: Iterable[Lease], entering: Iterable[Lease] = ()) -> list[ClaimEnded]:
        """Which (claim, expiry) groups are empty once these leases have left, unless others enter them by an
        extension.
        """
        gone = Counter([(lease.claim_id, lease.expires_ms) for lease in leaving])
        kept = {(lease.claim_id, lease.expires_ms) for lease in entering}
        return [
            ClaimEnded(expires_ms, claim_id)
            for (claim_id, expires_ms), count in gone.items()
            if self._claims[claim_id].by_expiry[expires_ms] == count and (claim_id, expires_ms) not in kept
        ]

    def overdue(self, now_ms: int, limit: int) -> list[Lease]:
        """Leases past their deadline. They stay in the book until their expiry is committed."""
        found: list[Lease] = []
        seen: set[int] = set()
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(found) < limit:
            claim_id = heappop(self._deadlines)[1]
            state = self._claims.get(claim_id)
            # A claim has several entries when leases were loaded at open or moved to an earlier end.
            if state is None or claim_id in seen:
                continue
            seen.add(claim_id)
            live = self._live(state)
            found.extend(lease for lease in live if lease.deadline_ms <= now_ms)
            if live:
                # Also when all of them are overdue: should their expiry fail to commit, they are found again.
                heappush(
                    self._deadlines, (max(now_ms + 1, min(lease.deadline_ms for lease in live)), claim_id)
                )
        return found

    # Changing

    def add(self, claim: Claim, leases: list[Lease]) -> None:
        """All leases have the claim's own expiry. A numbered claim is added piece by piece."""
        first = leases[0]
        state = self._claims.get(claim.claim_id)
        if state is None:
            state = self._claims[claim.claim_id] = _ClaimState(claim)
            state.leases = leases
            if claim.token:
                self._by_token.setdefault(claim.token, []).append(claim.claim_id)
            if first.expires_ms != NEVER_EXPIRES_MS:
                heappush(self._deadlines, (first.deadline_ms, claim.claim_id))
        else:
            state.leases += leases
        state.live += len(leases)
        held = self._leases
        for lease in leases:
            held[lease.row[8:24]] = lease
            if len(lease.row) > ROW_BYTES:
                self._streams.setdefault((lease.queue_id, lease.row[ROW_BYTES:]), {})[
                    row_place(lease.row)
                ] = lease.claim_id
        state.by_expiry[first.expires_ms] = state.by_expiry.get(first.expires_ms, 0) + len(leases)
        queues = self._by_consumer.setdefault(claim.consumer, {})
        queues[first.queue_id] = queues.get(first.queue_id, 0) + len(leases)

    def load(self, claim: Claim, lease: Lease) -> None:
        """A lease found at open."""
        state = self._claims.get(claim.claim_id)
        if state is None:
            self.add(claim, [lease])
            return
        state.leases.append(lease)
        state.live += 1
        state.by_expiry[lease.expires_ms] = state.by_expiry.get(lease.expires_ms, 0) + 1
        self._leases[lease.id] = lease
        if len(lease.row) > ROW_BYTES:
            self._streams.setdefault((lease.queue_id, lease.row[ROW_BYTES:]), {})[row_place(lease.row)] = (
                lease.claim_id
            )
        queues = self._by_consumer[claim.consumer]
        queues[lease.queue_id] = queues.get(lease.queue_id, 0) + 1
        if lease.expires_ms != NEVER_EXPIRES_MS:
            heappush(self._deadlines, (lease.deadline_ms, claim.claim_id))

    def remove(self, leases: Iterable[Lease]) -> None:
        held = self._leases
        groups = Counter([(lease.claim_id, lease.expires_ms, lease.queue_id) for lease in leases])
        for lease in leases:
            del held[lease.row[8:24]]
            if len(lease.row) > ROW_BYTES:
                self._leave_stream(lease)
        for (claim_id, expires_ms, queue_id), count in groups.items():
            state = self._claims[claim_id]
            state.live -= count
            self._leave_expiry(state, expires_ms, count)
            consumer = state.claim.consumer
            queues = self._by_consumer[consumer]
            queues[queue_id] -= count
            if not queues[queue_id]:
                del queues[queue_id]
                if not queues:
                    del self._by_consumer[consumer]
            if not state.live:
                self._forget(state.claim)

    def extend(self, lease: Lease, expires_ms: int, deadline_ms: int) -> None:
        state = self._claims[lease.claim_id]
        self._leave_expiry(state, lease.expires_ms, 1)
        before_ms = lease.deadline_ms
        lease.expires_ms, lease.deadline_ms = expires_ms, deadline_ms
        state.by_expiry[expires_ms] = state.by_expiry.get(expires_ms, 0) + 1
        # A deadline moved ahead is found when the old one comes up; one moved back needs an entry of its own.
        if deadline_ms < before_ms:
            heappush(self._deadlines, (deadline_ms, lease.claim_id))

    def _leave_stream(self, lease: Lease) -> None:
        stream = lease.queue_id, lease.row[ROW_BYTES:]
        seqs = self._streams[stream]
        del seqs[row_place(lease.row)]
        if not seqs:
            del self._streams[stream]

    def _leave_expiry(self, state: _ClaimState, expires_ms: int, count: int) -> None:
        left = state.by_expiry[expires_ms] - count
        if left:
            state.by_expiry[expires_ms] = left
        else:
            del state.by_expiry[expires_ms]

    def _live(self, state: _ClaimState) -> list[Lease]:
        state.leases = [lease for lease in state.leases if self._leases.get(lease.id) is lease]
        return list(state.leases)

    def _forget(self, claim: Claim) -> None:
        del self._claims[claim.claim_id]
        if claim.token:
            siblings = self._by_token[claim.token]
            siblings.remove(claim.claim_id)
            if not siblings:
                del self._by_token[claim.token]
