"""The limits of all doors together: refuses requests beyond them, counts refusals, and tells when nothing is
in flight.

One `Limits` for a server. The layer `middleware.limits` wraps every request in `call(size)` or
`waiting_call()`; a door wraps what a client keeps open in `channel()` (Flight) or `stream()` (gRPC). All of
these raise before anything is carried out. A door reports errors that it answers with to `count_error`, and
other refusals to `refused`, so that every limit shows in the metrics.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple, NoReturn

from fairlead.config import LimitSettings
from fairlead.errors import (
    FairleadError,
    InvalidRequest,
    LimitReached,
    Overloaded,
    QueueFull,
    ServerStopping,
    StoreFull,
    TooManyLanes,
)

#: Parts of an answer in memory: the one that is being written, and those that gRPC still holds; measured.
_PARTS_HELD = 3
#: Long enough for a few calls to finish, short enough to be no outage.
RETRY_AFTER_MS = 50


class Limit(StrEnum):
    """Every limit that a request may exceed: the values of the label `limit` of `fairlead_refused_total`."""

    CALLS = "calls"
    INFLIGHT_BYTES = "inflight_bytes"
    UNREAD_BYTES = "unread_bytes"
    CHANNELS = "channels"
    CHANNELS_PER_CONNECTION = "channels_per_connection"
    STREAMS = "streams"
    STREAMS_PER_CONNECTION = "streams_per_connection"
    CONNECTIONS = "connections"
    CONNECTIONS_PER_ADDRESS = "connections_per_address"
    ARRIVING_BYTES = "arriving_bytes"
    ARROW_BYTES = "arrow_bytes"
    GREETING = "greeting"
    IDLE = "idle"
    HTTP_CONNECTIONS = "http_connections"
    HTTP_REQUEST = "http_request"
    AUTHENTICATION = "authentication"
    #: `LimitReached`, by what there are too many of.
    QUEUES = "queues"
    CONFIG = "config"
    REQUEST_BYTES = "request_bytes"
    STAGED = "staged"
    DURABLE_CONSUMERS = "durable_consumers"
    OTHER = "other"
    #: Refusals of the engine for lack of room.
    LANES = "lanes"
    QUEUE_FULL = "queue_full"
    STORE_FULL = "store_full"


_BY_ERROR: dict[type[FairleadError], Limit] = {
    TooManyLanes: Limit.LANES,
    QueueFull: Limit.QUEUE_FULL,
    StoreFull: Limit.STORE_FULL,
}
_BY_WHAT = {
    "queues": Limit.QUEUES,
    "configuration keys": Limit.CONFIG,
    "characters of configuration values": Limit.CONFIG,
    "bytes in one request": Limit.REQUEST_BYTES,
    "staged bytes": Limit.STAGED,
    "staged chunks": Limit.STAGED,
    "chunks in one staged write": Limit.STAGED,
    "durable consumers": Limit.DURABLE_CONSUMERS,
}
#: Fields of `InvalidRequest` with a label of their own; the part before the last dot names the row of a
#: batch.
FIELDS = frozenset(
    {
        "payload",
        "headers",
        "queue",
        "fairness_key",
        "throttle_keys",
        "stream",
        "dedup_key",
        "weight",
        "delay",
        "ttl",
        "messages",
        "items",
        "batch",
        "columns",
        "app_metadata",
        "arguments",
        "consumer",
        "token",
        "limit",
        "ids",
        "filter",
        "key",
        "value",
        "error",
        "carry",
        "session",
        "number",
        "arrived",
        "path",
        "name",
        "chunk",
        "view",
    }
)
OTHER_FIELD = "other"


class OpenChannel:
    """Bytes read on a channel so far; its own thread counts, and others read.

    pyarrow keeps the memory of a request until the next one has arrived, however long that takes: `held` is
    its size.
    """

    __slots__ = ("connection", "held", "read_bytes", "requests")

    def __init__(self, connection: str) -> None:
        self.connection = connection
        self.held = 0
        self.read_bytes = 0
        self.requests = 0

    def note(self, size: int) -> None:
        self.held = size
        self.read_bytes += size
        self.requests += 1


class Read(NamedTuple):
    """`size` is the memory that requests took, which is about their size on the wire; `held` of it is still
    in use.
    """

    size: int
    requests: int
    held: int = 0


_NOTHING = Read(0, 0)


def _sum(read: Read, channel: OpenChannel) -> Read:
    return Read(read.size + channel.read_bytes, read.requests + channel.requests, read.held + channel.held)


class Limits:
    def __init__(self, settings: LimitSettings | None = None) -> None:
        self.settings = settings or LimitSettings()
        # The lock's own slots save a Python call.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._calls = 0
        self._waiting = 0
        self._waits_elsewhere: list[Callable[[], int]] = []
        self._of_thread = threading.local()
        self._bytes = 0
        self._unread = 0
        self._opened = 0
        self._channels: set[OpenChannel] = set()
        self._streams: Counter[str] = Counter()
        self._closed = False
        self._counting = threading.Lock()
        #: How often each limit was exceeded, and how often each field of a request was wrong.
        self.refusals: Counter[Limit] = Counter()
        self.invalid: Counter[str] = Counter()
        #: The part of `refusals` for calls, channels and streams that got `Overloaded`.
        self.overloaded = 0
        #: By door, as far as they are counted.
        self.connections: dict[str, int] = {}
        #: Whether reads are tracked by connection, and closed ones reported.
        self.watched = False
        self._was_read: dict[str, Read] = {}

    def begin_call(self, size: int = 0) -> None:
        """A call runs until `end_call`; `size` is the memory of its request."""
        with self._lock:
            if self._closed:
                raise ServerStopping
            if self._calls >= self.settings.max_calls:
                self._refuse(Limit.CALLS, "calls at a time", self.settings.max_calls)
            # A request larger than the limit must pass when it is alone, or it never would.
            if self._bytes and self._bytes + size > self.settings.max_inflight_bytes:
                self._refuse(Limit.INFLIGHT_BYTES, "bytes in flight", self.settings.max_inflight_bytes)
            self._calls += 1
            self._bytes += size

    def end_call(self, size: int = 0) -> None:
        with self._lock:
            self._calls -= 1
            self._bytes -= size
            if self._closed:
                self._changed.notify_all()

    @contextmanager
    def call(self, size: int = 0) -> Iterator[None]:
        """`begin_call` and `end_call`."""
        self.begin_call(size)
        try:
            yield
        finally:
            self.end_call(size)

    def begin_waiting(self) -> bool:
        """A claim that may wait begins; False: this thread has called it already. It is in flight like any
        other, but takes no place of `max_calls`, because it costs only its thread.
        """
        with self._lock:
            if self._closed:
                raise ServerStopping
            if getattr(self._of_thread, "hands_out", False):
                return False
            self._waiting += 1
            return True

    def end_waiting(self) -> None:
        with self._lock:
            self._waiting -= 1
            if self._closed:
                self._changed.notify_all()

    @contextmanager
    def waiting_call(self) -> Iterator[None]:
        """`begin_waiting` and `end_waiting`."""
        is_counted = self.begin_waiting()
        try:
            yield
        finally:
            if is_counted:
                self.end_waiting()

    def count_waits(self, count: Callable[[], int]) -> None:
        """Waiting claims of a door without threads are in flight too. A stop does not wait for them here:
        their door ends them.
        """
        self._waits_elsewhere.append(count)

    @contextmanager
    def handing_out(self) -> Iterator[None]:
        """For a claim until its answer is written. The layers are finished before that, but a stop must not
        cut it off. The `waiting_call` of this thread inside it is the same call.
        """
        self._of_thread.hands_out = True
        try:
            with self._waits():
                yield
        finally:
            self._of_thread.hands_out = False

    @contextmanager
    def _waits(self) -> Iterator[None]:
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            self.end_waiting()

    @contextmanager
    def unread(self) -> Iterator[Callable[[int], None]]:
        """While an answer of many parts is written. The returned function gets the size of each part, first
        expected and then real.

        A client that does not read keeps one part in our memory, and others on their way: the sum over all
        clients has a bound.
        """
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            more = _PARTS_HELD * size - held
            with self._changed:
                if (
                    more > 0
                    and self._unread > held
                    and self._unread + more > self.settings.max_inflight_bytes
                ):
                    self._refuse(
                        Limit.UNREAD_BYTES,
                        "bytes of answers that nobody has read",
                        self.settings.max_inflight_bytes,
                    )
                self._unread += more
            held += more

        try:
            yield hold
        finally:
            with self._changed:
                self._unread -= held

    def open_channel(self) -> None:
        """For a client that opens a channel and has sent nothing on it yet: this alone occupies a thread.
        `close_channel` ends it.
        """
        with self._changed:
            self._check_open()
            if self._opened >= self.settings.max_channels:
                self._refuse(Limit.CHANNELS, "open channels", self.settings.max_channels)
            self._opened += 1

    def close_channel(self) -> None:
        with self._changed:
            self._opened -= 1

    @contextmanager
    def channel(self, connection: str = "") -> Iterator[OpenChannel]:
        """While a client keeps a channel open. An open channel without a call is not in flight."""
        channel = OpenChannel(connection)
        most = self.settings.max_channels_per_connection
        with self._changed:
            self._check_open()
            if len(self._channels) >= self.settings.max_channels:
                self._refuse(Limit.CHANNELS, "open channels", self.settings.max_channels)
            if (
                len(self._channels) >= most
                and sum(one.connection == connection for one in self._channels) >= most
            ):
                self._refuse(Limit.CHANNELS_PER_CONNECTION, "open channels of one connection", most)
            self._channels.add(channel)
        try:
            yield channel
        finally:
            with self._changed:
                self._channels.discard(channel)
                if self.watched:
                    channel.held = 0
                    self._was_read[connection] = _sum(self._was_read.get(connection, _NOTHING), channel)

    @contextmanager
    def stream(self, connection: str = "") -> Iterator[None]:
        """While a client keeps a stream open. It ends by itself once the waits of the broker end, so it is
        not in flight.
        """
        with self._changed:
            self._check_open()
            if self._streams.total() >= self.settings.max_streams:
                self._refuse(Limit.STREAMS, "open streams", self.settings.max_streams)
            if self._streams[connection] >= self.settings.max_streams_per_connection:
                self._refuse(
                    Limit.STREAMS_PER_CONNECTION,
                    "open streams of one connection",
                    self.settings.max_streams_per_connection,
                )
            self._streams[connection] += 1
        try:
            yield
        finally:
            with self._changed:
                self._streams[connection] -= 1
                if not self._streams[connection]:
                    del self._streams[connection]
                self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise ServerStopping()

    def _refuse(self, limit: Limit, what: str, most: int) -> NoReturn:
        self.refused(limit)
        self.overloaded += 1
        raise Overloaded(what, most, RETRY_AFTER_MS)

    def refused(self, limit: Limit) -> None:
        """Count a refusal or a closed connection from elsewhere."""
        with self._counting:
            self.refusals[limit] += 1

    def count_error(self, error: Exception) -> None:
        """Count an error that a door answers with, if it concerns a limit or an invalid request."""
        if isinstance(error, InvalidRequest):
            field = error.field.rpartition(".")[2]
            with self._counting:
                self.invalid[field if field in FIELDS else OTHER_FIELD] += 1
        elif isinstance(error, LimitReached):
            self.refused(_BY_WHAT.get(error.what, Limit.OTHER))
        elif isinstance(error, (TooManyLanes, QueueFull, StoreFull)):
            self.refused(_BY_ERROR[type(error)])

    @property
    def in_flight(self) -> int:
        """Running calls, including waiting ones."""
        return self._calls + self._waiting + sum([count() for count in self._waits_elsewhere])

    @property
    def channels(self) -> int:
        """Channels and streams that clients keep open."""
        return len(self._channels) + self._streams.total()

    def read_by_connection(self) -> dict[str, Read]:
        """The bytes read from each connection that has, or once had, a channel."""
        with self._changed:
            found = dict(self._was_read)
            for channel in self._channels:
                found[channel.connection] = _sum(found.get(channel.connection, _NOTHING), channel)
        return found

    def forget(self, connections: Iterable[str]) -> None:
        with self._changed:
            for connection in connections:
                self._was_read.pop(connection, None)

    @property
    def max_streams(self) -> int:
        return self.settings.max_streams

    @property
    def bytes_in_flight(self) -> int:
        return self._bytes

    def close(self) -> None:
        """From now on every new call and channel gets `ServerStopping`."""
        with self._changed:
            self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def wait_until_idle(self, grace_ms: int, hurry: Callable[[], bool] = lambda: False) -> bool:
        """After `close`: True once the last call in flight has ended, False if the grace period passed or
        `hurry()` returned True.
        """
        deadline = time.monotonic() + grace_ms / 1000
        with self._changed:
            while self._calls or self._waiting:
                left = deadline - time.monotonic()
                if left <= 0 or hurry():
                    return False
                # In slices: a second signal only sets a flag, because a handler that took this lock could
                # wait for itself.
                self._changed.wait(min(left, 0.1))
            return True

    def wait_until_no_stream(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._streams.total(), timeout_s)
