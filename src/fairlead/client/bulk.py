"""Bulk verbs of the blocking client: staging, reading numbered claims, record batches. They use Arrow Flight,
with pyarrow, at the address from the server's greeting. No other verb uses Flight.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.client.identity import Identity
from fairlead.client.options import Options
from fairlead.client.traces import Traces
from fairlead.errors import InvalidRequest
from fairlead.model.addresses import is_loopback_host, join_address, split_address
from fairlead.model.durations import Duration
from fairlead.model.staging import Dead, StageResult
from fairlead.request import Request
from fairlead.surface import ConsumersGroup, Doer, StagingGroup
from fairlead.verbs.consumers import ConsumersRead, ConsumersRecord
from fairlead.verbs.staging import StagingStage

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.client.connections import BlockingConnections
    from fairlead.client.flight.bulk import Bulk

#: Requests with pages or columns of messages. `consumers.record` resembles a settle and is sent as one.
BULK: tuple[type[Request[Any]], ...] = (ConsumersRead, StagingStage)

_ANY_HOST = ("0.0.0.0", "::")


class FlightSide:
    """The Flight part of a client. The first bulk verb connects it."""

    def __init__(
        self, options: Options, identity: Identity, connections: BlockingConnections, traces: Traces
    ) -> None:
        self._options = options
        self._identity = identity
        self._connections = connections
        self._traces = traces
        self._lock = threading.Lock()
        self._bulk: Bulk | None = None

    def do(self, request: Request[Any]) -> Any:
        return self.bulk(request.verb_name).do(request)

    def bulk(self, verb: str) -> Bulk:
        """The bulk client. Raises `InvalidRequest` if the server has no Flight address or this program no
        pyarrow. Does not wait.
        """
        with self._lock:
            if self._bulk is None:
                told = self._connections.flight_address
                self._bulk = make_bulk(verb, told, self._options, self._identity, self._traces)
            return self._bulk

    def close(self) -> None:
        with self._lock:
            if self._bulk is not None:
                self._bulk.close()


def make_bulk(verb: str, told: str, options: Options, identity: Identity, traces: Traces) -> Bulk:
    """A bulk client for the address that was passed to `connect`, else for the address from the server's
    greeting.
    """
    if not (options.flight or told):
        raise InvalidRequest(
            "verb", f"a server that has an address for Arrow Flight, which {verb} needs", "none"
        )
    if find_spec("pyarrow") is None:
        found = "none; install it with: pip install 'fairlead[bulk]'"
        raise InvalidRequest("verb", f"pyarrow, which {verb} needs for Arrow Flight", found)
    from fairlead.client.flight.bulk import open_bulk

    host, tls = identity.endpoint.host, identity.tls
    if tls is not None and tls.server_name is None:
        # All doors have one certificate, and it need not include the name that the server uses for its Flight
        # address.
        tls = replace(tls, server_name=host)
    address = options.flight or _reachable(told, host)
    return open_bulk(msgspec.structs.replace(options, address=address), tls, identity.api_key, traces)


def _reachable(told: str, host: str) -> str:
    """The address that this client can reach. A server that listens on all addresses, or behind a port
    forward, does not know under which name clients reach it.
    """
    own, port = split_address(told)
    if own in _ANY_HOST:
        return join_address(host or "127.0.0.1", port)
    return join_address(host, port) if host and is_loopback_host(own) else told


class BulkConsumers(ConsumersGroup):
    """`client.consumers` with record batches, over Arrow Flight."""

    def __init__(self, doer: Doer, flight: FlightSide) -> None:
        super().__init__(doer)
        self._flight = flight

    def read_batches(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        payloads: bool = True,
        unsettled: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """The deliveries of a slice as record batches of at most 10,000 rows or about 2 MiB, with every
        column of `wire.schemas.DELIVERIES`.

        Defaults are filled in. Headers, stream, seq, carry, failures, dead_since and source are null in rows
        that have none, and all payloads are null with `payloads=False`.
        """
        request = ConsumersRead(name, queue, generation, number, slice, slices, unsettled)
        return self._flight.bulk(request.verb_name).read_batches(request, payloads=payloads)

    def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """`record` with columns of `wire.schemas.SETTLEMENTS`; unneeded columns may be left out."""
        request = ConsumersRecord(name, queue, generation, number, (), part)
        self._flight.bulk(request.verb_name).record_batch(request, batch)


class BulkStaging(StagingGroup):
    """`client.staging` with record batches, over Arrow Flight."""

    def __init__(self, doer: Doer, flight: FlightSide) -> None:
        super().__init__(doer)
        self._flight = flight

    def stage_batch(
        self,
        token: str,
        chunk: str,
        queue: str,
        batch: pa.RecordBatch,
        *,
        ttl: Duration = "1d",
        skip_invalid: bool = False,
        dead: Dead | Sequence[Dead] | None = None,
    ) -> StageResult:
        """`stage` with columns of `wire.schemas.MESSAGES`: `payload`, and any of the others."""
        request = StagingStage(token, chunk, queue, (), ttl, skip_invalid, dead)
        return self._flight.bulk(request.verb_name).stage_batch(request, batch)
