"""What a worker and its step processes say to each other, over three pipes.

`calls` carries length-prefixed MessagePack from the worker. `tickets` carries four bytes for each call that
may begin: the step process takes one, and the worker, which holds the reading end too, may take back those
that are still in the pipe. Who reads a ticket has it, and nobody else: so a call is begun by one process or
by none, whoever dies meanwhile. `results` carries one frame for each call that is over, written at once. A
batch is one call: one ticket, one frame there and one back.
"""

from __future__ import annotations

import struct

import msgspec

from fairlead.runbook.model import StepSpec

_LENGTH = struct.Struct("<I")
TICKET = struct.Struct("<I")


class PipelineSetup(msgspec.Struct, frozen=True, array_like=True):
    """`base` is where commands run and where Python looks for modules first."""

    pipeline: str
    steps: tuple[StepSpec, ...]
    reasons: dict[str, str]
    base: str
    memory_limit_bytes: int | None = None


class StepCall(msgspec.Struct, frozen=True, array_like=True, tag="c", gc=False):
    """One step of one message."""

    ticket: int
    step: int
    raw_id: bytes
    queue: str
    payload: bytes
    headers: bytes
    stream: str
    attempts: int
    deliveries: int
    enqueued_ms: int
    carry: bytes


class BatchCall(msgspec.Struct, frozen=True, array_like=True, tag="b", gc=False):
    """One step of many messages, by columns. `values` is what the step before returned, as JSON; empty when
    there is none before.
    """

    ticket: int
    step: int
    queue: str
    raw_ids: list[bytes]
    payloads: list[bytes]
    headers: list[bytes]
    streams: list[str]
    attempts: list[int]
    values: list[bytes]


class ChildReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The first frame: all steps are loaded, or `step` is not, and `error` says why."""

    step: str = ""
    error: str = ""


class CallDone(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """`value` is JSON, empty for a step that returned nothing."""

    ticket: int
    took_us: int
    value: bytes = b""


class CallFailed(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """`spent` says that the process is not to be used again, `close` which throttle key to close for `retry_after_ms`."""

    ticket: int
    took_us: int
    reason: int
    error: str
    retry_in_ms: int | None = None
    dead: bool = False
    spent: bool = False
    close: str = ""
    retry_after_ms: int = 0


class BatchDone(msgspec.Struct, frozen=True, array_like=True, tag="D", gc=False):
    """`values` has one for each message, empty when none of them has any. In `failed` a failure's ticket is
    the place of its message.
    """

    ticket: int
    took_us: int
    values: list[bytes]
    failed: list[CallFailed]


FromChild = ChildReady | CallDone | CallFailed | BatchDone

_encode = msgspec.msgpack.Encoder().encode


def frame(value: object) -> bytes:
    body = _encode(value)
    return _LENGTH.pack(len(body)) + body


def take_frames(buffer: bytearray) -> list[bytes]:
    """The whole frames at the front of the buffer, which are removed from it."""
    found, at, size = [], 0, len(buffer)
    while size - at >= 4:
        (length,) = _LENGTH.unpack_from(buffer, at)
        if size - at - 4 < length:
            break
        found.append(bytes(buffer[at + 4 : at + 4 + length]))
        at += 4 + length
    if at:
        del buffer[:at]
    return found
