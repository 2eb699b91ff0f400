"""The Flight protocol: the schema of each record batch. Every column may be left out of a stream or be null,
and then has its default.

Version 1. A change that an older side would misread gets a new version. A new optional column does not.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

VERSION: Final = 1

_ID = pa.binary(16)

MESSAGES = pa.schema(
    [
        ("payload", pa.binary()),
        ("headers", pa.binary()),  # MessagePack map of text to text; null: none
        ("fairness_key", pa.utf8()),
        ("weight", pa.int32()),
        ("throttle_keys", pa.list_(pa.utf8())),
        ("stream", pa.utf8()),
        ("delay_ms", pa.int64()),
        ("dedup_key", pa.utf8()),
        ("ttl_ms", pa.int64()),
    ]
)

DELIVERIES = pa.schema(
    [
        ("id", _ID),
        ("lease", pa.uint64()),
        ("lease_until", pa.int64()),  # times are epoch milliseconds by the server's clock
        ("payload", pa.binary()),
        ("headers", pa.binary()),
        ("fairness_key", pa.utf8()),
        ("weight", pa.int32()),
        ("throttle_keys", pa.list_(pa.utf8())),
        ("stream", pa.utf8()),
        ("seq", pa.int64()),
        ("enqueued_at", pa.int64()),
        ("deliveries", pa.int32()),
        ("attempts", pa.int32()),
        ("progress", pa.int64()),
        ("carry", pa.binary()),
        ("failures", pa.binary()),  # MessagePack list of records, see docs/reference/flight.md
        ("dead_since", pa.int64()),
        ("source", pa.utf8()),
    ]
)

SETTLEMENTS = pa.schema(
    [
        ("action", pa.int8()),  # 0 complete, 1 fail, 2 release, 3 extend, 4 start
        ("id", _ID),
        ("lease", pa.uint64()),
        ("error", pa.utf8()),
        ("reason", pa.int16()),
        ("progress", pa.int64()),
        ("retry_in_ms", pa.int64()),
        ("dead", pa.bool_()),
        ("keep_order", pa.bool_()),
        ("duration_ms", pa.int64()),
        ("carry", pa.binary()),
        ("retry_after_ms", pa.int64()),
        ("close", pa.utf8()),
    ]
)

#: A message that is looked at without a claim: as it would be delivered, and where it is.
BROWSED = pa.schema(
    [
        *[field for field in DELIVERIES if field.name not in ("lease", "lease_until")],
        ("where", pa.utf8()),  # "ready", "waiting", "leased" or "done"; a dead letter is ready in a .dlq
        ("place", pa.int64()),
        ("due_at", pa.int64()),
        ("expires_at", pa.int64()),
        ("lease_until", pa.int64()),
        ("consumer", pa.utf8()),
        ("done_at", pa.int64()),
        ("reason", pa.int16()),  # of its last failure; null: it has not failed
        ("rule", pa.utf8()),
        ("failures_cut", pa.int32()),
        (
            "hidden",
            pa.list_(pa.utf8()),
        ),  # fields that are left out, because this caller or every caller may not read them
    ]
)

#: For channels whose answers are in their metadata, and for all requests in the view of Flight.
NOTHING = pa.schema([])

#: The batches of each channel's answers. Only requests of `write` have a batch, and its columns depend on the
#: verb.
CHANNELS: Final[dict[str, pa.Schema]] = {
    "write": NOTHING,
    "claim": DELIVERIES,
    "read": DELIVERIES,
    "browse": BROWSED,
}
