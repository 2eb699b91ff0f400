"""What is stored, asked of the store of today's engine. Goes with that engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.model.lane import row_place, row_stream
from fairlead.model.message import HELD
from fairlead.testing.engine import all_leases
from fairlead.testing.inside import core_of, streams
from tests.simulation.picture import DONE, LEASED, READY, WAITING, Picture, must
from tests.simulation.traffic import STREAMS

if TYPE_CHECKING:
    from tests.simulation.running import Running
    from tests.simulation.witness import Witness


class OldLook:
    def __init__(self, running: Running) -> None:
        self._running = running

    @property
    def store(self) -> Any:
        return self._running.store

    @property
    def broker(self) -> Any:
        return self._running.broker

    @property
    def witness(self) -> Witness:
        return self._running.witness

    @property
    def ahead_ms(self) -> int:
        ahead_ms: int = core_of(self.broker).time.ahead_ms
        return ahead_ms

    def check(self, now: Picture) -> None:
        stored = set(self.store.ids_between(b"\0" * 16, b"\xff" * 16, 1 << 30))
        must(stored == set(now.messages), f"stored are {len(stored)} messages, known {len(now.messages)}")
        self._check_places()
        self._check_fronts()
        in_memory = {
            lease.id: (lease.claim_id, lease.expires_ms, lease.started, lease.row)
            for lease in all_leases(self.broker)
        }
        must(
            in_memory
            == {
                lease.id: (lease.claim_id, lease.expires_ms, lease.started, lease.row)
                for lease in self.store.leases()
            },
            "the lease book",
        )
        must(
            set(core_of(self.broker).intents) == {intent.intent_id for intent in self.store.intents()},
            "the intents in memory are not those in the store",
        )

    def _check_places(self) -> None:
        since = {WAITING: "due_ms", DONE: "done_ms"}
        seen_where = {
            seen.id: (seen.where, getattr(seen, since.get(seen.where, "claim_id")))
            for seen in self.witness.now.messages.values()
        }
        stored: dict[bytes, tuple[str, int]] = {
            lease.id: (LEASED, lease.claim_id) for lease in self.store.leases()
        }
        for record in self.store.queues():
            stored |= {
                spot.row[8:24]: (WAITING, spot.due_ms)
                for spot in self.store.waiting(record.queue_id, None, 1 << 30)
            }
            stored |= {
                spot.row[8:24]: (DONE, spot.done_ms)
                for spot in self.store.done(record.queue_id, None, HELD, 1 << 30)
            }
        for raw_id, where in seen_where.items():
            must(
                stored.get(raw_id, (READY, 0)) == where,
                f"{self.witness.say(self.witness.now.messages[raw_id])} is stored as {stored.get(raw_id)}",
            )
        states = dict(zip(seen_where, self.store.states(list(seen_where)), strict=True))
        for raw_id, seen in self.witness.now.messages.items():
            state = states[raw_id]
            kept = (
                (state.attempts, len(state.failures) + state.failures_cut, state.progress)
                if state
                else (0, 0, 0)
            )
            must(
                kept == (seen.attempts, seen.failures, seen.progress),
                f"{self.witness.say(seen)} is stored with {kept}",
            )

    def _check_fronts(self) -> None:
        """Who stands in the ready rows for a stream is who the rules of order say, in the engine's own words
        and in ours.
        """
        standing: dict[tuple[int, str], int] = {}
        for record in self.store.queues():
            for spot in self.store.ready(record.queue_id, b"", None, 1 << 30):
                if row_stream(spot.row):
                    standing[record.queue_id, row_stream(spot.row)] = row_place(spot.row)
        for queue_id, stream in self.witness.now.streams():
            front = self.witness.now.front(queue_id, stream)
            have = standing.pop((queue_id, stream), 0)
            must(
                have == (front.seq if front else 0),
                f"the front of {stream} is {have}, not {front and self.witness.say(front)}",
            )
            (stored,) = self.store.streams(queue_id, [stream])
            rows = [row.seq for row in self.store.stream_rows(queue_id, stream, 0, 1 << 30)]
            behind = [seen.seq for seen in self.witness.now.members(queue_id, stream)][1:]
            must(rows == behind, f"behind the first of {stream} are {rows}, not {behind}")
            found = streams.StreamDraft(core_of(self.broker), queue_id, stream, stored).find_front()
            must(
                have == (found.seq if found else 0),
                f"the front of {stream} is {have}, find_front says {found and found.seq}",
            )
        must(not standing, f"fronts of streams without messages: {standing}")

    def intents(self) -> set[int]:
        return {intent.intent_id for intent in self.store.intents()}

    def requests(self) -> list[bytes]:
        return list(self.store.requests_before(b"\xff" * 16, 1 << 30))

    def left(self) -> list[Any]:
        """Records that must be gone when there are no messages."""
        left = [*self.store.intents(), *self.store.claims(), *self.requests()]
        for record in self.store.queues():
            left += [
                row.seq
                for stream in STREAMS
                for row in self.store.stream_rows(record.queue_id, stream, 0, 10)
            ]
            left += self.store.streams_after(record.queue_id, "", 10)
            left += self.store.dedup_over(record.queue_id, 1 << 62, 10)
        return left
