"""The blocking client: the verbs of `Surface`, sent to a server. Thread-safe.

Compared with the broker in process: `consumer` is the client's own name unless given, held leases are kept
alive, and a call that meets trouble on the way is tried again for as long as `retry_for` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType

import pyarrow as pa

from fairlead.client.bulk import ClientConsumers, ClientStaging, browse_batches
from fairlead.client.consume import Consumption, Puller
from fairlead.client.core import Core
from fairlead.client.options import Options, read_options
from fairlead.client.requests import Requests
from fairlead.client.tls import Tls, TlsChoice, chosen_tls
from fairlead.client.traces import Traces
from fairlead.client.transport import FlightTransport
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.handles import read_handle
from fairlead.model.settle import Handle
from fairlead.request import Answer, Request
from fairlead.surface import Surface
from fairlead.verbs.browse import Browse
from fairlead.wire.numbered import Numbered
from fairlead.wire.tracing import ambient


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
) -> BulkClient:
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
    options = read_options(
        address, consumer=consumer, retry_for=retry_for, timeout=timeout, heartbeat_cap=heartbeat_cap
    )
    traces = Traces(ambient() if tracing else None)
    client = open_bulk(options, chosen_tls(tls), api_key, traces)
    try:
        client.intents()
    except BaseException:
        client.close()
        raise
    return client


def open_bulk(options: Options, tls: Tls | None, api_key: str | None, traces: Traces) -> BulkClient:
    """Connects with its first call, not before."""
    transport = FlightTransport(options.address, tls=tls, api_key=api_key, timeout_ms=options.timeout_ms)
    return BulkClient(Core(options, transport=transport), traces)


class BulkClient(Surface):
    """Made by `connect`. `close` ends calls under way; leases stay, and are no longer kept alive."""

    def __init__(self, core: Core, traces: Traces | None = None) -> None:
        self._core = core
        self._requests = Requests(core, traces or Traces())
        self._traces = self._requests.traces

    @cached_property
    def consumers(self) -> ClientConsumers:
        return ClientConsumers(self)

    @cached_property
    def staging(self) -> ClientStaging:
        return ClientStaging(self)

    @property
    def consumer(self) -> str:
        """The name under which it claims unless a call says otherwise."""
        return self._core.options.consumer

    def do(self, request: Request[Answer]) -> Answer:
        """Enqueues and settles of several threads travel together.

        After a lost answer, a request that is safe to repeat is repeated. Enqueues, settles and
        exchanges are repeated in a session, claims under a token, and take effect once. Every other one raises `AnswerLost`.
        """
        self._core.check()
        return self._requests.do(request)

    def once(self, request: Request[Answer], *, session: str, number: int, arrived: int = 0) -> Answer:
        self._core.check()
        return self._requests.once(request, Numbered(session=session, number=number, arrived=arrived))

    def consume(
        self,
        queue: str | Sequence[str],
        *,
        prefetch: int = 100,
        max_per_stream: int = 1,
        consumer: str = "",
    ) -> Consumption:
        """An endless loop of deliveries, up to `prefetch` of them fetched ahead; settle each yourself."""
        puller = Puller(
            self._requests, queue, prefetch=prefetch, max_per_stream=max_per_stream, consumer=consumer
        )
        puller.start()
        return Consumption(puller)

    def is_lost(self, delivery: Handle) -> bool:
        """Whether a heartbeat or a settle has found the lease over. Then the work may be under way elsewhere."""
        return self._requests.heartbeat.is_lost(*read_handle(delivery))

    def process_span(self, delivery: Delivery) -> AbstractContextManager[None]:
        """`with client.process_span(delivery):` around the work: a span in the producer's trace. Without
        tracing, nothing.
        """
        return self._traces.processing(delivery)

    def browse_batches(
        self, queue: str, *, view: str = "messages", low: str = "", high: str = "", payloads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """All pages of `browse` as record batches with every column of `wire.schemas.BROWSED`, defaults
        filled in.
        """
        self._core.check()
        return browse_batches(self._core, Browse(queue, view, low, high), payloads)  # type: ignore[arg-type]

    def close(self, *, goodbye: bool = False) -> None:
        """What loops have fetched ahead goes back; `goodbye` also releases everything else that `consumer`
        holds.

        Waits at most a few seconds for a server that does not answer. Closing twice is fine.
        """
        self._core.close(before=self._say_goodbye if goodbye else None)
        self._requests.heartbeat.close()

    def _say_goodbye(self) -> None:
        self.goodbye(self.consumer)

    def __enter__(self) -> BulkClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
