"""A message in its three forms: as the producer gives it, as it is stored once, and what has happened to it
since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fairlead.model.durations import Duration
from fairlead.model.failure import FailureRecord, remember_failure
from fairlead.model.lane import DEFAULT_KEY

#: The due time of a held message: waiting with no end of its own.
HELD = (1 << 63) - 1


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """What a producer hands in. `ttl` beats the queue's own time to live."""

    payload: bytes
    headers: Mapping[str, str] | None = None
    fairness_key: str = DEFAULT_KEY
    weight: int = 1
    throttle_keys: Sequence[str] = ()
    stream: str | None = None
    delay: Duration | None = None
    dedup_key: str | None = None
    ttl: Duration | None = None

    def __repr__(self) -> str:
        # Neither payload nor headers: they may be secret, and what is shown somewhere ends up in a log.
        return f"NewMessage(fairness_key={self.fairness_key!r}, stream={self.stream!r}, dedup_key={self.dedup_key!r})"


class Message(msgspec.Struct, frozen=True, gc=False):
    """Written once at enqueue and never changed; where it is now and how it fared is its `MessageState`.

    `place` is 0 for a message that began waiting (`due_ms`). `headers` is the packed form (see
    `pack_headers`). `seq` is its order in its stream, 0 when no stream orders it (then `stream` is only
    data).
    """

    id: bytes
    queue_id: int
    lane: bytes
    weight: int
    headers: bytes
    payload: bytes
    enqueued_ms: int
    place: int
    due_ms: int = 0
    expires_ms: int = 0
    dedup_key: str = ""
    stream: str = ""
    seq: int = 0

    def __repr__(self) -> str:
        return f"Message(id={self.id.hex()}, queue_id={self.queue_id}, place={self.place})"

    @property
    def size(self) -> int:
        return len(self.headers) + len(self.payload)


class MessageState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a message since it was enqueued; absent until it first moves somewhere but forward.

    `queue_id` is where it is now (a dead letter's is the `.dlq`). Exactly one of `place` (ready there),
    `due_ms` (waiting; `HELD` has no end) and `done_ms` (retained) is set, unless it is leased: then `place`
    is where a release returns it to.
    """

    queue_id: int
    place: int = 0
    due_ms: int = 0
    done_ms: int = 0
    attempts: int = 0
    deliveries: int = 0
    progress: int = 0
    carry: bytes = b""
    reason: int = 0
    rule: str = ""
    failures: tuple[FailureRecord, ...] = ()
    failures_cut: int = 0
    source_queue_id: int = 0
    dead_since_ms: int = 0
    #: How often it was brought back from the dead; a redriven message has no time to live and no dedup key
    #: any more.
    redrives: int = 0
    #: Its order in its stream since the last redrive; 0: the one it was enqueued with.
    seq: int = 0
    #: What `on_enqueue` said when it was redriven; empty and 0: as it was enqueued.
    lane: bytes = b""
    weight: int = 0


def with_failure(state: MessageState, record: FailureRecord, **changes: object) -> MessageState:
    """The state after one more failure, which also says the reason and the rule of the message as a whole."""
    failures, cut = remember_failure(state.failures, record)
    return msgspec.structs.replace(
        state,
        reason=int(record.reason),
        rule=record.rule,
        failures=failures,
        failures_cut=state.failures_cut + cut,
        **changes,
    )


def record_bytes(state: MessageState | None) -> int:
    """About what the record has in bytes: error texts and the carried value are all that can be large."""
    return 0 if state is None else len(state.carry) + sum([len(failure.error) for failure in state.failures])


def lane_of(message: Message, state: MessageState | None) -> bytes:
    """The lane of this life; a dead letter's is the one it last had, while its row stands in that of all dead
    letters.
    """
    return (state.lane if state is not None else b"") or message.lane


def weight_of(message: Message, state: MessageState | None) -> int:
    return (state.weight if state is not None else 0) or message.weight


def seq_of(message: Message, state: MessageState | None) -> int:
    """Its order in its stream; 0 when no stream orders it."""
    return state.seq if state is not None and state.redrives else message.seq


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, str])


def pack_headers(headers: Mapping[str, str] | None) -> bytes:
    return _encoder.encode(headers) if headers else b""


def unpack_headers(packed: bytes) -> dict[str, str]:
    return _decoder.decode(packed) if packed else {}
