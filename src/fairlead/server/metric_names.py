"""Every metric of fairlead: name, kind, labels, meaning. The code that counts and shows metrics, and the
docs, read this table.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from fairlead.middleware.metrics import REQUEST_SECONDS as REQUEST_BOUNDS

Kind = Literal["counter", "gauge", "histogram"]

#: The label of all queues beyond the bound.
OTHER = "__other__"

LATENCY_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
WORK_SECONDS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
BATCH_SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 10_000.0)


class Definition(msgspec.Struct, frozen=True):
    """`name` is as it is exposed; a counter's name ends in `_total`."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


def _counter(name: str, labels: str, help: str) -> Definition:
    return Definition(f"fairlead_{name}_total", "counter", tuple(labels.split()), help)


def _gauge(name: str, labels: str, help: str) -> Definition:
    return Definition(f"fairlead_{name}", "gauge", tuple(labels.split()), help)


def _histogram(name: str, labels: str, buckets: tuple[float, ...], help: str) -> Definition:
    return Definition(f"fairlead_{name}", "histogram", tuple(labels.split()), help, buckets)


ENQUEUED = _counter("messages_enqueued", "queue", "Messages taken in; duplicates are not.")
DELIVERED = _counter("messages_delivered", "queue", "Messages handed out under a lease, each time one was.")
COMPLETED = _counter("messages_completed", "queue", "Messages done, by their consumer or by an operator.")
FAILED = _counter(
    "messages_failed",
    "queue reason",
    "Failed tries. A lease that ran out on a started delivery is one, with reason timeout_exceeded.",
)
RETRIED = _counter(
    "messages_retried",
    "queue when",
    "Failed tries that are to be tried again: at once, or later (after a wait).",
)
RELEASED = _counter(
    "messages_released",
    "queue cause",
    "Messages given back unworked: asked by the consumer, or lease_expiry.",
)
RETURNED = _counter(
    "messages_returned", "queue", "Messages that closed a throttle key and came back without an attempt."
)
DUE = _counter("messages_due", "queue", "Waits that ended: a delay, a retry's wait or a hold is over.")
HELD = _counter("messages_held", "queue", "Messages that an operator put on hold.")
DEAD = _counter(
    "messages_dead",
    "queue reason",
    "Messages that became dead letters of this queue, by the reason they are dead for.",
)
QUARANTINED = _counter(
    "messages_quarantined", "queue", "Messages put straight into the dead letters of this queue."
)
REDRIVEN = _counter(
    "messages_redriven", "queue", "Dead letters brought back to this queue, by a redrive or a retry."
)
DROPPED = _counter(
    "messages_dropped",
    "queue cause",
    "Thrown away: asked (drop, drain, prune), purge, delete, lease_expiry (deleted queue).",
)
EXPIRED = _counter(
    "messages_expired",
    "queue cause",
    "Messages whose time was over: ttl, retention of a dead letter, completed and kept long.",
)
STREAM_FRONTS = _counter(
    "stream_fronts",
    "queue change",
    "Messages that became the next of their stream (promoted), or had to make way (demoted).",
)
PROGRESS_SAVED = _counter(
    "messages_progress_saved", "queue", "Times a leased message's progress or carry was stored."
)
LEASES_EXTENDED = _counter("leases_extended", "queue", "Leases extended: heartbeats.")
LEASES_STARTED = _counter(
    "leases_started", "queue", "Deliveries that were handed out unstarted and then started."
)
LEASES_EXPIRED = _counter(
    "leases_expired", "queue", "Leases that ran out, of started and unstarted deliveries."
)
HOOK_CALLS = _counter(
    "hook_calls",
    "queue function outcome",
    "Calls of Lua hooks: ran, failed, or bypassed while the breaker was open.",
)
THROTTLE_HOLDS = _counter(
    "throttle_holds", "queue", "Times a lane began to wait for tokens, since the queue was last loaded."
)

DELIVERY_LATENCY = _histogram(
    "delivery_latency_seconds",
    "queue",
    LATENCY_SECONDS,
    "From enqueue to first delivery, of messages without a delay.",
)
LEASE_AGE = _histogram(
    "lease_age_seconds",
    "queue",
    LATENCY_SECONDS,
    "From claim to the end of the lease: completed, failed, released or expired; of leases granted by this process.",
)
BATCH = _histogram(
    "batch_messages", "operation", BATCH_SIZES, "Messages of one commit: enqueue, claim, settle."
)
HOOK_SECONDS = _histogram(
    "hook_seconds",
    "function",
    WORK_SECONDS,
    "Time for a batch of hook calls, the wait for its turn included.",
)
COMMIT_SECONDS = _histogram(
    "commit_seconds", "", WORK_SECONDS, "Time to write a commit to the store, under the engine lock."
)
SYNC_SECONDS = _histogram(
    "sync_seconds", "", WORK_SECONDS, "Time a call waited until its commit was synced to disk."
)
REQUEST_SECONDS = _histogram(
    "request_seconds",
    "verb",
    REQUEST_BOUNDS,
    "Time a request took in the engine, hooks, syncs and the wait of a claim included.",
)

BUILD_INFO = _gauge("build_info", "version python", "Always 1.")
BROKER_UP = _gauge("broker_up", "", "1 while the broker is open and its store works.")
MESSAGES = _gauge(
    "queue_messages",
    "queue state",
    "Messages by state: ready, waiting, leased, done (kept), and dead in the dead letters.",
)
BYTES = _gauge("queue_bytes", "queue", "Headers and payloads of the queue's messages.")
DEAD_BYTES = _gauge("queue_dead_bytes", "queue", "Headers and payloads of its dead letters.")
OLDEST_READY = _gauge(
    "queue_oldest_ready_seconds",
    "queue",
    "Since the enqueue of the oldest message that is next in its lane; 0: nothing is ready. Left out for a queue with more than 100 lanes.",
)
CONSUMERS = _gauge("queue_consumers", "queue", "Consumers that wait in a claim or hold a lease.")
DURABLE_CONSUMERS = _gauge(
    "queue_durable_consumers",
    "queue",
    "Durable consumers, such as Spark queries; whether they are there or not.",
)
NUMBERED_CLAIMS = _gauge("queue_numbered_claims", "queue", "Numbered claims that are not closed.")
NUMBERED_MESSAGES = _gauge(
    "queue_numbered_claim_messages",
    "queue",
    "Messages in numbered claims that are not closed: nobody else gets them.",
)
CONSUMER_EXPIRY = _gauge(
    "queue_consumer_expiry_timestamp_seconds",
    "queue",
    "When the first durable consumer that holds a claim is given up, if nothing is heard of it, in Unix time; left out where none holds one.",
)
ACTIVE_KEYS = _gauge("queue_active_keys", "queue", "Fairness keys that have something to hand out.")
PAUSED = _gauge("queue_paused", "queue", "1 while the queue is paused.")
HOOK_BREAKER = _gauge("hook_breaker_open", "queue function", "1 while a hook is switched off by its breaker.")
FAILURE_BREAKER = _gauge(
    "failure_breaker_open",
    "queue reason",
    "1 while failures of this reason are put off; of queues with a failure breaker.",
)
PARKED_LANES = _gauge("throttle_parked_lanes", "queue", "Lanes that wait for tokens.")
THROTTLE_TOKENS = _gauge(
    "throttle_tokens", "throttle_key", "Tokens in the bucket; of so many throttle keys as the bound allows."
)
THROTTLE_CLOSED = _gauge(
    "throttle_closed",
    "throttle_key",
    "1 while a throttle key is closed or lets only probes pass; of so many throttle keys as the bound allows.",
)
CLOSED_KEYS = _gauge("throttle_closed_keys", "", "Throttle keys that are closed or let only probes pass.")
THROTTLE_KEYS = _gauge("throttle_keys", "", "Throttle keys that have a bucket.")
INTENTS = _gauge("intents", "kind", "Long operations under way: purge, delete, redrive.")
LANES = _gauge("lanes", "", "Lanes with ready messages, of all queues.")
READ_AHEAD = _gauge("read_ahead_rows", "", "Rows of ready messages held in memory.")
STAGED_WRITES = _gauge(
    "staged_writes", "", "Writes that are staged and not published yet, those being published included."
)
STAGED_BYTES = _gauge("staged_bytes", "", "What staged writes take on disk.")
QUEUES = _gauge("queues", "", "Queues, dead-letter queues not counted.")
QUEUES_IN_OTHER = _gauge(
    "queues_in_other", "", 'Queues that have no label of their own: they are queue="__other__".'
)
STORE_FREE = _gauge("store_free_bytes", "", "Free on the disk of the data directory.")
CERTIFICATE_EXPIRY = _gauge(
    "certificate_expiry_timestamp_seconds",
    "",
    "When the certificate of the doors ends, in Unix time; with TLS only.",
)
CALLS = _gauge(
    "calls_in_flight", "", "Calls the doors are working on, those that wait for messages included."
)
CHANNELS = _gauge("channels_open", "", "Channels and streams that clients hold open.")
CALL_BYTES = _gauge("calls_in_flight_bytes", "", "What the requests in flight hold in memory.")
REQUESTS = _counter(
    "requests",
    "verb outcome",
    "Requests that reached the engine: ok, the code of the error, or failed. Refusals before that, such as forbidden or overloaded, are not.",
)
CALLS_REFUSED = _counter(
    "calls_refused", "", "Calls, channels and streams refused because there were too many: Overloaded."
)
REFUSED = _counter(
    "refused",
    "limit",
    "What was refused or closed because it was too much, by the limit it met: see limits.md.",
)
INVALID = _counter(
    "requests_invalid",
    "field",
    "Requests refused with InvalidRequest, by the field that was wrong; fields that few send are other.",
)
CONNECTIONS = _gauge(
    "connections_open", "door", "Connections of the Redis, Flight and gRPC doors (Linux only)."
)

#: In the order of this file.
METRICS: tuple[Definition, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Definition)
)
