"""The blocking client of the Redis protocol: the verbs of `Surface`, sent to a server. Thread-safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from fairlead.client.addresses import read_endpoint
from fairlead.client.bulk import BulkConsumers, BulkStaging
from fairlead.client.consume import Consumption
from fairlead.client.core import Core
from fairlead.client.identity import Identity
from fairlead.client.options import read_options
from fairlead.client.session import place_of
from fairlead.client.tls import TlsChoice
from fairlead.client.traces import make_traces
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.handles import read_handle
from fairlead.model.settle import Handle
from fairlead.request import Answer, Request
from fairlead.surface import Surface
from fairlead.verbs.browse import Browse

if TYPE_CHECKING:
    import pyarrow as pa


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
    flight: str | None = None,
) -> Client:
    """See `fairlead.connect`."""
    options = read_options(
        address,
        consumer=consumer,
        retry_for=retry_for,
        timeout=timeout,
        heartbeat_cap=heartbeat_cap,
        flight=flight,
    )
    identity = Identity(read_endpoint(address), tls, api_key)
    core = Core(options, identity, make_traces(tracing))
    try:
        core.greet()
    except BaseException:
        core.close()
        raise
    return Client(core)


class Client(Surface):
    """The client that `connect` returns. `close` ends calls under way; leases remain, and are no longer
    extended.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    @cached_property
    def consumers(self) -> BulkConsumers:
        return BulkConsumers(self, self._core.flight)

    @cached_property
    def staging(self) -> BulkStaging:
        return BulkStaging(self, self._core.flight)

    @property
    def consumer(self) -> str:
        """The default consumer name of its claims."""
        return self._core.options.consumer

    def do(self, request: Request[Answer]) -> Answer:
        """Send the request. Threads that call at the same time share a connection, and their requests travel
        together.

        After a lost answer, a request that is safe to repeat is repeated. Enqueues, settles and exchanges are
        repeated in a session, claims under a token, and take effect once. Every other request raises
        `AnswerLost`.
        """
        return self._core.do(request)

    def once(self, request: Request[Answer], *, session: str, number: int, arrived: int = 0) -> Answer:
        return self._core.do(request, place_of(session, number, arrived))

    def consume(
        self,
        queue: str | Sequence[str],
        *,
        prefetch: int = 100,
        max_per_stream: int = 1,
        consumer: str = "",
    ) -> Consumption:
        """An endless loop of deliveries, with up to `prefetch` of them fetched ahead. The caller settles each
        delivery.
        """
        self._core.check()
        return Consumption(
            self._core,
            queue,
            prefetch=prefetch,
            max_per_stream=max_per_stream,
            consumer=consumer or self.consumer,
        )

    def is_lost(self, delivery: Handle) -> bool:
        """Whether a heartbeat or a settle found that the lease has ended. Then another consumer may be
        processing the message.
        """
        return self._core.heartbeat.is_lost(*read_handle(delivery))

    def process_span(self, delivery: Delivery) -> AbstractContextManager[None]:
        """A span in the producer's trace, for `with client.process_span(delivery):` around the work. Does
        nothing without tracing.
        """
        return self._core.traces.processing(delivery)

    def browse_batches(
        self, queue: str, *, view: str = "messages", low: str = "", high: str = "", payloads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """All pages of `browse` as record batches with every column of `wire.schemas.BROWSED`, with defaults
        filled in, over Arrow Flight.
        """
        request = Browse(queue, view, low, high)  # type: ignore[arg-type]  # the engine says which views there are
        return self._core.flight.bulk(request.verb_name).browse_batches(request, payloads=payloads)

    def close(self, *, goodbye: bool = False) -> None:
        """Return the deliveries that loops have fetched ahead. `goodbye` also releases everything else that
        `consumer` holds.

        Waits at most a few seconds for a server that does not answer. A second close has no effect.
        """
        self._core.close(goodbye=goodbye)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
