"""Facts to rows: one `Draft` is one commit, written as one batch or not at all.

The batch forms (`Enqueued`, `Leased`, `Completed`) are the hot path: a loop per family, because naming the
family once per loop is far cheaper than once per row, with the encoders of `codec.py` inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rocksdict import ColumnFamily, WriteBatch

from fairlead.errors import BrokenInvariant
from fairlead.model import facts as f
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, row_flags, row_size
from fairlead.model.lease import Lease
from fairlead.model.message import Message
from fairlead.model.queue import QueueRecord
from fairlead.store.rocks.codec import (
    BUCKET,
    COUNTERS,
    DEDUP,
    LEASE,
    MESSAGE,
    META,
    READY,
    V1,
    VERSION,
    encode,
    encode_extras,
    encode_lease,
    encode_message,
)
from fairlead.store.rocks.layout import (
    CLOCK_MARK,
    after_prefix,
    chunk_key,
    dedup_end_key,
    dedup_key,
    expiry_key,
    number,
    numbered_key,
    published_end_key,
    queue_key,
    ready_key,
    scoped_key,
    stream_key,
    stream_row_key,
    timed_key,
)

#: Outcomes of more calls than this are forgotten as a range.
_MANY_CALLS = 1000
READY_AT, WAITING_AT, LEASED_AT, DONE_AT, BYTES_AT = range(5)


class Draft:
    """A commit in the making. Nothing outside it changes until its batch is written and `counters`, `queues`
    are taken over.
    """

    def __init__(
        self,
        families: Mapping[str, ColumnFamily],
        counters: Mapping[int, list[int]],
        queues: Mapping[int, QueueRecord],
        find_dedup: Callable[[int, Sequence[str]], list[tuple[bytes, int] | None]],
        floors: dict[tuple[str, int], bytes],
    ) -> None:
        self.batch = WriteBatch(raw_mode=True)
        self.counters: dict[int, list[int] | None] = {}
        self.queues: dict[int, QueueRecord | None] = {}
        self._families = families
        self._known_counters = counters
        self._known_queues = queues
        self._find_dedup = find_dedup
        self._floors = floors
        self._new_dedup: dict[tuple[int, str], int] = {}

    def add(self, facts: Iterable[f.Fact]) -> None:
        for fact in facts:
            add = _ADD.get(type(fact))
            if add is None:
                raise TypeError(f"expected a fact, got {fact!r}")
            add(self, fact)

    def finish(self, commit: int, last_queue_id: int) -> None:
        """The rows every commit has. Refuses counters below 0: a message left a place where it was not."""
        batch = self.batch
        batch.set_default_column_family(self._families["counters"])
        for queue_id, counts in self.counters.items():
            if counts is None:
                del batch[queue_key(queue_id)]
            elif min(counts) < 0:
                raise BrokenInvariant(
                    f"expected the counters of queue id {queue_id} to stay at 0 or above, got {counts}"
                )
            else:
                batch[queue_key(queue_id)] = COUNTERS.pack(VERSION, *counts)
        batch.set_default_column_family(self._families["meta"])
        batch[b"last_commit"] = META.pack(VERSION, commit)
        if self.queues:
            batch[b"last_queue_id"] = META.pack(VERSION, last_queue_id)

    def let_go(self) -> None:
        """Of the database, when the commit was refused: the error's traceback keeps this draft alive as long
        as somebody keeps the error, and a database that is referred to cannot be opened again.
        """
        self.batch.set_default_column_family(None)

    def _count(self, queue_id: int) -> list[int]:
        counts = self.counters.get(queue_id)
        if counts is None:
            known = self._known_counters.get(queue_id)
            if known is None or queue_id in self.counters:
                raise BrokenInvariant(f"expected queue id {queue_id} to exist")
            counts = self.counters[queue_id] = known.copy()
        return counts

    def _put(self, family: str, key: bytes, value: bytes) -> None:
        self.batch.put(key, value, self._families[family])

    def _put_timed(self, family: str, queue_id: int, key: bytes, value: bytes) -> None:
        self.batch.put(key, value, self._families[family])
        # Lowered even if this commit fails: a floor that is too low costs a walk, one that is too high hides
        # a row.
        if key < self._floors.get((family, queue_id), b""):
            self._floors[family, queue_id] = key

    def _delete(self, family: str, key: bytes) -> None:
        self.batch.delete(key, self._families[family])

    # The hot three

    def _enqueued(self, fact: f.Enqueued) -> None:
        queue_id, messages = fact.queue_id, fact.messages
        batch, pack, total = self.batch, MESSAGE.pack, 0
        special: list[Message] = []
        batch.set_default_column_family(self._families["messages"])
        for m in messages:
            lane, headers, payload, extras = m.lane, m.headers, m.payload, b""
            if m.due_ms or m.expires_ms or m.dedup_key or m.stream:
                extras = encode_extras(m)
                special.append(m)
            header_bytes = len(headers)
            total += header_bytes + len(payload)
            fixed = pack(
                VERSION, m.queue_id, m.weight, m.enqueued_ms, m.place, len(lane), header_bytes, len(extras)
            )
            batch[m.id] = fixed + lane + headers + extras + payload
        delayed = 0
        for m in special:
            delayed += 1 if m.due_ms else 0
            self._special(queue_id, m)
        prefix, pack, behind = queue_key(queue_id), READY.pack, fact.behind
        batch.set_default_column_family(self._families["ready"])
        if special:
            for m in messages:
                if not m.due_ms and m.id not in behind:
                    batch[prefix + m.lane + m.place.to_bytes(8, "big")] = V1 + m.row(m.place, m.flags)[8:]
        else:
            for m in messages:
                batch[prefix + m.lane + m.place.to_bytes(8, "big")] = pack(
                    VERSION, m.id, m.weight, 0, len(m.headers) + len(m.payload)
                )
        counts = self._count(queue_id)
        counts[READY_AT] += len(messages) - delayed
        counts[WAITING_AT] += delayed
        counts[BYTES_AT] += total

    def _special(self, queue_id: int, m: Message) -> None:
        if m.due_ms:
            self._put_timed(
                "waiting",
                queue_id,
                timed_key(queue_id, m.due_ms, m.id),
                _waiting_value(m.row(0, m.flags), m.lane),
            )
        if m.expires_ms:
            self._put_timed("ttl", queue_id, timed_key(queue_id, m.expires_ms, m.id), V1)
        if m.dedup_key:
            until_ms = 0 if m.live_dedup else m.dedup_until_ms
            self._put("dedup", dedup_key(queue_id, m.dedup_key), DEDUP.pack(VERSION, m.id, until_ms))
            self._new_dedup[queue_id, m.dedup_key] = until_ms
            if until_ms:
                self._put_timed("dedup_end", queue_id, dedup_end_key(queue_id, until_ms, m.dedup_key), V1)

    def _leased(self, fact: f.Leased) -> None:
        leases, claim, batch = fact.leases, fact.claim, self.batch
        expires_ms, claim_id, pack = (leases or fact.followers)[0].expires_ms, claim.claim_id, LEASE.pack
        batch.set_default_column_family(self._families["leases"])
        for lease in leases:
            row = lease.row
            fixed = pack(VERSION, lease.queue_id, claim_id, expires_ms, lease.deliveries, lease.started)
            batch[row[8:24]] = fixed + row[:8] + row[24:31] + lease.lane + row[31:]
        for lease in fact.followers:
            batch[lease.id] = encode_lease(lease)
            counts = self._count(lease.queue_id)
            counts[READY_AT] -= 1
            counts[LEASED_AT] += 1
        batch.set_default_column_family(self._families["ready"])
        for queue_id, group in _by_queue(leases):
            prefix = queue_key(queue_id)
            for lease in group:
                del batch[prefix + lease.lane + lease.row[:8]]
            counts = self._count(queue_id)
            counts[READY_AT] -= len(group)
            counts[LEASED_AT] += len(group)
        self._put("lease_expiry", expiry_key(expires_ms, claim_id), V1 + encode(claim))

    def _completed(self, fact: f.Completed) -> None:
        leases, batch = fact.leases, self.batch
        ids = [lease.row[8:24] for lease in leases]
        batch.set_default_column_family(self._families["leases"])
        for id in ids:
            del batch[id]
        batch.set_default_column_family(self._families["messages"])
        for id in ids:
            del batch[id]
        batch.set_default_column_family(self._families["state"])
        for lease in leases:
            if lease.row[26] & 1:
                del batch[lease.row[8:24]]
        for queue_id, key in fact.live_dedup:
            self._delete("dedup", dedup_key(queue_id, key))
        read = int.from_bytes
        for queue_id, group in _by_queue(leases):
            counts = self._count(queue_id)
            counts[LEASED_AT] -= len(group)
            counts[BYTES_AT] -= sum([read(lease.row[27:31], "big") for lease in group])

    # Everything else

    def _quarantined(self, fact: f.Quarantined) -> None:
        for message, state in zip(fact.messages, fact.states, strict=True):
            self._put("messages", message.id, encode_message(message))
            self._put("state", message.id, V1 + encode(state))
            self._enter(
                f.InReady(
                    fact.queue_id, DEAD_LETTER_LANE, message.row(state.place, message.flags | Flag.STATE)
                ),
                message.id,
            )

    def _moved(self, fact: f.Moved) -> None:
        source_id, source_row = self._leave(fact.source, fact.id)
        if fact.expires_ms:
            life = timed_key(source_id, fact.expires_ms, fact.id)
            target = fact.target
            if isinstance(target, (f.InReady, f.InStream, f.InWaiting)) and row_flags(target.row) & Flag.TTL:
                self._put_timed("ttl", source_id, life, V1)
            else:
                self._delete("ttl", life)
        if fact.live_dedup is not None:
            self._delete("dedup", dedup_key(*fact.live_dedup))
        if fact.target is None:
            self._delete("messages", fact.id)
            if row_flags(source_row) & Flag.STATE:
                self._delete("state", fact.id)
            return
        self._enter(fact.target, fact.id)
        if fact.state is not None:
            self._put("state", fact.id, V1 + encode(fact.state))

    def _enter(self, spot: f.Spot, id: bytes) -> None:
        if type(spot) is f.InLease:
            queue_id, row, at = spot.lease.queue_id, spot.lease.row, LEASED_AT
            self._put("leases", id, encode_lease(spot.lease))
        elif type(spot) is f.InStream:
            queue_id, row, at = spot.queue_id, spot.row, READY_AT
        elif type(spot) is f.InReady:
            queue_id, row, at = spot.queue_id, spot.row, READY_AT
            self._put("ready", ready_key(queue_id, spot.lane, row), V1 + row[8:])
        elif type(spot) is f.InWaiting:
            queue_id, row, at = spot.queue_id, spot.row, WAITING_AT
            self._put_timed(
                "waiting", queue_id, timed_key(queue_id, spot.due_ms, id), _waiting_value(row, spot.lane)
            )
        elif type(spot) is f.InDone:
            self._put_timed(
                "done",
                spot.queue_id,
                timed_key(spot.queue_id, spot.done_ms, id),
                V1 + spot.row[:8] + spot.row[24:31] + spot.lane,
            )
            self._count(spot.queue_id)[DONE_AT] += 1
            return
        else:
            raise TypeError(f"expected a spot, got {spot!r}")
        counts = self._count(queue_id)
        counts[at] += 1
        counts[BYTES_AT] += row_size(row)

    def _leave(self, spot: f.Spot, id: bytes) -> tuple[int, bytes]:
        if type(spot) is f.InLease:
            queue_id, row, at = spot.lease.queue_id, spot.lease.row, LEASED_AT
            self._delete("leases", id)
        elif type(spot) is f.InStream:
            queue_id, row, at = spot.queue_id, spot.row, READY_AT
        elif type(spot) is f.InReady:
            queue_id, row, at = spot.queue_id, spot.row, READY_AT
            self._delete("ready", ready_key(queue_id, spot.lane, row))
        elif type(spot) is f.InWaiting:
            queue_id, row, at = spot.queue_id, spot.row, WAITING_AT
            self._delete("waiting", timed_key(queue_id, spot.due_ms, id))
        elif type(spot) is f.InDone:
            self._delete("done", timed_key(spot.queue_id, spot.done_ms, id))
            self._count(spot.queue_id)[DONE_AT] -= 1
            return spot.queue_id, spot.row
        else:
            raise TypeError(f"expected a spot, got {spot!r}")
        counts = self._count(queue_id)
        counts[at] -= 1
        counts[BYTES_AT] -= row_size(row)
        return queue_id, row

    def _restated(self, fact: f.Restated) -> None:
        self._put("state", fact.lease.id, V1 + encode(fact.state))
        self._put("leases", fact.lease.id, encode_lease(fact.lease))

    def _recounted(self, fact: f.Recounted) -> None:
        self._put("state", fact.message_id, V1 + encode(fact.state))

    def _extended(self, fact: f.Extended) -> None:
        self._rewrite(fact.leases)
        self._put(
            "lease_expiry",
            expiry_key(fact.leases[0].expires_ms, fact.claim.claim_id),
            V1 + encode(fact.claim),
        )

    def _started(self, fact: f.Started) -> None:
        self._rewrite(fact.leases)

    def _rewrite(self, leases: list[Lease]) -> None:
        self.batch.set_default_column_family(self._families["leases"])
        for lease in leases:
            self.batch[lease.row[8:24]] = encode_lease(lease)

    def _claim_ended(self, fact: f.ClaimEnded) -> None:
        self._delete("lease_expiry", expiry_key(fact.expires_ms, fact.claim_id))

    def _stream_saved(self, fact: f.StreamSaved) -> None:
        self._put("streams", stream_key(fact.queue_id, fact.stream), V1 + encode(fact.record))

    def _stream_ended(self, fact: f.StreamEnded) -> None:
        self._delete("streams", stream_key(fact.queue_id, fact.stream))

    def _stream_joined(self, fact: f.StreamJoined) -> None:
        self._put(
            "stream_rows", stream_row_key(fact.queue_id, fact.stream, fact.row.seq), V1 + encode(fact.row)
        )

    def _stream_left(self, fact: f.StreamLeft) -> None:
        self._delete("stream_rows", stream_row_key(fact.queue_id, fact.stream, fact.seq))

    def _queue_saved(self, fact: f.QueueSaved) -> None:
        record = fact.record
        self.queues[record.queue_id] = record
        self._put("queues", queue_key(record.queue_id), V1 + encode(record))
        if record.queue_id not in self._known_counters and not self.counters.get(record.queue_id):
            self.counters[record.queue_id] = [0, 0, 0, 0, 0]

    def _queue_unlinked(self, fact: f.QueueUnlinked) -> None:
        record = self.queues.get(fact.queue_id, self._known_queues.get(fact.queue_id))
        if record is None:
            raise BrokenInvariant(f"expected queue id {fact.queue_id} to exist")
        self._queue_saved(f.QueueSaved(msgspec.structs.replace(record, name="")))

    def _queue_cleared(self, fact: f.QueueCleared) -> None:
        self._count(fact.queue_id)
        self.counters[fact.queue_id] = None
        self.queues[fact.queue_id] = None
        prefix = queue_key(fact.queue_id)
        self._delete("queues", prefix)
        for family in ("dedup", "dedup_end"):
            self.batch.delete_range(prefix, after_prefix(prefix), self._families[family])

    def _request_remembered(self, fact: f.RequestRemembered) -> None:
        self._put("requests", fact.request_id, V1 + fact.outcome)

    def _requests_forgotten(self, fact: f.RequestsForgotten) -> None:
        for request_id in fact.request_ids:
            self._delete("requests", request_id)

    def _config_set(self, fact: f.ConfigSet) -> None:
        self._put("config", fact.key.encode(), V1 + fact.value.encode())

    def _config_deleted(self, fact: f.ConfigDeleted) -> None:
        self._delete("config", fact.key.encode())

    def _clock_marked(self, fact: f.ClockMarked) -> None:
        self._put("clock", CLOCK_MARK, V1 + encode(fact.mark))

    def _buckets_saved(self, fact: f.BucketsSaved) -> None:
        for level in fact.levels:
            self._put(
                "buckets",
                level.key.encode(),
                BUCKET.pack(VERSION, level.tokens, level.at_ms, level.rate, level.burst),
            )
        for key in fact.forgotten:
            self._delete("buckets", key.encode())

    def _key_saved(self, fact: f.KeySaved) -> None:
        self._put("keys", fact.record.key_id.encode(), V1 + encode(fact.record))

    def _key_dropped(self, fact: f.KeyDropped) -> None:
        self._delete("keys", fact.key_id.encode())

    def _audit_saved(self, fact: f.AuditSaved) -> None:
        self._put("audit", number(fact.record.number), V1 + encode(fact.record))

    def _audit_forgotten(self, fact: f.AuditForgotten) -> None:
        self.batch.delete_range(number(0), number(fact.below), self._families["audit"])

    def _runbook_saved(self, fact: f.RunbookSaved) -> None:
        self._put("runbooks", fact.project.encode(), V1 + fact.text.encode())

    def _consumer_saved(self, fact: f.ConsumerSaved) -> None:
        self._put("consumers", scoped_key(fact.record.key), V1 + encode(fact.record))

    def _consumer_dropped(self, fact: f.ConsumerDropped) -> None:
        self._delete("consumers", scoped_key(fact.consumer))

    def _members_pinned(self, fact: f.MembersPinned) -> None:
        self._put(
            "claim_members", numbered_key(fact.consumer, fact.number) + number(fact.page), V1 + fact.ids
        )

    def _outcomes_recorded(self, fact: f.OutcomesRecorded) -> None:
        self._put(
            "claim_outcomes",
            numbered_key(fact.consumer, fact.number) + number(fact.at),
            V1 + encode((fact.part, fact.outcomes)),
        )

    def _parts_chosen(self, fact: f.PartsChosen) -> None:
        self._put("claim_choices", numbered_key(fact.consumer, fact.number), V1 + encode(fact.parts))

    def _numbered_claim_forgotten(self, fact: f.NumberedClaimForgotten) -> None:
        """Key by key: tombstones of ranges, one more with each claim, would be looked through by every later
        scan.
        """
        prefix = numbered_key(fact.consumer, fact.number)
        for page in range(fact.pages):
            self._delete("claim_members", prefix + number(page))
        if fact.calls > _MANY_CALLS:
            self.batch.delete_range(prefix, after_prefix(prefix), self._families["claim_outcomes"])
        else:
            for at in range(fact.calls):
                self._delete("claim_outcomes", prefix + number(at))
        self._delete("claim_choices", prefix)

    def _dedup_forgotten(self, fact: f.DedupForgotten) -> None:
        for queue_id, key, until_ms in fact.rows:
            self._delete("dedup_end", dedup_end_key(queue_id, until_ms, key))
            # A later window of the same key has replaced the row: then only its own end may remove it.
            if self._until(queue_id, key) == until_ms:
                self._delete("dedup", dedup_key(queue_id, key))

    def _until(self, queue_id: int, key: str) -> int | None:
        if (queue_id, key) in self._new_dedup:
            return self._new_dedup[queue_id, key]
        (held,) = self._find_dedup(queue_id, [key])
        return None if held is None else held[1]

    def _ttl_forgotten(self, fact: f.TtlForgotten) -> None:
        self._delete("ttl", timed_key(fact.queue_id, fact.expires_ms, fact.id))

    def _intent_saved(self, fact: f.IntentSaved) -> None:
        self._put("intents", number(fact.intent.intent_id), V1 + encode(fact.intent))

    def _intent_ended(self, fact: f.IntentEnded) -> None:
        self._delete("intents", number(fact.intent_id))

    def _chunk_staged(self, fact: f.ChunkStaged) -> None:
        key = chunk_key(fact.chunk.write, fact.chunk.chunk)
        self._put("staged", key, V1 + fact.body)
        self._put("staged_chunks", key, V1 + encode(fact.chunk))

    def _chunks_dropped(self, fact: f.ChunksDropped) -> None:
        for name in fact.chunks:
            key = chunk_key(fact.write, name)
            self._delete("staged", key)
            self._delete("staged_chunks", key)

    def _publish_saved(self, fact: f.PublishSaved) -> None:
        self._put("publishing", scoped_key(fact.record.write), V1 + encode(fact.record))

    def _publish_ended(self, fact: f.PublishEnded) -> None:
        key = scoped_key(fact.record.write)
        self._delete("publishing", key)
        self._put("published", key, V1 + encode(fact.record))
        self._put_timed("published_end", 0, published_end_key(fact.record.until_ms, fact.record.write), V1)

    def _publishes_forgotten(self, fact: f.PublishesForgotten) -> None:
        for until_ms, write in fact.rows:
            self._delete("published_end", published_end_key(until_ms, write))
            self._delete("published", scoped_key(write))


def _waiting_value(row: bytes, lane: bytes) -> bytes:
    return V1 + row[24:31] + lane + row[31:]


def _by_queue(leases: list[Lease]) -> list[tuple[int, list[Lease]]]:
    queue_ids = {lease.queue_id for lease in leases}
    if len(queue_ids) == 1:
        return [(queue_ids.pop(), leases)]
    groups: dict[int, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.queue_id, []).append(lease)
    return list(groups.items())


_ADD: dict[type, Callable[[Draft, Any], None]] = {
    f.Enqueued: Draft._enqueued,
    f.Quarantined: Draft._quarantined,
    f.Leased: Draft._leased,
    f.Completed: Draft._completed,
    f.Moved: Draft._moved,
    f.Restated: Draft._restated,
    f.Recounted: Draft._recounted,
    f.Extended: Draft._extended,
    f.Started: Draft._started,
    f.ClaimEnded: Draft._claim_ended,
    f.StreamSaved: Draft._stream_saved,
    f.StreamEnded: Draft._stream_ended,
    f.StreamJoined: Draft._stream_joined,
    f.StreamLeft: Draft._stream_left,
    f.RequestRemembered: Draft._request_remembered,
    f.RequestsForgotten: Draft._requests_forgotten,
    f.QueueSaved: Draft._queue_saved,
    f.QueueUnlinked: Draft._queue_unlinked,
    f.QueueCleared: Draft._queue_cleared,
    f.ConfigSet: Draft._config_set,
    f.ConfigDeleted: Draft._config_deleted,
    f.ClockMarked: Draft._clock_marked,
    f.BucketsSaved: Draft._buckets_saved,
    f.KeySaved: Draft._key_saved,
    f.KeyDropped: Draft._key_dropped,
    f.AuditSaved: Draft._audit_saved,
    f.AuditForgotten: Draft._audit_forgotten,
    f.RunbookSaved: Draft._runbook_saved,
    f.ConsumerSaved: Draft._consumer_saved,
    f.ConsumerDropped: Draft._consumer_dropped,
    f.MembersPinned: Draft._members_pinned,
    f.OutcomesRecorded: Draft._outcomes_recorded,
    f.PartsChosen: Draft._parts_chosen,
    f.NumberedClaimForgotten: Draft._numbered_claim_forgotten,
    f.DedupForgotten: Draft._dedup_forgotten,
    f.TtlForgotten: Draft._ttl_forgotten,
    f.IntentSaved: Draft._intent_saved,
    f.IntentEnded: Draft._intent_ended,
    f.ChunkStaged: Draft._chunk_staged,
    f.ChunksDropped: Draft._chunks_dropped,
    f.PublishSaved: Draft._publish_saved,
    f.PublishEnded: Draft._publish_ended,
    f.PublishesForgotten: Draft._publishes_forgotten,
}
