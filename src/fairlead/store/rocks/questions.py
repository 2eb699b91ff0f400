"""The questions of the port, over the families of an open database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from rocksdict import Rdict, ReadOptions

from fairlead.errors import FairleadError
from fairlead.model.access import AuditRecord, KeyRecord
from fairlead.model.clock_mark import BucketLevel, ClockMark
from fairlead.model.consumer import ConsumerRecord
from fairlead.model.facts import InDone, InReady, Intent, InWaiting
from fairlead.model.lane import lane_end, row_id
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import HELD, Message, MessageState
from fairlead.model.names import Scoped
from fairlead.model.staging import Published, Publishing, StagedChunk
from fairlead.model.stream import StreamRecord, StreamRow
from fairlead.store.rocks import codec
from fairlead.store.rocks.layout import (
    CLOCK_MARK,
    LAST_PLACE,
    after_prefix,
    chunk_key,
    dedup_key,
    number,
    numbered_key,
    published_end_key,
    queue_key,
    read_expiry_key,
    read_timed_key,
    scoped_key,
    stream_key,
    timed_key,
    timed_prefix,
)

EVERYTHING = 1 << 62
#: How many messages of other queues a look at one queue passes over before it asks again.
_WALKED = 100_000


class Questions:
    """Answers from the rows themselves. All that is kept between two questions are the floors of rows that go
    by time.
    """

    #: (family, queue id) -> a key below which no row is left, so that no scan walks over what is already
    #: deleted.
    _floors: dict[tuple[str, int], bytes]

    def _family(self, name: str) -> Rdict:
        raise NotImplementedError

    def _fault(self, trouble: BaseException, family: str) -> FairleadError:
        raise NotImplementedError

    def config(self, prefix: str = "") -> dict[str, str]:
        raw = prefix.encode()
        rows = self._scan("config", raw, after_prefix(raw) if raw else None, EVERYTHING)
        return {
            codec.decode_text("config", key, b"\1" + key): codec.decode_text("config", key, value)
            for key, value in rows
        }

    def clock_mark(self) -> ClockMark | None:
        rows = self._scan("clock", CLOCK_MARK, None, 1)
        return codec.decode_clock_mark(*rows[0]) if rows else None

    def bucket_levels(self) -> list[BucketLevel]:
        return [codec.decode_bucket(key, raw) for key, raw in self._scan("buckets", b"", None, EVERYTHING)]

    def intents(self) -> list[Intent]:
        return [codec.decode_intent(key, raw) for key, raw in self._scan("intents", b"", None, EVERYTHING)]

    def api_keys(self) -> list[KeyRecord]:
        return [codec.decode_key(key, raw) for key, raw in self._scan("keys", b"", None, EVERYTHING)]

    def audit(self, after: int, limit: int) -> list[AuditRecord]:
        return [
            codec.decode_audit(key, raw) for key, raw in self._scan("audit", number(after + 1), None, limit)
        ]

    def last_audit(self) -> int:
        table, options = self._bounded("audit", None)
        try:
            rows = table.iter(options)
            rows.seek_to_last()
            last = rows.key() if rows.valid() else b""
            rows.status()
            return int.from_bytes(last, "big")
        except Exception as trouble:
            raise self._fault(trouble, "audit") from trouble

    def runbooks(self) -> dict[str, str]:
        rows = self._scan("runbooks", b"", None, EVERYTHING)
        return {
            codec.decode_text("runbooks", key, b"\1" + key): codec.decode_text("runbooks", key, value)
            for key, value in rows
        }

    def consumers(self) -> list[ConsumerRecord]:
        return [
            codec.decode_consumer(key, raw) for key, raw in self._scan("consumers", b"", None, EVERYTHING)
        ]

    def claim_members(self, consumer: Scoped, number: int) -> list[bytes]:
        prefix = numbered_key(consumer, number)
        pages = self._scan("claim_members", prefix, after_prefix(prefix), EVERYTHING)
        return [member for key, raw in pages for member in codec.decode_members(key, raw)]

    def claim_outcomes(
        self, consumer: Scoped, number: int, start: int, limit: int
    ) -> list[tuple[str, bytes]]:
        prefix = numbered_key(consumer, number)
        rows = self._scan("claim_outcomes", prefix + start.to_bytes(8, "big"), after_prefix(prefix), limit)
        return [codec.decode_outcomes(key, raw) for key, raw in rows]

    def claim_choice(self, consumer: Scoped, number: int) -> tuple[str, ...]:
        key = numbered_key(consumer, number)
        (raw,) = self._get("claim_choices", [key])
        return () if raw is None else codec.decode_choice(key, raw)

    def lanes(self, queue_id: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        prefix = queue_key(queue_id)
        table, options = self._bounded("ready", after_prefix(prefix))
        rows = table.iter(options)
        try:
            rows.seek(prefix)
            while rows.valid():
                key = rows.key()
                lane, first = key[4:-8], self._row(key, rows.value())
                rows.seek_for_prev(key[:-8] + LAST_PLACE)
                if not rows.valid():
                    break
                last_key = rows.key()
                yield lane, first, self._row(last_key, rows.value())
                rows.seek(key[:-8] + LAST_PLACE)
            rows.status()
        except Exception as trouble:
            raise self._fault(trouble, "ready") from trouble

    def rows_after(self, queue_id: int, lane: bytes, place: int, limit: int) -> list[bytes]:
        prefix = queue_key(queue_id) + lane
        rows = self._scan("ready", prefix + (place + 1).to_bytes(8, "big"), prefix + LAST_PLACE, limit)
        found = [key[-8:] + raw[1:] for key, raw in rows]
        if not {(len(raw) >= codec.READY.size, raw[:1]) for _, raw in rows} <= {(True, codec.V1)}:
            for key, raw in rows:
                self._row(key, raw)
        return found

    def ready(self, queue_id: int, lane_prefix: bytes, after: InReady | None, limit: int) -> list[InReady]:
        prefix = queue_key(queue_id) + lane_prefix
        start = (
            prefix if after is None else max(prefix, queue_key(queue_id) + after.lane + after.row[:8] + b"\0")
        )
        return [
            InReady(queue_id, key[4:-8], self._row(key, raw))
            for key, raw in self._scan("ready", start, after_prefix(prefix), limit)
        ]

    def waiting(self, queue_id: int, after: InWaiting | None, limit: int) -> list[InWaiting]:
        prefix = queue_key(queue_id)
        start = prefix if after is None else timed_key(queue_id, after.due_ms, row_id(after.row)) + b"\0"
        return self._waiting_rows(self._scan("waiting", start, after_prefix(prefix), limit))

    def due(self, queue_id: int, until_ms: int, limit: int) -> list[InWaiting]:
        return self._waiting_rows(
            self._from_floor("waiting", queue_id, timed_prefix(queue_id, min(until_ms + 1, HELD)), limit)
        )

    def next_due(self, queue_id: int) -> int | None:
        return self._first_time("waiting", queue_id, HELD)

    def expired(self, queue_id: int, until_ms: int, limit: int) -> list[tuple[int, bytes]]:
        rows = self._from_floor("ttl", queue_id, timed_prefix(queue_id, until_ms + 1), limit)
        return [self._timed("ttl", key)[1:] for key, _ in rows]

    def next_expiry(self, queue_id: int) -> int | None:
        return self._first_time("ttl", queue_id)

    def dedup(self, queue_id: int, keys: Sequence[str]) -> list[tuple[bytes, int] | None]:
        raw_keys = [dedup_key(queue_id, key) for key in keys]
        found: list[tuple[bytes, int] | None] = []
        for key, raw in zip(raw_keys, self._get("dedup", raw_keys), strict=True):
            if raw is None:
                found.append(None)
            else:
                id, until_ms = codec.decode_fixed("dedup", key, raw, codec.DEDUP)
                found.append((id, until_ms))
        return found

    def dedup_over(self, queue_id: int, until_ms: int, limit: int) -> list[tuple[int, str, int]]:
        rows = self._from_floor("dedup_end", queue_id, timed_prefix(queue_id, until_ms + 1), limit)
        return [
            (
                queue_id,
                codec.decode_text("dedup_end", key, b"\1" + key[12:]),
                int.from_bytes(key[4:12], "big"),
            )
            for key, _ in rows
        ]

    def next_dedup_end(self, queue_id: int) -> int | None:
        return self._first_time("dedup_end", queue_id)

    def last_due(self, queue_id: int) -> int | None:
        prefix = queue_key(queue_id)
        table, options = self._bounded("waiting", timed_prefix(queue_id, HELD))
        rows = table.iter(options)
        try:
            rows.seek_to_last()
            found = rows.key() if rows.valid() else None
            rows.status()
        except Exception as trouble:
            raise self._fault(trouble, "waiting") from trouble
        return int.from_bytes(found[4:12], "big") if found is not None and found.startswith(prefix) else None

    def done(self, queue_id: int, after: InDone | None, until_ms: int, limit: int) -> list[InDone]:
        end = timed_prefix(queue_id, until_ms + 1)
        if after is None:
            rows = self._from_floor("done", queue_id, end, limit)
        else:
            rows = self._scan(
                "done", timed_key(queue_id, after.done_ms, row_id(after.row)) + b"\0", end, limit
            )
        return [self._done_row(key, raw) for key, raw in rows]

    def next_done(self, queue_id: int) -> int | None:
        return self._first_time("done", queue_id)

    def request(self, request_id: bytes) -> bytes | None:
        (raw,) = self._get("requests", [request_id])
        if raw is not None and raw[:1] != codec.V1:
            raise codec.undecodable("requests", request_id, f"version {raw[:1].hex() or 'none'}")
        return None if raw is None else raw[1:]

    def requests_before(self, request_id: bytes, limit: int) -> list[bytes]:
        return [key for key, _ in self._scan("requests", b"", request_id, limit)]

    def streams(self, queue_id: int, names: Sequence[str]) -> list[StreamRecord | None]:
        keys = [stream_key(queue_id, name) for name in names]
        return [
            None if raw is None else codec.decode_stream(key, raw)
            for key, raw in zip(keys, self._get("streams", keys), strict=True)
        ]

    def streams_after(self, queue_id: int, name: str, limit: int) -> list[tuple[str, StreamRecord]]:
        prefix = queue_key(queue_id)
        start = stream_key(queue_id, name) + b"\0" if name else prefix
        rows = self._scan("streams", start, after_prefix(prefix), limit)
        return [
            (codec.decode_text("streams", key, b"\1" + key[6:]), codec.decode_stream(key, raw))
            for key, raw in rows
        ]

    def stream_rows(self, queue_id: int, name: str, after_seq: int, limit: int) -> list[StreamRow]:
        prefix = stream_key(queue_id, name)
        rows = self._scan(
            "stream_rows", prefix + (after_seq + 1).to_bytes(8, "big"), prefix + LAST_PLACE, limit
        )
        return [codec.decode_stream_row(key, raw) for key, raw in rows]

    def messages(self, ids: Sequence[bytes]) -> list[Message | None]:
        return codec.decode_messages(ids, self._get("messages", ids))

    def states(self, ids: Sequence[bytes]) -> list[MessageState | None]:
        return [
            None if raw is None else codec.decode_state(id, raw)
            for id, raw in zip(ids, self._get("state", ids), strict=True)
        ]

    def ids_between(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        table, options = self._bounded("messages", high + b"\0")
        try:
            ids = cast("list[bytes]", list(islice(table.keys(from_key=low, read_opt=options), limit)))
            if len(ids) < limit:
                self._check_end(table, options, low, ids[-1] if ids else None)
            return ids
        except Exception as trouble:
            raise self._fault(trouble, "messages") from trouble

    def messages_from(
        self, queue_id: int, low: bytes, high: bytes, limit: int, max_bytes: int
    ) -> tuple[list[Message], bytes]:
        table, options = self._bounded("messages", high)
        wanted, size, walked, last = queue_key(queue_id), 0, 0, b""
        ids: list[bytes] = []
        raws: list[bytes | None] = []
        try:
            for last, raw in cast(
                "Iterator[tuple[bytes, bytes]]", table.items(from_key=low, read_opt=options)
            ):
                walked += 1
                if raw[1:5] == wanted:
                    ids.append(last)
                    raws.append(raw)
                    size += len(raw)
                if len(ids) >= limit or size >= max_bytes or walked >= _WALKED:
                    low = last + b"\0"
                    break
            else:
                self._check_end(table, options, low, last or None)
                low = high
        except Exception as trouble:
            raise self._fault(trouble, "messages") from trouble
        return [message for message in codec.decode_messages(ids, raws) if message is not None], low

    def staged_chunks(self) -> list[StagedChunk]:
        return [
            codec.decode_chunk(key, raw) for key, raw in self._scan("staged_chunks", b"", None, EVERYTHING)
        ]

    def staged_body(self, write: Scoped, chunk: str) -> bytes | None:
        key = chunk_key(write, chunk)
        (raw,) = self._get("staged", [key])
        if raw is not None and raw[:1] != codec.V1:
            raise codec.undecodable("staged", key, f"version {raw[:1].hex() or 'none'}")
        return None if raw is None else raw[1:]

    def publishing(self) -> list[Publishing]:
        return [
            codec.decode_publishing(key, raw) for key, raw in self._scan("publishing", b"", None, EVERYTHING)
        ]

    def published(self, write: Scoped) -> Published | None:
        key = scoped_key(write)
        (raw,) = self._get("published", [key])
        return None if raw is None else codec.decode_published(key, raw)

    def last_published(self, limit: int, before: tuple[int, Scoped] | None = None) -> list[Published]:
        table, options = self._bounded(
            "published_end", None if before is None else published_end_key(*before)
        )
        keys: list[bytes] = []
        try:
            rows = table.iter(options)
            rows.seek_to_last()
            while rows.valid() and len(keys) < limit:
                keys.append(rows.key()[8:])
                rows.prev()
            rows.status()
        except Exception as trouble:
            raise self._fault(trouble, "published_end") from trouble
        found = zip(keys, self._get("published", keys), strict=True)
        return [codec.decode_published(key, raw) for key, raw in found if raw is not None]

    def published_over(self, until_ms: int, limit: int) -> list[tuple[int, Scoped]]:
        rows = self._from_floor("published_end", 0, number(until_ms + 1), limit)
        return [
            (int.from_bytes(key[:8], "big"), codec.decode_scoped("published_end", key[8:])) for key, _ in rows
        ]

    def next_published_end(self) -> int | None:
        head = self._from_floor("published_end", 0, LAST_PLACE, 1)
        return int.from_bytes(head[0][0][:8], "big") if head else None

    def leases(self) -> list[Lease]:
        return [codec.decode_lease(key, raw) for key, raw in self._scan("leases", b"", None, EVERYTHING)]

    def claims(self) -> list[tuple[int, Claim]]:
        return [
            (read_expiry_key(key)[0], codec.decode_claim(key, raw))
            for key, raw in self._scan("lease_expiry", b"", None, EVERYTHING)
        ]

    def _waiting_rows(self, rows: list[tuple[bytes, bytes]]) -> list[InWaiting]:
        found = []
        for key, raw in rows:
            queue_id, due_ms, id = self._timed("waiting", key)
            if len(raw) < 8 or raw[0] != codec.VERSION:
                raise codec.undecodable(
                    "waiting", key, f"version {raw[:1].hex() or 'none'}, {len(raw)} bytes"
                )
            lane_to = lane_end(raw, 8)
            found.append(
                InWaiting(queue_id, due_ms, raw[8:lane_to], b"\0" * 8 + id + raw[1:8] + raw[lane_to:])
            )
        return found

    def _done_row(self, key: bytes, raw: bytes) -> InDone:
        queue_id, done_ms, id = self._timed("done", key)
        if len(raw) < 20 or raw[0] != codec.VERSION:
            raise codec.undecodable("done", key, f"version {raw[:1].hex() or 'none'}, {len(raw)} bytes")
        return InDone(queue_id, done_ms, raw[16:], raw[1:9] + id + raw[9:16])

    def _first_time(self, family: str, queue_id: int, before: int | None = None) -> int | None:
        end = after_prefix(queue_key(queue_id)) if before is None else timed_prefix(queue_id, before)
        head = self._from_floor(family, queue_id, end, 1)
        return int.from_bytes(head[0][0][4:12], "big") if head else None

    def _from_floor(self, family: str, queue_id: int, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """The queue's first rows of a family whose rows are deleted from the front; remembers where they now
        begin.
        """
        start = max(queue_key(queue_id), self._floors.get((family, queue_id), b""))
        if start >= end:
            return []
        rows = self._scan(family, start, end, limit)
        self._floors[family, queue_id] = rows[0][0] if rows else end
        return rows

    def _row(self, key: bytes, raw: bytes) -> bytes:
        if len(raw) < codec.READY.size or raw[0] != codec.VERSION or len(key) < 12:
            raise codec.undecodable("ready", key, f"version {raw[:1].hex() or 'none'}, {len(raw)} bytes")
        return key[-8:] + raw[1:]

    def _timed(self, family: str, key: bytes) -> tuple[Any, ...]:
        if len(key) != 28:
            raise codec.undecodable(family, key, f"a key of {len(key)} bytes")
        return read_timed_key(key)

    def _get(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        try:
            return cast("list[bytes | None]", self._family(family).get(list(keys)))
        except Exception as trouble:
            raise self._fault(trouble, family) from trouble

    def _scan(self, family: str, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Rows from `start` up to but not including `end`."""
        table, options = self._bounded(family, end)
        try:
            rows = cast(
                "list[tuple[bytes, bytes]]",
                list(islice(table.items(from_key=start, read_opt=options), limit)),
            )
            if len(rows) < limit:
                self._check_end(table, options, start, rows[-1][0] if rows else None)
            return rows
        except Exception as trouble:
            raise self._fault(trouble, family) from trouble

    def _bounded(self, family: str, end: bytes | None) -> tuple[Rdict, ReadOptions]:
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        return self._family(family), options

    def _check_end(self, table: Rdict, options: ReadOptions, start: bytes, last: bytes | None) -> None:
        """`items` and `keys` are fast but end quietly at a damaged block; an iterator's status tells that
        from the end of the rows.
        """
        rest = table.iter(options)
        rest.seek(start if last is None else last)
        if last is not None and rest.valid():
            rest.next()
        if rest.valid():
            raise RuntimeError(f"Corruption: a scan ended before {rest.key().hex()}")
        rest.status()
