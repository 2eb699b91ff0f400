"""The limits of a server, as the tables of docs/reference/limits.md: what may be too much, what is said then,
where it is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from docs.settings import written
from fairlead.config.load import SETTINGS
from fairlead.server.limits import FIELDS, Limit


class Row(NamedTuple):
    """`bound` is the path of a setting, or what the bound is; `doors` are those it holds at, `answer` what is
    said.
    """

    what: str
    bound: str
    doors: str
    answer: str


ROWS = {
    Limit.CALLS: Row(
        "calls at work at a time, claims that wait not counted",
        "limits.max_calls",
        "Redis, Flight, gRPC",
        "`Overloaded`",
    ),
    Limit.INFLIGHT_BYTES: Row(
        "what their requests hold in memory; one passes alone",
        "limits.max_inflight_bytes",
        "Redis, Flight, gRPC",
        "`Overloaded`",
    ),
    Limit.UNREAD_BYTES: Row(
        "answers of many parts (`read`, `browse`), and at the door that speaks Redis any, that clients have not read",
        "limits.max_inflight_bytes",
        "Redis, Flight",
        "`Overloaded`",
    ),
    Limit.CHANNELS: Row(
        "open channels, counted from their first header", "limits.max_channels", "Flight", "`Overloaded`"
    ),
    Limit.CHANNELS_PER_CONNECTION: Row(
        "of one connection", "limits.max_channels_per_connection", "Flight", "`Overloaded`"
    ),
    Limit.STREAMS: Row("open consume streams", "limits.max_streams", "gRPC", "`Overloaded`"),
    Limit.STREAMS_PER_CONNECTION: Row(
        "of one connection", "limits.max_streams_per_connection", "gRPC", "`Overloaded`"
    ),
    Limit.CONNECTIONS: Row(
        "connections of one door, and a quarter of the files it may open",
        "limits.max_connections",
        "Redis, Flight, gRPC",
        "closed",
    ),
    Limit.CONNECTIONS_PER_ADDRESS: Row(
        "of one address", "limits.max_connections_per_address", "Redis, Flight, gRPC", "closed"
    ),
    Limit.GREETING: Row(
        "time to open a first channel, or to say a whole command (gRPC: to finish the greeting, by gRPC itself and not counted)",
        "limits.greeting_ms",
        "Redis, Flight, gRPC",
        "closed",
    ),
    Limit.IDLE: Row("silence of a connection", "limits.idle_ms", "Redis, Flight, gRPC", "closed"),
    Limit.ARRIVING_BYTES: Row(
        "requests that have come in part, and what pyarrow still holds of the last request of each channel",
        "limits.max_arriving_bytes",
        "Redis, Flight",
        "closed",
    ),
    Limit.ARROW_BYTES: Row(
        "memory of Arrow, for building answers", "limits.max_arrow_bytes", "Flight", "`Overloaded`"
    ),
    Limit.REQUEST_BYTES: Row(
        "one request, unpacked", "`MAX_REQUEST_BYTES`", "Redis, Flight", "`LimitReached`"
    ),
    Limit.HTTP_CONNECTIONS: Row(
        "connections; the one that has kept us waiting longest makes room", "64", "HTTP", "closed"
    ),
    Limit.HTTP_REQUEST: Row("the line of a request with its headers", "48 to 64 KiB", "HTTP", "414, 431"),
    Limit.AUTHENTICATION: Row(
        "calls without a valid key, where keys are asked for", "none", "all", "`Unauthenticated`"
    ),
    Limit.QUEUES: Row("queues", "store.max_queues", "all", "`LimitReached`"),
    Limit.CONFIG: Row(
        "configuration keys, and characters of their values",
        "`MAX_CONFIG_KEYS`, `MAX_CONFIG_CHARACTERS`",
        "all",
        "`LimitReached`",
    ),
    Limit.STAGED: Row(
        "what staged writes take on disk; also their chunks, `MAX_STAGED_CHUNKS` in all and `MAX_WRITE_CHUNKS` of one write",
        "store.max_staged_bytes",
        "all",
        "`LimitReached`",
    ),
    Limit.DURABLE_CONSUMERS: Row(
        "durable consumers of all queues together", "`MAX_CONSUMERS`", "all", "`LimitReached`"
    ),
    Limit.LANES: Row(
        "(fairness key, throttle keys) pairs with ready messages, of all queues; of one: `store.lanes_per_queue`",
        "store.active_lanes",
        "all",
        "`TooManyLanes`",
    ),
    Limit.QUEUE_FULL: Row(
        "messages or bytes of a queue", "its `max_messages`, `max_bytes`", "all", "`QueueFull`"
    ),
    Limit.STORE_FULL: Row("room on the disk", "store.disk_reserve_bytes", "all", "`StoreFull`"),
    Limit.OTHER: Row("anything else there are too many of", "", "all", "`LimitReached`"),
}


def refusals_table() -> Iterator[str]:
    yield "| `limit` | of | bound | doors | beyond it |"
    yield "|---|---|---|---|---|"
    for limit in Limit:
        row = ROWS[limit]
        bound = f"`{row.bound}` = {written(SETTINGS[row.bound])}" if row.bound in SETTINGS else row.bound
        yield f"| `{limit}` | {row.what} | {bound} | {row.doors} | {row.answer} |"


def fields_line() -> Iterator[str]:
    yield ", ".join(f"`{field}`" for field in sorted(FIELDS)) + ", and `other`."
