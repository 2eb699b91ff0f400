"""New messages: check, dedup, commit, announce."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlead.broker.core import Core
from fairlead.broker.hooking import ask_on_enqueue, has_enqueue_hook
from fairlead.broker.moves import Moves
from fairlead.broker.queue_state import QueueState
from fairlead.broker.room import state_bytes
from fairlead.broker.streams import StreamDrafts
from fairlead.decide.ordering import Standing
from fairlead.engine.room import MESSAGE_BYTES
from fairlead.errors import InvalidRequest, QueueFull
from fairlead.model.checks import CheckedMessage, check_messages
from fairlead.model.facts import Enqueued, Quarantined
from fairlead.model.failure import FailureReason, FailureRecord, bounded_error, read_reason
from fairlead.model.ids import show_id
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, lane_key, lane_throttle_keys, pack_lane, pack_row
from fairlead.model.message import Message, MessageState, NewMessage
from fairlead.model.stream import StreamRow


def enqueue_many(core: Core, queue_name: str, messages: Sequence[NewMessage]) -> list[str]:
    prepared = Prepared(queue_name, ask_hook(core, queue_name, check_messages(messages)))
    with core.lock:
        moves = Moves(core, core.now_ms())
        ids = [show_id(raw) for raw in prepared.add_to(core, moves, moves.places())]
        moves.commit()
        prepared.announce(core)
        commit = core.store.last_commit
    # Also when every message was a duplicate: the id given back must be as durable as a new one.
    core.confirm(commit)
    return ids


def ask_hook(core: Core, queue_name: str, checked: list[CheckedMessage]) -> list[CheckedMessage]:
    """Without the lock held for long: what the queue's `on_enqueue` hook makes of the messages, if it has
    one.
    """
    with core.lock:
        queue = core.queue(queue_name)
        queue_id, asks = queue.queue_id, has_enqueue_hook(queue)
    return ask_on_enqueue(core, queue_id, queue_name, checked) if asks and checked else checked


class Prepared:
    """Checked messages on their way into one queue: into a commit, and after it into memory."""

    def __init__(self, queue: str, checked: list[CheckedMessage], *, bounded: bool = True) -> None:
        self.queue = queue
        self._checked = checked
        #: False for what was let in before: its room is kept for it.
        self._bounded = bounded
        self._messages: list[Message] = []
        self._fronts: set[bytes] = set()

    def add_to(self, core: Core, moves: Moves, places: Iterator[int]) -> list[bytes]:
        """Put the facts into the commit that `moves` makes; returns the id of each message, duplicates'
        included.
        """
        checked, now_ms, self._fronts = self._checked, moves.now_ms, moves.straight
        queue = core.queue(self.queue)
        if queue.is_dead_letter_queue:
            raise InvalidRequest(
                "queue", "no dead-letter queue; a quarantine puts messages there", self.queue
            )
        fresh_ids = core.ids.next(now_ms, len(checked))
        ids = (
            _resolve_duplicates(core, queue, checked, fresh_ids, now_ms)
            if any(item.dedup_key for item in checked)
            else fresh_ids
        )
        names = [item.stream for item in checked if item.stream] if queue.config.ordering != "none" else []
        if names:
            moves.streams.load(queue.queue_id, names)
        messages = self._messages = _messages(queue, checked, ids, fresh_ids, now_ms, places, moves.streams)
        if messages:
            if self._bounded:
                _check_bounds(core, queue, messages)
            behind = _join_streams(moves.streams, messages) if names else frozenset()
            moves.facts.append(Enqueued(queue.queue_id, messages, behind))
        return ids

    def announce(self, core: Core) -> None:
        if self._messages:
            _announce(core, core.queue(self.queue), self._messages, self._fronts)


def _join_streams(streams: StreamDrafts, messages: list[Message]) -> frozenset[bytes]:
    """Messages of streams come in behind; the commit moves those to the front that have nobody before them."""
    for message in messages:
        if message.seq:
            standing, flags = (
                (Standing.WAITING, message.flags | Flag.DELAYED)
                if message.due_ms
                else (Standing.READY, message.flags)
            )
            streams.join(message.queue_id, StreamRow(message.lane, message.row(message.seq, flags)), standing)
    return frozenset([message.id for message in messages if message.seq and not message.due_ms])


def _messages(
    queue: QueueState,
    checked: list[CheckedMessage],
    ids: list[bytes],
    fresh_ids: list[bytes],
    now_ms: int,
    places: Iterator[int],
    streams: StreamDrafts,
) -> list[Message]:
    """The messages that are new; a duplicate's id differs from the fresh one made for it."""
    config, queue_id = queue.config, queue.queue_id
    window_ms = config.dedup_window_ms
    keys: dict[str, str] = {}
    messages = []
    for item, message_id, fresh_id in zip(checked, ids, fresh_ids, strict=True):
        if message_id is not fresh_id:
            continue
        delay_ms, dedup_key, stream, lane = item.delay_ms, item.dedup_key, item.stream, item.lane
        ttl_ms = config.ttl_ms if item.ttl_ms < 0 else item.ttl_ms
        place = next(places)
        if not (delay_ms or ttl_ms or dedup_key or stream):
            messages.append(
                Message(message_id, queue_id, lane, item.weight, item.headers, item.payload, now_ms, place)
            )
            continue
        seq = 0
        if stream and config.ordering != "none":
            seq = place
            lane = _bound_lane(streams, keys, queue_id, stream, lane)
        messages.append(
            Message(
                message_id,
                queue_id,
                lane,
                item.weight,
                item.headers,
                item.payload,
                now_ms,
                0 if delay_ms else place,
                now_ms + delay_ms if delay_ms else 0,
                now_ms + ttl_ms if ttl_ms else 0,
                dedup_key,
                now_ms + window_ms if dedup_key and window_ms else 0,
                bool(dedup_key) and not window_ms,
                stream,
                seq,
            )
        )
    return messages


def _bound_lane(
    streams: StreamDrafts, keys: dict[str, str], queue_id: int, stream: str, lane: bytes
) -> bytes:
    """A stream keeps the key of the message that opened it; `keys` remembers those met in this batch."""
    if stream not in keys:
        draft = streams.get(queue_id, stream)
        keys[stream] = draft.key if draft.live else lane_key(lane)
    return lane if lane_key(lane) == keys[stream] else pack_lane(keys[stream], lane_throttle_keys(lane))


def _resolve_duplicates(
    core: Core, queue: QueueState, checked: list[CheckedMessage], fresh_ids: list[bytes], now_ms: int
) -> list[bytes]:
    """Per message the id it goes by: its own, or that of the first with its dedup key."""
    keys = list({item.dedup_key for item in checked if item.dedup_key})
    known: dict[str, bytes] = {}
    for key, row in zip(keys, core.store.dedup(queue.queue_id, keys), strict=True):
        if row is not None and (row[1] == 0 or row[1] > now_ms):
            known[key] = row[0]
    ids = []
    for item, fresh_id in zip(checked, fresh_ids, strict=True):
        ids.append(known.setdefault(item.dedup_key, fresh_id) if item.dedup_key else fresh_id)
    return ids


def _check_bounds(core: Core, queue: QueueState, messages: list[Message]) -> None:
    incoming = sum([len(message.payload) + len(message.headers) for message in messages])
    check_queue_bounds(core, queue, len(messages), incoming)
    core.store.check_room(incoming + MESSAGE_BYTES * len(messages))
    if not queue.scheduler.has_room_for(len(messages)):
        queue.scheduler.check_lanes(message.lane for message in messages)


def check_queue_bounds(core: Core, queue: QueueState, count: int, size: int) -> None:
    """Refuse so many messages and bytes more, if with those that are published and on their way they are too
    many.
    """
    config = queue.config
    if config.max_messages or config.max_bytes:
        counters = core.store.counters(queue.queue_id)
        coming, coming_bytes = core.staged.to_come(queue.queue_id)
        if config.max_messages and counters.messages + coming + count > config.max_messages:
            raise QueueFull(queue.name, "max_messages", config.max_messages)
        if config.max_bytes and counters.bytes + coming_bytes + size > config.max_bytes:
            raise QueueFull(queue.name, "max_bytes", config.max_bytes)


def _announce(core: Core, queue: QueueState, messages: list[Message], fronts: set[bytes]) -> None:
    rows = []
    for message in messages:
        if message.due_ms:
            queue.next_due_ms = min(queue.next_due_ms, message.due_ms)
        elif not message.seq:
            flags = message.flags if message.expires_ms or message.live_dedup else 0
            row = pack_row(
                message.place, message.id, message.weight, flags, len(message.headers) + len(message.payload)
            )
            rows.append((message.lane, row))
        elif message.id in fronts:
            rows.append((message.lane, message.row(message.seq, message.flags)))
        if message.expires_ms:
            queue.next_expiry_ms = min(queue.next_expiry_ms, message.expires_ms)
        if message.dedup_until_ms:
            queue.next_dedup_ms = min(queue.next_dedup_ms, message.dedup_until_ms)
    queue.scheduler.add_all(rows)
    core.bodies.add(messages)
    if queue.waiters:
        queue.wake_waiters(len(rows))
    core.wake_timer(queue.next_wake_ms())


def quarantine(
    core: Core, queue_name: str, messages: Sequence[NewMessage], reason: FailureReason | str | int, error: str
) -> list[str]:
    """Straight into the dead letters of a queue, with a record of why."""
    checked = check_messages(messages)
    why = read_reason(reason)
    if not isinstance(error, str):
        raise InvalidRequest("error", "text", type(error))
    deaths = [(int(why), bounded_error(error))] * len(checked)
    with core.lock:
        source = core.queue(queue_name)
        if source.is_dead_letter_queue:
            raise InvalidRequest(
                "queue", "the queue the messages belong to, not its dead-letter queue", queue_name
            )
        stillborn = Stillborn(core, source, checked, deaths, core.now_ms())
        if checked:
            core.store.check_room(stillborn.stored_bytes)
            core.commit([stillborn.fact])
            stillborn.announce(core)
        commit = core.store.last_commit
    core.confirm(commit)
    return [show_id(message.id) for message in stillborn.fact.messages]


class Stillborn:
    """Checked messages on their way into the dead letters of a queue, each with its (reason, error)."""

    def __init__(
        self,
        core: Core,
        source: QueueState,
        checked: Sequence[CheckedMessage],
        deaths: Sequence[tuple[int, str]],
        now_ms: int,
    ) -> None:
        self._dead_letters = dead_letters = core.by_id[source.record.dlq_id]
        stored, states = [], []
        raw_ids = core.ids.next(now_ms, len(checked))
        for item, raw_id, place, (reason, error) in zip(
            checked, raw_ids, core.places(), deaths, strict=False
        ):
            record = FailureRecord(now_ms, 0, reason, error, "", "quarantine")
            stored.append(
                Message(
                    raw_id,
                    source.queue_id,
                    item.lane,
                    item.weight,
                    item.headers,
                    item.payload,
                    now_ms,
                    0,
                    stream=item.stream,
                )
            )
            states.append(
                MessageState(
                    dead_letters.queue_id,
                    place,
                    reason=reason,
                    rule="quarantine",
                    failures=(record,),
                    source_queue_id=source.queue_id,
                    dead_since_ms=now_ms,
                )
            )
        self.fact = Quarantined(dead_letters.queue_id, stored, states)

    @property
    def stored_bytes(self) -> int:
        fact = self.fact
        return sum([MESSAGE_BYTES + message.size for message in fact.messages]) + sum(
            map(state_bytes, fact.states)
        )

    def announce(self, core: Core) -> None:
        dead_letters = self._dead_letters
        for message, state in zip(self.fact.messages, self.fact.states, strict=True):
            dead_letters.scheduler.add(DEAD_LETTER_LANE, message.row(state.place, Flag.STATE))
        dead_letters.wake_waiters(len(self.fact.messages))
        core.look_ahead(dead_letters)
