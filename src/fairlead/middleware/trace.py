"""Writes a span for every call that moves messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fairlead.model.delivery import Delivery
from fairlead.model.message import NewMessage
from fairlead.request import Answer, Caller, Handler, Request
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.settle import Ack, Nack, Settle
from fairlead.wire.tracing import OperationType, Tracing

_log = logging.getLogger("fairlead.tracing")

_TRACED = (Enqueue, EnqueueMany, Claim, Settle, Ack, Nack, Exchange)


class CallSpan(NamedTuple):
    """What is known of a call before it runs. `messages` is the number of messages in the request."""

    verb: str
    operation: OperationType
    queue: str | None = None
    messages: int = 0
    parent: Mapping[str, str] | None = None


class Trace:
    def __init__(self, inner: Handler, tracing: Tracing) -> None:
        self._inner = inner
        self._tracing = tracing
        self._in_trouble = False

    @staticmethod
    def concerns(kind: type[Request[Any]]) -> bool:
        return kind in _TRACED

    def __call__(self, request: Request[Answer], caller: Caller) -> Answer:
        span = _span_of(request)
        if span is None:
            return self._inner(request, caller)
        began_ns = time.time_ns()
        try:
            answer = self._inner(request, caller)
        except Exception as error:
            self._write(span, began_ns, count=span.messages, error=error)
            raise
        count, linked = _moved(span, answer)
        # A claim that found nothing leaves no span, because consumers ask all the time. Neither does an empty
        # exchange.
        if count or not isinstance(request, (Claim, Exchange)):
            self._write(span, began_ns, count=count, linked=linked)
        return answer

    def _write(self, span: CallSpan, began_ns: int, **fields: Any) -> None:
        try:
            self._tracing.record_call(
                span.verb,
                span.operation,
                queue=span.queue,
                began_ns=began_ns,
                parent=span.parent,
                **fields,
            )
        except Exception:
            # The call was carried out: its caller must get the answer.
            if not self._in_trouble:
                self._in_trouble = True
                _log.exception("a span could not be written; later failures of this kind are not logged")


def _span_of(request: Request[Any]) -> CallSpan | None:
    match request:
        case Enqueue():
            return CallSpan("enqueue", "send", request.queue, 1, _headers(request.headers))
        case EnqueueMany():
            parent = _first_headers(request.messages)
            return CallSpan("enqueue", "send", request.queue, _size(request.messages), parent)
        case Claim():
            return CallSpan("claim", "receive", request.queue if isinstance(request.queue, str) else None)
        case Settle():
            return CallSpan("settle", "settle", messages=_size(request.items))
        case Ack() | Nack():
            return CallSpan("settle", "settle", messages=1)
        case Exchange():
            return CallSpan("exchange", "settle")
    return None


def _moved(span: CallSpan, answer: Any) -> tuple[int, Iterable[Mapping[str, str]]]:
    """How many messages moved, and the headers of those that were delivered."""
    if span.verb == "exchange":
        parts = [part if isinstance(part, list) else [part] for part in answer]
        moved = [one for part in parts for one in part]
        return len(moved), _carried([one for one in moved if isinstance(one, Delivery)])
    if span.operation == "receive":
        return len(answer), _carried(answer)
    return span.messages, ()


def _carried(deliveries: Sequence[Delivery]) -> Iterable[Mapping[str, str]]:
    return (delivery.headers for delivery in deliveries)


def _first_headers(messages: object) -> Mapping[str, str]:
    first = messages[0] if isinstance(messages, Sequence) and messages else None
    return _headers(first.headers) if isinstance(first, NewMessage) else {}


def _headers(given: object) -> Mapping[str, str]:
    return given if isinstance(given, Mapping) else {}


def _size(given: object) -> int:
    """The broker refuses values that are not a list."""
    return len(given) if isinstance(given, Sequence) else 0
