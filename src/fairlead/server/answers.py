"""Requests of the Flight door with one answer: incoming rows, and claims.

The layers and the engine make all decisions.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

import pyarrow as pa
from msgspec.structs import replace

from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.delivery import Delivery
from fairlead.request import Request
from fairlead.verbs.claim import Claim
from fairlead.wire.calls import Answer, ClaimCall, WriteCall, decode
from fairlead.wire.numbered import Numbered
from fairlead.wire.writes import decode_fields, decode_write, encode_result

#: A client repeats a waiting claim at least this often, so that the server notices a client that vanished.
MAX_WAIT_MS = 60_000

T = TypeVar("T")


def write(broker: AdmittedCaller, metadata: bytes, batch: pa.RecordBatch | None) -> Answer:
    call = decode(metadata, WriteCall)
    return Answer(result=encode_result(_do(broker, decode_write(call, batch), call)))


def claim(broker: AdmittedCaller, metadata: bytes) -> list[Delivery]:
    call = decode(metadata, ClaimCall)
    request = decode_fields(Claim, call.fields)
    if (request.patience_ms() or 0) > MAX_WAIT_MS:
        request = replace(request, wait=timedelta(milliseconds=MAX_WAIT_MS))
    return _do(broker, request, call)


def _do(broker: AdmittedCaller, request: Request[T], call: Numbered) -> T:
    if call.session is None:
        return broker.do(request)
    return broker.once(request, session=call.session, number=call.number, arrived=call.arrived)
