"""What is stored, asked of the engine, to be compared with what the witness saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairlead.engine.engine import Engine
from fairlead.model.ids import find_id
from fairlead.model.message import HELD
from fairlead.model.views import MessageInfo
from fairlead.records.ids import MAX_CHUNK_MESSAGES
from fairlead.testing.engine import rows_in
from fairlead.verbs.browse import Browse
from tests.simulation.picture import DONE, LEASED, WAITING, Picture, Seen, must

if TYPE_CHECKING:
    from tests.simulation.running import Running


class Stored(NamedTuple):
    """`since`: the due time of a message that waits, the end of a lease, the time of a completion."""

    where: str
    since: int
    attempts: int
    failures: int
    progress: int


class Look:
    def __init__(self, running: Running) -> None:
        self._running = running

    @property
    def _engine(self) -> Engine:
        broker: Any = self._running.broker
        engine: Engine = broker.engine
        return engine

    @property
    def ahead_ms(self) -> int:
        """By how much the store's time is ahead of the wall clock."""
        return self._engine.time.ahead_ms

    def check(self, now: Picture) -> None:
        stored = {find_id(info.id) or b"": _stored(info) for info in self._browse(now)}
        known = {seen.id: _known(seen) for seen in now.messages.values()}
        wrong = {now.messages[raw_id].payload: (stored.get(raw_id), known[raw_id]) for raw_id in known}
        wrong = {payload: pair for payload, pair in wrong.items() if pair[0] != pair[1]}
        must(not wrong, f"stored, and known: {wrong}")
        must(len(stored) == len(known), f"stored are {len(stored)} messages, known {len(known)}")
        self._check_fronts(now)
        must(self.intents() == set(now.intents), "the operations that are stored are not those seen")

    def _browse(self, now: Picture) -> list[MessageInfo]:
        """In the store's own time, which `Broker.do` would show by the wall clock."""
        found = []
        for record in now.queues.values():
            if record.source_id:
                continue
            for view in ("messages", "dead"):
                after = ""
                while page := self._engine.do(Browse(record.name, view, after=after, limit=7)):  # type: ignore[arg-type]
                    found += page
                    after = page[-1].id
        return found

    def _check_fronts(self, now: Picture) -> None:
        """The message that stands in its lane for a stream is the one that the rules of order name."""
        standing, expected = {}, {}
        with self._engine.transaction() as tx:
            memory = tx.memory
            known = {(home, name) for home, queue in memory.by_id.items() for name in queue.streams.by_name}
            for home, name in known | set(now.streams()):
                stream = memory.by_id[home].streams.find(name, MAX_CHUNK_MESSAGES)
                front = 0 if stream is None else stream.front
                seqs = [] if stream is None else [memory.seq_of(number) for number in stream.numbers]
                standing[home, name] = (memory.seq_of(front) if front else 0, seqs)
        for stream_of in now.streams():
            front_of = now.front(*stream_of)
            seqs = [seen.seq for seen in now.members(*stream_of)]
            expected[stream_of] = (front_of.seq if front_of else 0, seqs)
        must(standing == expected, f"fronts and members of streams are {standing}, not {expected}")

    def intents(self) -> set[int]:
        return {int.from_bytes(key, "big") for key in self._keys("intents")}

    def left(self) -> list[str]:
        """Rows that must be gone when there are no messages."""
        tables = ("chunks", "pages", "states", "own", "leases", "streams", "due", "done", "lives")
        tables += ("members", "runs", "intents", "answers", "session_ends", "dedup", "dedup_end")
        return [table for table in tables for _ in self._keys(table)]

    def _keys(self, table: str) -> list[bytes]:
        broker: Any = self._running.broker
        return list(rows_in(broker, table))


def _stored(info: MessageInfo) -> Stored:
    since: int | None = {WAITING: info.due_at or HELD, LEASED: info.lease_until, DONE: info.done_at}.get(
        info.where, 0
    )
    failures = len(info.failures) + info.failures_cut
    return Stored(info.where, since or 0, info.attempts, failures, int(info.progress))


def _known(seen: Seen) -> Stored:
    since = {WAITING: seen.due_ms, LEASED: seen.expires_ms, DONE: seen.done_ms}.get(seen.where, 0)
    return Stored(seen.where, since, seen.attempts, seen.failures, seen.progress)
