"""Spans of a server's calls: a broker that writes one down for every call that moves messages, and is
otherwise the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from fairlead.broker.broker import Broker
from fairlead.model.delivery import Delivery
from fairlead.model.message import NewMessage
from fairlead.model.settle import Settlement, SettleResult
from fairlead.model.views import ExchangeResult
from fairlead.wire.tracing import OperationType, Tracing

_A = TypeVar("_A")

_log = logging.getLogger("fairlead.tracing")


def traced(broker: Broker, tracing: Tracing | None) -> Broker:
    """The broker to give to doors: itself when tracing is off."""
    return broker if tracing is None else cast(Broker, _TracedBroker(broker, tracing))


class _TracedBroker:
    """Everything it does not name is the broker's own."""

    def __init__(self, broker: Broker, tracing: Tracing) -> None:
        self._broker = broker
        self._tracing = tracing
        self._in_trouble = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def enqueue(self, queue: str, payload: bytes, **options: Any) -> str:
        parent = _headers(options.get("headers"))
        return self._record(
            "enqueue",
            "send",
            lambda: self._broker.enqueue(queue, payload, **options),
            queue=queue,
            count=1,
            parent=parent,
        )

    def enqueue_many(self, queue: str, messages: Sequence[NewMessage]) -> list[str]:
        parent = _first_headers(messages)
        return self._record(
            "enqueue",
            "send",
            lambda: self._broker.enqueue_many(queue, messages),
            queue=queue,
            count=_size(messages),
            parent=parent,
        )

    def claim(self, queue: str | Sequence[str], **options: Any) -> list[Delivery]:
        """One that found nothing leaves no span: consumers ask all day."""
        name = queue if isinstance(queue, str) else None
        return self._record(
            "claim",
            "receive",
            lambda: self._broker.claim(queue, **options),
            queue=name,
            count=len,
            keep=bool,
            linked=_carried,
        )

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        return self._record("settle", "settle", lambda: self._broker.settle(items), count=_size(items))

    def exchange(self, consumer: str, **parts: Any) -> ExchangeResult:
        """Counts what it settled, enqueued and claimed; one that did none of it leaves no span.

        One that is only an enqueue or only a settle, under a request id, is written down as such.
        """
        settles, sent, claims = (
            parts.get("settle") or parts.get("extend"),
            parts.get("enqueue"),
            parts.get("claim"),
        )
        verb, operation, queue, parent = "exchange", "settle", None, None
        if sent and isinstance(sent, Mapping) and not settles and not claims:
            verb, operation, parent = "enqueue", "send", _first_headers(next(iter(sent.values())))
            queue = next(iter(sent)) if len(sent) == 1 else None
        elif settles and not sent and not claims:
            verb = "settle"
        return self._record(
            verb,
            cast(OperationType, operation),
            lambda: self._broker.exchange(consumer, **parts),
            queue=queue,
            parent=parent,
            count=_moved,
            keep=lambda result: _moved(result) > 0,
            linked=lambda result: _carried(result.deliveries),
        )

    def _record(
        self,
        verb: str,
        operation: OperationType,
        call: Callable[[], _A],
        *,
        queue: str | None = None,
        count: int | Callable[[_A], int],
        parent: Mapping[str, str] | None = None,
        keep: Callable[[_A], bool] = lambda answer: True,
        linked: Callable[[_A], Iterable[Mapping[str, str]]] = lambda answer: (),
    ) -> _A:
        began_ns = time.time_ns()
        try:
            answer = call()
        except Exception as error:
            known = count if isinstance(count, int) else 0
            self._write_down(
                verb, operation, queue=queue, count=known, began_ns=began_ns, parent=parent, error=error
            )
            raise
        if keep(answer):
            moved = count if isinstance(count, int) else count(answer)
            self._write_down(
                verb,
                operation,
                queue=queue,
                count=moved,
                began_ns=began_ns,
                parent=parent,
                linked=linked(answer),
            )
        return answer

    def _write_down(self, verb: str, operation: OperationType, **fields: Any) -> None:
        try:
            self._tracing.record_call(verb, operation, **fields)
        except Exception:
            # The call is carried out: whoever asked for it must hear so.
            if not self._in_trouble:
                self._in_trouble = True
                _log.exception("a span could not be written down; no further failure of that is logged")


def _carried(deliveries: Sequence[Delivery]) -> Iterator[Mapping[str, str]]:
    return (delivery.headers for delivery in deliveries)


def _first_headers(messages: object) -> Mapping[str, str]:
    first = messages[0] if isinstance(messages, Sequence) and messages else None
    return _headers(first.headers) if isinstance(first, NewMessage) else {}


def _headers(given: object) -> Mapping[str, str]:
    return given if isinstance(given, Mapping) else {}


def _size(given: object) -> int:
    """What is no list is for the broker to refuse."""
    return len(given) if isinstance(given, Sequence) else 0


def _moved(result: ExchangeResult) -> int:
    return len(result.settled) + sum(len(ids) for ids in result.enqueued.values()) + len(result.deliveries)
