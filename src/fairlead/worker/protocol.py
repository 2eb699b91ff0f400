"""What a worker and its step processes send each other, over three pipes.

`calls` carries MessagePack frames from the worker. `tickets` carries four bytes for each call that may begin:
the step process takes one, and the worker, which also holds the reading end, may take back those still in the
pipe. Only one process can read a ticket, so each call is begun by one process or by none, whichever of them
dies. `results` carries one frame for each call that has ended, written at once. A batch is one call: one
ticket, one frame there and one back.
"""

from __future__ import annotations

import struct

import msgspec

from fairlead.processes.pipes import pack_frame
from fairlead.runbook.model import StepSpec

TICKET = struct.Struct("<I")


class PipelineSetup(msgspec.Struct, frozen=True, array_like=True):
    """The first frame to a step process. `base`: the directory of commands, and the first place to look up
    modules.
    """

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
    """One step of many messages, by column. `values`: what the previous step returned, as JSON; empty for a
    first step.
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
    """The first frame from a step process: its steps are loaded, or `error` says why `step` could not be."""

    step: str = ""
    error: str = ""


class CallDone(msgspec.Struct, frozen=True, array_like=True, tag="d", gc=False):
    """`value`: JSON, or empty for a step that returned nothing."""

    ticket: int
    took_us: int
    value: bytes = b""


class CallFailed(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """`spent`: the process must not be used again. `close`: the throttle key to close for `retry_after_ms`,
    or "".
    """

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
    """`values`: one for each row, or empty if no row has a value. In `failed`, the ticket of a failure is its
    row.
    """

    ticket: int
    took_us: int
    values: list[bytes]
    failed: list[CallFailed]


FromChild = ChildReady | CallDone | CallFailed | BatchDone

_encode = msgspec.msgpack.Encoder().encode


def frame(value: object) -> bytes:
    return pack_frame(_encode(value))
