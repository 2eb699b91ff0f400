"""Bulk verbs of this client: staging, reading numbered claims, record batches. They travel by Arrow Flight, at the address
that the server told, with pyarrow; every other verb never does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fairlead.client.options import Options
from fairlead.client.resp.identity import Identity
from fairlead.errors import InvalidRequest
from fairlead.model.addresses import join_address, split_address
from fairlead.model.durations import Duration
from fairlead.model.staging import Dead, StageResult
from fairlead.request import Request
from fairlead.surface import ConsumersGroup, Doer, StagingGroup
from fairlead.verbs.consumers import ConsumersRead
from fairlead.verbs.staging import StagingStage

if TYPE_CHECKING:
    import pyarrow as pa

    from fairlead.client.client import Client
    from fairlead.client.resp.connections import BlockingConnections

#: Requests with pages or columns of messages. `consumers.record` is like a settle, and travels as one.
BULK: tuple[type[Request[Any]], ...] = (ConsumersRead, StagingStage)

_ANY_HOST = ("0.0.0.0", "::")


class FlightSide:
    """The Flight client that bulk verbs use, made with the first of them."""

    def __init__(self, options: Options, identity: Identity, connections: BlockingConnections) -> None:
        self._options = options
        self._identity = identity
        self._connections = connections
        self._lock = threading.Lock()
        self._client: Client | None = None

    def do(self, request: Request[Any]) -> Any:
        return self.client(request.verb_name).do(request)

    def client(self, verb: str) -> Client:
        """Raises `InvalidRequest` when the server has no Flight address or this program no pyarrow."""
        with self._lock:
            if self._client is None:
                self._client = self._connect(verb)
            return self._client

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _connect(self, verb: str) -> Client:
        address = flight_address(verb, self._connections.flight_address, self._identity)
        from fairlead.client.client import connect

        return connect(address, **flight_options(self._options, self._identity))


def flight_address(verb: str, told: str, identity: Identity) -> str:
    """Raises `InvalidRequest` when the server has none or this program has no pyarrow."""
    if not told:
        raise InvalidRequest(
            "verb", f"a server that has an address for Arrow Flight, which {verb} needs", "none"
        )
    if find_spec("pyarrow") is None:
        found = f"none; install it with: pip install 'fairlead[bulk]' (the server has Flight at {told})"
        raise InvalidRequest("verb", f"pyarrow, which {verb} needs for Arrow Flight", found)
    return _reachable(told, identity.endpoint.host)


def flight_options(options: Options, identity: Identity) -> dict[str, Any]:
    cap_ms = options.heartbeat_cap_ms
    return {
        "consumer": options.consumer,
        "retry_for": f"{options.retry_for_ms}ms",
        "timeout": f"{options.timeout_ms}ms",
        "heartbeat_cap": None if cap_ms is None else f"{cap_ms}ms",
        "api_key": identity.api_key,
        "tls": identity.tls,
    }


def _reachable(told: str, host: str) -> str:
    """A server that listens everywhere does not know by which name it is reached."""
    own, port = split_address(told)
    return join_address(host or "127.0.0.1", port) if own in _ANY_HOST else told


class BulkConsumers(ConsumersGroup):
    """`client.consumers`: also with columns, by Arrow Flight."""

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
        """See the Flight client."""
        return self._flight.client("consumers.read").consumers.read_batches(
            name,
            queue,
            generation,
            number,
            slice=slice,
            slices=slices,
            payloads=payloads,
            unsettled=unsettled,
        )

    def record_batch(
        self, name: str, queue: str, generation: int, number: int, batch: pa.RecordBatch, *, part: str = ""
    ) -> None:
        """See the Flight client."""
        consumers = self._flight.client("consumers.record").consumers
        consumers.record_batch(name, queue, generation, number, batch, part=part)


class BulkStaging(StagingGroup):
    """`client.staging`: also with columns, by Arrow Flight."""

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
        """See the Flight client."""
        staging = self._flight.client("staging.stage").staging
        return staging.stage_batch(token, chunk, queue, batch, ttl=ttl, skip_invalid=skip_invalid, dead=dead)
