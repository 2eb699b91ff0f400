"""Streams of a rebuilt store: members in order, and the one that may go next."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairlead.decide.ordering import Standing, find_front
from fairlead.model.facts import InReady, InStream, InWaiting, Moved, StreamJoined, StreamSaved
from fairlead.model.lane import Flag, lane_key, move_row
from fairlead.model.message import Message, MessageState, seq_of
from fairlead.model.stream import StreamRecord, StreamRow
from fairlead.salvage.placing import Spot
from fairlead.store.rocks import codec

if TYPE_CHECKING:
    from fairlead.salvage.rebuild import Rebuild


class StreamBuilder:
    def __init__(self, rebuild: Rebuild) -> None:
        self._rebuild = rebuild
        self._records: dict[tuple[int, str], StreamRecord] = {}
        self._members: dict[tuple[int, str], list[tuple[StreamRow, Standing]]] = defaultdict(list)
        #: What rows of streams say about messages; one that is saved is taken out.
        self.known: dict[bytes, Spot] = {}

    def read(self) -> None:
        for row, record in self._rebuild.decoded("streams", codec.decode_stream):
            queue_id = int.from_bytes(row.key[:4], "big")
            self._records[queue_id, row.key[6:].decode("utf-8", "replace")] = record
            self._note(queue_id, record.first)
        for row, member in self._rebuild.decoded("stream_rows", codec.decode_stream_row):
            self._note(int.from_bytes(row.key[:4], "big"), member)

    def add(
        self, message: Message, state: MessageState | None, place: InReady | InStream | InWaiting
    ) -> None:
        """A live message whose stream orders it."""
        flags = place.row[26]
        waits = isinstance(place, InWaiting)
        if waits and state is None:
            flags |= Flag.DELAYED
        row = StreamRow(place.lane, move_row(place.row, seq_of(message, state), flags))
        standing = Standing.WAITING if waits else Standing.READY
        self._members[place.queue_id, message.stream].append((row, standing))

    def write(self, leased: set[bytes]) -> None:
        """`leased`: ids whose leases are kept."""
        for (queue_id, name), found in self._members.items():
            members = {
                row.seq: (row, Standing.LEASED if row.id in leased else standing) for row, standing in found
            }
            self._write(queue_id, name, members)
            self._rebuild.flush_if_large()
        self._rebuild.flush()

    def _write(self, queue_id: int, name: str, members: dict[int, tuple[StreamRow, Standing]]) -> None:
        add = self._rebuild.add
        seqs = sorted(members)
        before = self._records.get((queue_id, name))
        first = members[seqs[0]][0]
        if before is None:
            queue = self._rebuild.queue_name(queue_id)
            self._rebuild.report.other.append(
                f"the record of stream {name!r} of queue {queue!r} is gone, and with it who may pass whom"
            )
        let_by = tuple(seq for seq in before.let_by if seq in members) if before else ()
        all_after = before.all_after if before and before.all_after >= first.seq else 0

        def rows_from(seq: int) -> Iterator[StreamRow]:
            return (members[later][0] for later in seqs[bisect_left(seqs, seq) :])

        leased = [seq for seq in seqs if members[seq][1] is Standing.LEASED]
        front = find_front(
            rows_from,
            lambda row: members[row.seq][1],
            let_by=let_by,
            all_after=all_after,
            lowest_leased=min(leased, default=None),
        )
        for seq in seqs[1:]:
            add(StreamJoined(queue_id, name, members[seq][0]))
        if front is not None:
            add(
                Moved(
                    "promoted",
                    front.id,
                    InStream(queue_id, front.lane, front.row),
                    InReady(queue_id, front.lane, front.row),
                    None,
                )
            )
        key = before.key if before else lane_key(first.lane)
        # A front that is leased has left the ready rows and stays noted.
        noted = before.front if before and before.front in leased else 0
        add(
            StreamSaved(
                queue_id,
                name,
                StreamRecord(key, len(seqs), first, front.seq if front else noted, let_by, all_after),
            )
        )

    def _note(self, queue_id: int, member: StreamRow) -> None:
        self.known[member.id] = Spot(queue_id, member.lane, False, place=member.seq)
