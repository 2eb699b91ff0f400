"""Leases, claims and durable consumers of a rebuilt store."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from fairlead.model.consumer import ConsumerRecord, Recorded
from fairlead.model.facts import (
    ConsumerSaved,
    InReady,
    InStream,
    Leased,
    MembersPinned,
    OutcomesRecorded,
    PartsChosen,
)
from fairlead.model.ids import show_id
from fairlead.model.lane import ROW_BYTES
from fairlead.model.lease import Claim, Lease
from fairlead.salvage.placing import Place
from fairlead.store.rocks import codec
from fairlead.store.rocks.layout import numbered_key, read_expiry_key

if TYPE_CHECKING:
    from fairlead.salvage.rebuild import Rebuild

_read_words = msgspec.msgpack.Decoder(list[Recorded]).decode
_LEASES_PER_FACT = 2000


class ClaimBuilder:
    def __init__(self, rebuild: Rebuild) -> None:
        self._rebuild = rebuild
        self._claims: dict[tuple[int, int], Claim] = {}
        self._consumers: dict[bytes, ConsumerRecord] = {}
        self._pages: dict[bytes, list[tuple[int, list[bytes]]]] = defaultdict(list)
        self._words: dict[bytes, list[tuple[int, str, bytes]]] = defaultdict(list)
        self._choices: dict[bytes, tuple[str, ...]] = {}
        #: Leases that were found, and after `write` those that are kept.
        self.leases: dict[bytes, Lease] = {}

    def read(self) -> None:
        decoded = self._rebuild.decoded
        for row, claim in decoded("lease_expiry", codec.decode_claim):
            self._claims[read_expiry_key(row.key)] = claim
        for _, record in decoded("consumers", codec.decode_consumer):
            self._consumers[numbered_key(record.key, record.number)] = record
        for row, members in decoded("claim_members", codec.decode_members):
            self._pages[row.key[:-8]].append((int.from_bytes(row.key[-8:], "big"), members))
        for row, (part, words) in decoded("claim_outcomes", codec.decode_outcomes):
            self._words[row.key[:-8]].append((int.from_bytes(row.key[-8:], "big"), part, words))
        for row, choice in decoded("claim_choices", codec.decode_choice):
            self._choices[row.key] = choice

    def lease(self, lease: Lease, place: Place) -> None:
        """A saved message has a lease; `place` is where the message is ready."""
        if not isinstance(place, InReady | InStream):
            return
        changed = msgspec.structs.replace(lease, lane=place.lane, row=place.row)
        if (lease.expires_ms, lease.claim_id) in self._claims:
            self.leases[lease.id] = changed
        else:
            self._rebuild.report.redelivered.append(show_id(lease.id))

    def write(self) -> None:
        pinned = {id for id, lease in self.leases.items() if lease.pinned}
        for key, record in self._consumers.items():
            if record.queue_id not in self._rebuild.queues and not record.number:
                self._rebuild.add(ConsumerSaved(record))
            elif not record.number or (why := self._broken(key, record)) is None:
                self._keep(key, record, pinned)
            else:
                self._lose(record, why)
        for id in pinned:
            del self.leases[id]
            self._rebuild.report.redelivered.append(show_id(id))
        self._write_leases()

    def _broken(self, key: bytes, record: ConsumerRecord) -> str | None:
        """Why a numbered claim cannot be kept."""
        pages, words = self._pages[key], self._words[key]
        members = self._members(key)
        if (
            [page for page, _ in pages] != list(range(record.pages))
            or len(members) != record.messages
            or len(set(members)) != len(members)
        ):
            return f"{len(members)} of its {record.messages} members are known"
        if [at for at, _, _ in words] != list(range(record.recorded)):
            return f"{len(words)} of {record.recorded} calls about it are known"
        known = set(members)
        if any(word.id not in known for _, _, packed in words for word in _read_words(packed)):
            return "a call about it names a message that is not its member"
        for id in members[record.handled :]:
            lease = self.leases.get(id)
            if (
                lease is None
                or not lease.pinned
                or (lease.claim_id, lease.queue_id) != (record.claim_id, record.queue_id)
            ):
                return f"message {show_id(id)} is gone from it"
        return None

    def _members(self, key: bytes) -> list[bytes]:
        return [id for _, ids in self._pages[key] for id in ids]

    def _keep(self, key: bytes, record: ConsumerRecord, pinned: set[bytes]) -> None:
        add = self._rebuild.add
        add(ConsumerSaved(record))
        if not record.number:
            return
        pinned.difference_update(self._members(key)[record.handled :])
        for page, ids in self._pages[key]:
            add(MembersPinned(record.key, record.number, page, b"".join(ids)))
        for at, part, words in self._words[key]:
            add(OutcomesRecorded(record.key, record.number, at, part, words), len(words))
            self._rebuild.flush_if_large()
        if key in self._choices:
            add(PartsChosen(record.key, record.number, self._choices[key]))

    def _lose(self, record: ConsumerRecord, why: str) -> None:
        """As when a queue is deleted: the number counts as closed, and the consumer is told."""
        lost = msgspec.structs.replace(
            record, last_closed=record.number, lost=record.number, lost_why=f"the data was repaired: {why}"
        )
        self._rebuild.add(ConsumerSaved(lost.without_claim()))
        claim = f"claim {record.number} of consumer {record.name!r} of queue {record.queue!r}"
        self._rebuild.report.other.append(f"{claim} is gone ({why}); its saved messages are ready again")

    def _write_leases(self) -> None:
        groups: dict[tuple[int, int], list[Lease]] = defaultdict(list)
        for lease in self.leases.values():
            groups[lease.expires_ms, lease.claim_id].append(lease)
        for group, leases in groups.items():
            for start in range(0, len(leases), _LEASES_PER_FACT):
                part = leases[start : start + _LEASES_PER_FACT]
                front = [lease for lease in part if len(lease.row) == ROW_BYTES]
                followers = [lease for lease in part if len(lease.row) > ROW_BYTES]
                self._rebuild.add(Leased(self._claims[group], front, followers))
                self._rebuild.flush_if_large()
        self._rebuild.flush()
