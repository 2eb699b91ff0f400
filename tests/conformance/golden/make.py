"""Makes the golden directory of the current format: `python -m tests.conformance.golden.make`. Run once per released
format, then never again.

Half of it is in tables and half in the write-ahead log, as a killed process leaves it. Files that RocksDB can
do without (its own log and option files) are left out to keep the copy small.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from fairlead.model.facts import (
    ClaimEnded,
    ConfigSet,
    Enqueued,
    Fact,
    InLease,
    InReady,
    Intent,
    IntentSaved,
    Leased,
    Moved,
    QueueSaved,
    QueueUnlinked,
    RequestRemembered,
    StreamJoined,
    StreamSaved,
)
from fairlead.model.failure import FailureRecord
from fairlead.model.lane import DEAD_LETTER_LANE, Flag, first_place, move_row, pack_lane
from fairlead.model.lease import Claim, Lease
from fairlead.model.message import Message, MessageState, pack_headers
from fairlead.model.policy import RetryPolicy
from fairlead.model.queue import QueueConfig, QueueRecord
from fairlead.model.stream import StreamRecord, StreamRow
from fairlead.store.rocks import RocksStore
from fairlead.store.rocks.format import FORMAT

NOW = 1_700_000_000_000
WORK, DEAD, GONE = 1, 2, 3
HERE = Path(__file__).parent


def message_id(n: int) -> bytes:
    return bytes.fromhex("018bcfe568007000800000000000") + n.to_bytes(2, "big")


CONFIG = QueueConfig(
    visibility_timeout_ms=5000,
    retry=RetryPolicy("immediate", 3),
    max_attempts=9,
    quantum=4,
    max_messages=1000,
    ttl_ms=60_000,
    dedup_window_ms=0,
    ordering="strict",
)
QUEUES = [
    QueueRecord(WORK, "project/work", CONFIG, NOW, dlq_id=DEAD, paused=True),
    QueueRecord(DEAD, "project/work.dlq", QueueConfig(dead_retention_ms=86_400_000), NOW, source_id=WORK),
    QueueRecord(GONE, "", QueueConfig(), NOW),
]
LANE = pack_lane("tenant", ("t1", "t2"))
PLAIN = Message(
    message_id(1),
    WORK,
    LANE,
    3,
    pack_headers({"kind": "plain", "ü": "ö"}),
    b"plain payload",
    NOW,
    first_place(2),
)
EXPIRING = Message(
    message_id(2),
    WORK,
    pack_lane("default"),
    1,
    b"",
    b"\0\xff",
    NOW,
    first_place(2) + 1,
    expires_ms=NOW + 60_000,
)
WAITING = Message(message_id(3), WORK, LANE, 3, b"", b"waiting", NOW, 0, due_ms=NOW + 1000)
WINDOWED = Message(
    message_id(4),
    WORK,
    LANE,
    3,
    b"",
    b"window",
    NOW,
    first_place(2) + 2,
    dedup_key="order-4",
    dedup_until_ms=NOW + 300_000,
)
LIVE = Message(
    message_id(5), WORK, LANE, 3, b"", b"live", NOW, first_place(2) + 3, dedup_key="order-5", live_dedup=True
)
LEASED = Message(message_id(6), WORK, LANE, 3, b"", b"leased", NOW, first_place(2) + 4)
BURIED = Message(message_id(7), WORK, LANE, 3, b"", b"dead", NOW, first_place(2) + 5, stream="s")
LATE = Message(message_id(8), WORK, LANE, 3, b"", b"in the log", NOW, first_place(6))
FRONT = Message(
    message_id(9),
    WORK,
    LANE,
    3,
    b"",
    b"first of its stream",
    NOW,
    first_place(7),
    stream="customer-ü",
    seq=first_place(7),
)
BEHIND = Message(
    message_id(10),
    WORK,
    LANE,
    3,
    b"",
    b"behind it",
    NOW,
    first_place(7) + 1,
    stream="customer-ü",
    seq=first_place(7) + 1,
)
FIRST_ROW, NEXT_ROW = (StreamRow(LANE, message.row(message.seq, 0)) for message in (FRONT, BEHIND))
STREAM = StreamRecord("tenant", 2, FIRST_ROW, FIRST_ROW.seq, (NEXT_ROW.seq,), 0)
REQUEST = (message_id(11), b"what it answered")
CLAIM = Claim(1 << 32 | 1, "worker-1", "token-1", NOW, 5000)
DEAD_CLAIM = Claim(1 << 32 | 2, "worker-1", "", NOW, 5000)
LEASE = Lease(WORK, LANE, LEASED.row(LEASED.place, 0), CLAIM.claim_id, NOW + 5000, 1, False)
DEAD_LEASE = Lease(WORK, LANE, BURIED.row(BURIED.place, 0), DEAD_CLAIM.claim_id, NOW + 5000, 1, True)
DEAD_STATE = MessageState(
    DEAD,
    place=first_place(5),
    attempts=1,
    deliveries=1,
    progress=1 << 40 | 32768,
    carry=b"carry",
    reason=7,
    rule="dead",
    failures=(FailureRecord(NOW + 10, 1, 7, "böse", "worker-1", "dead"),),
    source_queue_id=WORK,
    dead_since_ms=NOW + 10,
)
DEAD_SPOT = InReady(DEAD, DEAD_LETTER_LANE, move_row(DEAD_LEASE.row, first_place(5), Flag.STATE))
FILTER: dict[str, object] = {"reason": "poison_message", "min_attempts": 1}
INTENT = Intent(
    11, "redrive", DEAD, NOW, first_place(9), cursor=3, done=2, limit=100, rate=2.5, filter=FILTER
)
SETTINGS = {"throttle:t1:rate": "50", "weight:project/work:tenant": "7"}

IN_TABLES: list[list[Fact]] = [
    [QueueSaved(QUEUES[0]), QueueSaved(QUEUES[1]), QueueSaved(QueueRecord(GONE, "gone", QueueConfig(), NOW))],
    [Enqueued(WORK, [PLAIN, EXPIRING, WAITING, WINDOWED, LIVE, LEASED, BURIED])],
    [Leased(CLAIM, [LEASE]), Leased(DEAD_CLAIM, [DEAD_LEASE])],
]
IN_THE_LOG: list[list[Fact]] = [
    [QueueUnlinked(GONE, "gone"), IntentSaved(INTENT)],
    [
        Moved("buried", BURIED.id, InLease(DEAD_LEASE), DEAD_SPOT, DEAD_STATE),
        ClaimEnded(NOW + 5000, DEAD_CLAIM.claim_id),
    ],
    [Enqueued(WORK, [LATE]), *[ConfigSet(key, value) for key, value in SETTINGS.items()]],
    [
        Enqueued(WORK, [FRONT, BEHIND], frozenset({BEHIND.id})),
        StreamSaved(WORK, "customer-ü", STREAM),
        StreamJoined(WORK, "customer-ü", NEXT_ROW),
        RequestRemembered(*REQUEST),
    ],
]


def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data"
        store = RocksStore.open(path)
        for facts in IN_TABLES:
            store.commit(facts)
        store.close()
        store = RocksStore.open(path)
        for facts in IN_THE_LOG:
            store.commit(facts)
        shutil.copytree(path, target, ignore=shutil.ignore_patterns("LOG*", "OPTIONS-*", "LOCK"))
        store.close()


if __name__ == "__main__":
    target = HERE / f"format-{FORMAT}"
    if target.exists():
        sys.exit(f"{target} exists; a golden directory is never made again")
    make(target)
