"""A message in three forms: as the producer gives it, as it is stored, and what happened to it since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fairlead.model.durations import Duration
from fairlead.model.failure import FailureRecord, remember_failure
from fairlead.model.lane import DEFAULT_KEY

#: The due time of a held message, which waits until an operator acts.
HELD = (1 << 63) - 1


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a producer gives it. `ttl` overrides the queue's own time to live."""

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
        # Neither payload nor headers: they may be secret, and representations end up in logs.
        return f"NewMessage(fairness_key={self.fairness_key!r}, stream={self.stream!r}, dedup_key={self.dedup_key!r})"


class Message(msgspec.Struct, frozen=True, gc=False):
    """Written once at enqueue and never changed. Its current location and history are in `MessageState`.

    `place` is 0 for a message that started in waiting (`due_ms`). `headers` is the packed form (see
    `pack_headers`). `seq` is its order in its stream, or 0 if no stream orders it; then `stream` is only
    data.
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
    """What happened to a message since its enqueue. It is absent until the message first does anything but
    move forward.

    `queue_id` is the queue that holds the message now (the `.dlq` for a dead letter). Exactly one of `place`
    (ready), `due_ms` (waiting; `HELD` has no end) and `done_ms` (retained) is set, unless the message is
    leased: then `place` is where a release returns it.
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
    #: How often it was redriven. A redriven message has no time to live and no dedup key.
    redrives: int = 0
    #: Its order in its stream since the last redrive; 0: the order of its enqueue.
    seq: int = 0
    #: The result of `on_enqueue` at its redrive; empty and 0: as it was enqueued.
    lane: bytes = b""
    weight: int = 0


def with_failure(state: MessageState, record: FailureRecord, **changes: object) -> MessageState:
    """The state after one more failure, which also sets the reason and the rule of the message as a whole."""
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
    """The approximate size of the record. Only error texts and the carry can be large."""
    return 0 if state is None else len(state.carry) + sum([len(failure.error) for failure in state.failures])


def lane_of(message: Message, state: MessageState | None) -> bytes:
    """The lane in the message's current life. A dead letter reports its last lane, although its row is in the
    lane of all dead letters.
    """
    return (state.lane if state is not None else b"") or message.lane


def weight_of(message: Message, state: MessageState | None) -> int:
    return (state.weight if state is not None else 0) or message.weight


def seq_of(message: Message, state: MessageState | None) -> int:
    """The message's order in its stream; 0 if no stream orders it."""
    return state.seq if state is not None and state.redrives else message.seq


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, str])


def pack_headers(headers: Mapping[str, str] | None) -> bytes:
    return _encoder.encode(headers) if headers else b""


def unpack_headers(packed: bytes) -> dict[str, str]:
    return _decoder.decode(packed) if packed else {}
