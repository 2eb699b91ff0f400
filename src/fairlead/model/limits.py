"""All bounds on requests, with their defaults (documented in docs/reference/limits.md)."""

from __future__ import annotations

MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
MAX_HEADERS_BYTES = 64 * 1024
MAX_QUEUE_NAME = 200
MAX_KEY_BYTES = 512
MAX_THROTTLE_KEYS = 16
MAX_CLOSED_THROTTLES = 10_000
MAX_DEDUP_KEY_BYTES = 512
MAX_CONSUMER_BYTES = 256
MAX_CLAIM_TOKEN_BYTES = 256
MAX_BATCH_MESSAGES = 100_000
MAX_BATCH_BYTES = 256 * 1024 * 1024
#: One request in memory, with headers and everything else.
MAX_REQUEST_BYTES = 512 * 1024 * 1024
MAX_CLAIM = 100_000
#: Where an answer with many messages ends, so that it fits in memory and in a record batch. It has at least
#: one message.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
#: Memory that all running `peek`, `drain` and `find` calls may use together. One call uses at most a quarter
#: of the free part.
MAX_LOOK_BYTES = 128 * 1024 * 1024
#: Durable consumers; each is one small record.
MAX_CONSUMERS = 10_000
MIN_CONSUMER_TTL_MS = 1000
MAX_CONSUMER_TTL_MS = 365 * 24 * 3600 * 1000
#: Outcomes recorded with one numbered claim, with those that will not count.
MAX_RECORDED_BYTES = 256 * 1024 * 1024
MAX_PART_BYTES = 256
MAX_ERROR_BYTES = 8 * 1024
#: A regular expression of a filter, and the RE2 program that it compiles to. A search costs at most the
#: instructions times the bytes of the error.
MAX_PATTERN_BYTES = 1000
MAX_PATTERN_INSTRUCTIONS = 2000
#: An error text that is stored while the disk is below its reserve.
MAX_SHORT_ERROR_BYTES = 256
MAX_CARRY_BYTES = 64 * 1024
MAX_CONFIG_KEY_BYTES = 1024
MAX_CONFIG_VALUE_BYTES = 64 * 1024
MAX_KEYS = 10_000
MAX_KEY_NAME_BYTES = 200
MAX_GRANTS = 200
#: Beyond this number, the oldest audit entries are deleted.
MAX_AUDIT_RECORDS = 1_000_000
MAX_RUNBOOK_BYTES = 1024 * 1024
MAX_CONFIG_KEYS = 100_000
MAX_CONFIG_CHARACTERS = 64 * 1024 * 1024
MAX_SCRIPT_BYTES = 64 * 1024
MAX_WEIGHT = 1000
MAX_DURATION_MS = 10 * 365 * 24 * 3600 * 1000
MIN_LEASE_MS = 100
MAX_LEASE_MS = 7 * 24 * 3600 * 1000
MAX_SESSION_NAME_BYTES = 128
#: Answers of one session that have not arrived. At this number or this size, the session accepts no more
#: requests.
MAX_SESSION_ANSWERS = 1024
MAX_SESSION_BYTES = 1024 * 1024
#: The least time for which the broker remembers an unused session. Longer than an outage of a night, at the
#: cost of one or two rows for each client that is gone.
SESSION_KEPT_MS = 24 * 3600 * 1000
#: Messages of a stream that may be allowed to pass individually. Past this number, a release keeps order.
MAX_LET_BY = 1000

#: Ready messages that memory holds, over all queues.
MAX_READ_AHEAD_ROWS = 400_000
#: An operation that may touch more messages than this is a durable intent, with steps of at most this many.
STEP_MESSAGES = 10_000
#: Messages that one hold of the engine lock reads or changes in a filtered scan, a view or a step of a long
#: operation.
HOLD_MESSAGES = 50
#: Bytes of payloads, headers and failure records that one hold reads or writes. The hold ends with the
#: message that reaches this bound.
HOLD_BYTES = 256 * 1024
#: Messages of one `peek`, `browse` or `drain`, and entries of one reading of the audit.
MAX_PAGE = 10_000
#: Ranges that `browse_splits` makes.
MAX_SPLITS = 10_000
#: The number of a durable consumer's claim, or of an audit entry.
MAX_NUMBER = (1 << 62) - 1
#: A redrive: messages a second, and in all.
MAX_REDRIVE_RATE = 1_000_000
MAX_REDRIVE_COUNT = 1 << 40
#: Counting for an answer stops here; the answer says that there are more.
COUNT_LIMIT = 10_000
#: Messages of a queue that one call scans: for a filter, failure metrics, the last characters of an id, or
#: waiting messages of a key.
SCAN_LIMIT = 100_000
MAX_STAGING_NAME_BYTES = 512
#: Chunks in one staged write, and in all of them together.
MAX_WRITE_CHUNKS = 10_000
MAX_STAGED_CHUNKS = 100_000
#: How long the broker remembers a published token.
PUBLISHED_KEPT_MS = 7 * 24 * 3600 * 1000
#: Failures kept in full: the first, and this many of the last. The others are counted.
KEPT_LAST_FAILURES = 31
