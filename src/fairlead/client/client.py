"""The synchronous face. The verbs are the broker's, with its signatures; what they do is described there.

What differs: `consumer` is the client's own name unless given, held leases are kept alive, and a call that
meets trouble on the way is tried again for as long as `retry_for` says. Thread-safe.
"""
# mypy: disable-error-code="no-any-return"
# What an admin verb gives is known from the table in wire/views.py, which types do not see.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import pyarrow as pa

from fairlead.client.bulk import ClientConsumers, ClientStaging, browse_batches
from fairlead.client.consume import Consumption, Puller
from fairlead.client.core import Core, Options, default_consumer
from fairlead.client.groups import ClientAudit, ClientConfig, ClientKeys, ClientRunbooks
from fairlead.client.requests import Put, Requests
from fairlead.client.tls import TlsChoice, chosen_tls
from fairlead.client.traces import Traces
from fairlead.client.transport import FlightTransport
from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import Intent
from fairlead.model.failure import FailureReason
from fairlead.model.handles import read_handle
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_CONSUMER_BYTES
from fairlead.model.message import NewMessage
from fairlead.model.settle import Extend, Handle, Settlement, SettleResult
from fairlead.model.views import (
    ExchangeResult,
    Explanation,
    FailureMetrics,
    MessageInfo,
    OperatorResult,
    QueueInfo,
    QueueStats,
    RedriveResult,
)
from fairlead.wire.calls import BrowseCall
from fairlead.wire.schemas import ADMIN_CALL
from fairlead.wire.tracing import ambient
from fairlead.wire.views import ADMIN, decode_result, encode_arguments


def connect(
    address: str,
    *,
    consumer: str | None = None,
    retry_for: Duration = "30s",
    timeout: Duration = "30s",
    heartbeat_cap: Duration | None = "10m",
    tracing: bool = False,
    api_key: str | None = None,
    tls: TlsChoice = None,
) -> Client:
    """A client of the server at `address`, once it has answered; `ServerUnreachable` when it has not.

    `timeout` is how long one request may go unanswered before its connection counts as dead, and `retry_for`
    how long a call goes on trying from the first trouble on. So every call, this one included, ends within
    `timeout` + `retry_for`, with its answer or an error; the `wait` of a claim comes on top. The verbs of
    operators have no more time: give more for millions of messages. `heartbeat_cap` is how long after it was
    handed out a delivery is kept alive; None: not at all. `api_key` goes with every call. `tls` is True (the
    authorities that the system trusts), the path of an authority's certificate, or a `fairlead.Tls`; what is
    wrong with it is `TlsFailed`, at once. `tracing` makes OpenTelemetry spans of what is enqueued, wherever
    this program sends its own, and needs `fairlead[otel]`.
    """
    options = Options(
        address,
        _check_consumer(default_consumer() if consumer is None else consumer),
        to_ms(retry_for, "retry_for"),
        max(1, to_ms(timeout, "timeout")),
        None if heartbeat_cap is None else to_ms(heartbeat_cap, "heartbeat_cap"),
    )
    traces = Traces(ambient() if tracing else None)
    transport = FlightTransport(address, tls=chosen_tls(tls), api_key=api_key, timeout_ms=options.timeout_ms)
    client = Client(Core(options, transport=transport), traces)
    try:
        client.intents()
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """Made by `connect`. `close` ends calls under way; leases stay, and are no longer kept alive."""

    def __init__(self, core: Core, traces: Traces | None = None) -> None:
        self._core = core
        self._requests = Requests(core)
        self._traces = traces or Traces()
        self.config = ClientConfig(self)
        self.runbooks = ClientRunbooks(self)
        self.keys = ClientKeys(self)
        self.audit = ClientAudit(self)
        self.consumers = ClientConsumers(self)
        self.staging = ClientStaging(self)

    @property
    def consumer(self) -> str:
        """The name under which it claims unless told otherwise."""
        return self._core.options.consumer

    # Queues

    def create_queue(self, /, name: str, **options: Any) -> QueueInfo:
        return self._admin("create_queue", name=name, **options)

    def update_queue(self, /, name: str, **options: Any) -> QueueInfo:
        return self._admin("update_queue", name=name, **options)

    def pause(self, name: str) -> None:
        self._admin("pause", name=name)

    def resume(self, name: str) -> None:
        self._admin("resume", name=name)

    def purge(self, name: str) -> int:
        return self._admin("purge", name=name)

    def delete_queue(self, name: str) -> None:
        self._admin("delete_queue", name=name)

    def queues(self, prefix: str = "") -> list[QueueInfo]:
        return self._admin("queues", prefix=prefix)

    def stats(self, queue: str, *, keys: bool = False, key_limit: int = 1000) -> QueueStats:
        return self._admin("stats", queue=queue, keys=keys, key_limit=key_limit)

    # Messages in

    def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        fairness_key: str = DEFAULT_KEY,
        weight: int = 1,
        throttle_keys: Sequence[str] = (),
        stream: str | None = None,
        delay: Duration | None = None,
        dedup_key: str | None = None,
        ttl: Duration | None = None,
    ) -> str:
        """Goes together with what other threads enqueue meanwhile. Repeated after a lost answer it is still
        one message.
        """
        message = NewMessage(
            payload, headers, fairness_key, weight, throttle_keys, stream, delay, dedup_key, ttl
        )
        return self.enqueue_many(queue, [message])[0]

    def enqueue_many(self, queue: str, messages: Sequence[NewMessage]) -> list[str]:
        self._core.check()
        with self._traces.enqueuing(queue, messages) as carried:
            return self._requests.enqueues.call(Put.of(queue, carried))

    def quarantine(
        self,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        error: str = "",
    ) -> list[str]:
        return self._admin("quarantine", queue=queue, messages=messages, reason=reason, error=error)

    # Messages out

    def claim(
        self,
        queue: str | Sequence[str],
        *,
        limit: int = 1,
        wait: Duration | None = None,
        consumer: str = "",
        max_per_stream: int = 1,
        token: str | None = None,
        started: bool = True,
    ) -> list[Delivery]:
        """What it gives is kept alive until it is settled, up to `heartbeat_cap`."""
        self._core.check()
        return self._requests.claim(
            queue,
            limit=limit,
            wait=wait,
            consumer=consumer,
            max_per_stream=max_per_stream,
            token=token,
            started=started,
        )

    def consume(
        self, queue: str | Sequence[str], *, prefetch: int = 100, max_per_stream: int = 1, consumer: str = ""
    ) -> Consumption:
        """An endless loop of deliveries, up to `prefetch` of them fetched ahead; settle each yourself."""
        puller = Puller(
            self._requests, queue, prefetch=prefetch, max_per_stream=max_per_stream, consumer=consumer
        )
        puller.start()
        return Consumption(puller)

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        self._core.check()
        return self._requests.settle(items)

    def is_lost(self, delivery: Handle) -> bool:
        """Has a heartbeat or a settle been told that the lease is over? Then the work may be under way
        elsewhere.
        """
        return self._requests.heartbeat.is_lost(*read_handle(delivery))

    def process_span(self, delivery: Delivery) -> AbstractContextManager[None]:
        """`with client.process_span(delivery):` around the work: a span in the producer's trace. Without
        tracing, nothing.
        """
        return self._traces.processing(delivery)

    def ack(self, queue: str, message_id: str) -> SettleResult:
        return self._admin("ack", queue=queue, message_id=message_id)

    def nack(
        self,
        queue: str,
        message_id: str,
        error: str = "",
        *,
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
    ) -> SettleResult:
        return self._admin("nack", queue=queue, message_id=message_id, error=error, reason=reason)

    def goodbye(self, consumer: str) -> int:
        return self._admin("goodbye", consumer=consumer)

    def exchange(
        self,
        consumer: str,
        *,
        extend: Sequence[Extend] = (),
        settle: Sequence[Settlement] = (),
        enqueue: Mapping[str, Sequence[NewMessage]] | None = None,
        claim: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        answered: Sequence[str] = (),
    ) -> ExchangeResult:
        """Without a `request_id` it gets one, so that it too may be repeated after a lost answer."""
        self._core.check()
        return self._requests.exchange(
            consumer,
            extend=extend,
            settle=settle,
            enqueue={} if enqueue is None else self._traces.carried(enqueue),
            claim=claim,
            request_id=request_id,
            answered=answered,
        )

    # What operators do

    def retry(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin("retry", queue=queue, ids=ids, filter=filter, dry_run=dry_run)

    def drop(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin("drop", queue=queue, ids=ids, filter=filter, dry_run=dry_run)

    def done(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin("done", queue=queue, ids=ids, filter=filter, dry_run=dry_run)

    def bury(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        error: str = "buried by an operator",
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin(
            "bury", queue=queue, ids=ids, filter=filter, error=error, reason=reason, dry_run=dry_run
        )

    def hold(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin("hold", queue=queue, ids=ids, filter=filter, dry_run=dry_run)

    def unhold(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin("unhold", queue=queue, ids=ids, filter=filter, dry_run=dry_run)

    def fail(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        error: str = "failed by an operator",
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin(
            "fail", queue=queue, ids=ids, filter=filter, error=error, reason=reason, dry_run=dry_run
        )

    def drain(self, queue: str, *, limit: int = 10_000) -> list[MessageInfo]:
        return self._admin("drain", queue=queue, limit=limit)

    def prune(
        self,
        queue: str,
        *,
        older_than: Duration = "0s",
        which: Literal["all", "done", "dead"] = "all",
        dry_run: bool = False,
    ) -> OperatorResult:
        return self._admin("prune", queue=queue, older_than=older_than, which=which, dry_run=dry_run)

    def release_stream(self, queue: str, stream: str) -> bool:
        return self._admin("release_stream", queue=queue, stream=stream)

    # Dead letters

    def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[str] | None = None,
        filter: DeadFilter | None = None,
        count: int | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        clear_progress: bool = False,
    ) -> RedriveResult:
        return self._admin(
            "redrive",
            queue=queue,
            ids=ids,
            filter=filter,
            count=count,
            dry_run=dry_run,
            rate=rate,
            clear_progress=clear_progress,
        )

    def intents(self) -> list[Intent]:
        return self._admin("intents")

    def cancel_intent(self, intent_id: int) -> bool:
        return self._admin("cancel_intent", intent_id=intent_id)

    # Looking

    def find(self, message_id: str, queue: str | None = None) -> MessageInfo:
        return self._admin("find", message_id=message_id, queue=queue)

    def twin(self, queue: str, dedup_key: str) -> str | None:
        return self._admin("twin", queue=queue, dedup_key=dedup_key)

    def peek(
        self,
        queue: str,
        *,
        limit: int = 10,
        where: str = "ready",
        key: str | None = None,
        after: str | None = None,
    ) -> list[MessageInfo]:
        return self._admin("peek", queue=queue, limit=limit, where=where, key=key, after=after)

    def browse(
        self,
        queue: str,
        *,
        view: Literal["messages", "dead"] = "messages",
        low: str = "",
        high: str = "",
        limit: int = 1000,
        after: str = "",
    ) -> list[MessageInfo]:
        return self._admin("browse", queue=queue, view=view, low=low, high=high, limit=limit, after=after)

    def browse_splits(
        self, queue: str, view: Literal["messages", "dead"] = "messages", n: int = 1
    ) -> list[tuple[str, str]]:
        return self._admin("browse_splits", queue=queue, view=view, n=n)

    def browse_batches(
        self, queue: str, *, view: str = "messages", low: str = "", high: str = "", payloads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """All pages of `browse` as record batches with every column of `wire.schemas.BROWSED`, defaults
        filled in.
        """
        self._core.check()
        return browse_batches(self._core, BrowseCall(queue, view, low, high, payloads=payloads))

    def failure_metrics(self, queue: str, *, streams: int = 100) -> FailureMetrics:
        return self._admin("failure_metrics", queue=queue, streams=streams)

    def explain(self, message_id: str, queue: str | None = None) -> Explanation:
        return self._admin("explain", message_id=message_id, queue=queue)

    def explain_queue(self, name: str) -> Explanation:
        return self._admin("explain_queue", name=name)

    # The server, and this client

    def checkpoint(self, path: str | Path) -> None:
        """A path on the server's machine."""
        self._admin("checkpoint", path=path)

    def close(self, *, goodbye: bool = False) -> None:
        """What loops have fetched ahead goes back; `goodbye` also releases everything else that `consumer`
        holds.

        Waits at most a few seconds for a server that does not answer. Closing twice is fine.
        """
        self._core.close(before=self._say_goodbye if goodbye else None)
        self._requests.heartbeat.close()

    def _say_goodbye(self) -> None:
        self.goodbye(self.consumer)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _admin(self, verb: str, /, **arguments: object) -> Any:
        self._core.check()
        batch = pa.RecordBatch.from_arrays(
            [pa.array([verb]), pa.array([encode_arguments(arguments)], pa.binary())], schema=ADMIN_CALL
        )
        repeatable = ADMIN[verb].repeatable or arguments.get("dry_run") is True
        _, body = self._core.ask("admin", b"", batch, name=verb, repeat="freely" if repeatable else "never")
        return decode_result(verb, body.column(0)[0].as_py()) if body is not None else None


def _check_consumer(consumer: object) -> str:
    if not isinstance(consumer, str) or not 0 < len(consumer.encode()) <= MAX_CONSUMER_BYTES:
        raise InvalidRequest("consumer", f"text of 1 to {MAX_CONSUMER_BYTES} bytes", consumer)
    return consumer
