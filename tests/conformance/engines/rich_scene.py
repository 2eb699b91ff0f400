"""One of everything: a broker whose store has rows in every table of messages, consumers and staged writes."""

from __future__ import annotations

from contextlib import suppress
from unittest.mock import patch

from fairlead import Complete, Extend, Fail, NewMessage
from fairlead.engine import cold
from fairlead.engine.broker import Broker
from fairlead.engine.work import publish_steps
from fairlead.errors import StoreFull
from fairlead.store.kv.port import KeyValueStore
from fairlead.testing import ManualClock
from fairlead.testing.faulty import FaultyStore

#: Ids of the queues; each is followed by its dead-letter queue.
ORDERED, PLAIN, CONSUMED, STAGED = 1, 3, 5, 7


def make_rich(store: KeyValueStore, clock: ManualClock) -> Broker:
    """The engine is left in the middle of a publication, which its timer would finish."""
    faulty = FaultyStore(store)
    broker = Broker(faulty, clock=clock)
    fill(broker, faulty)
    return broker


def fill(broker: Broker, store: FaultyStore) -> None:
    broker.create_queue("ordered", dedup="live", ttl="1h", retry={"policy": "fixed", "cooldown": "1m"})
    broker.create_queue("plain", ordering="none", dedup="5m", retain_completed="1h", retry="immediate")
    broker.create_queue("consumed")
    broker.create_queue("staged")
    broker.config.set("throttle.t", "5,5")
    broker.close_throttle("shut", "1h")
    fill_ordered(broker)
    fill_plain(broker)
    consumers, generation = (
        broker.consumers,
        broker.consumers.register("etl", "consumed", default_outcome="release").generation,
    )
    broker.enqueue_many("consumed", [NewMessage(b"%d" % n) for n in range(4)])
    consumers.claim("etl", "consumed", generation, 1, limit=3)
    members = list(consumers.read("etl", "consumed", generation, 1))
    consumers.record("etl", "consumed", generation, 1, [Fail(members[0])])
    consumers.record("etl", "consumed", generation, 1, [Fail(members[1])], part="a")
    consumers.choose("etl", "consumed", generation, 1, ["a"])
    stage = broker.staging.stage
    stage("done", "a", "staged", [NewMessage(b"x")])
    broker.staging.publish("done", "staged", ["a"])
    stage("open", "dead", "staged", [NewMessage(b"x")] * 2, dead=("validation_failure", "no"))
    for chunk in "ab":
        stage("half", chunk, "staged", [NewMessage(b"x" * 9_000)] * 3)
    store.arm(2, "fail", only=("write",))
    with patch.object(publish_steps, "STEP_MESSAGES", 3), suppress(StoreFull):
        broker.staging.publish("half", "staged", ["a", "b"])
    # The failed write made the engine read its memory anew: now it knows the outcomes of the claim.
    list(consumers.read("etl", "consumed", generation, 1, unsettled=True))


def fill_ordered(broker: Broker) -> None:
    broker.enqueue_many("ordered", [NewMessage(b"x" * 9_000, dedup_key=f"d{n}") for n in range(4)])
    ids = broker.enqueue_many("ordered", [NewMessage(b"%d" % n, stream="s") for n in range(3)])
    broker.hold("ordered", ids[:1])
    broker.release_stream("ordered", "s")
    broker.enqueue_many("ordered", [NewMessage(b"later", delay="30m"), NewMessage(b"t", throttle_keys=["t"])])
    first, second, third, fourth, *_ = broker.claim("ordered", limit=6, consumer="c", token="token")
    broker.settle([Fail(first, "no", dead=True), Fail(second, "no"), Extend(third, "1h"), Complete(fourth)])
    broker.enqueue("ordered", b"ready")
    with patch.object(cold, "HOT_MESSAGES", 0):
        broker.enqueue_many("ordered", [NewMessage(b"cold %d" % n, stream="cold") for n in range(3)])


def fill_plain(broker: Broker) -> None:
    """Hot chunks, cold ones, and messages with rows of their own in lanes of both."""
    broker.enqueue_many("plain", [NewMessage(b"%d" % n, dedup_key=f"w{n}") for n in range(4)])
    with patch.object(cold, "HOT_MESSAGES", 0):
        broker.enqueue_many("plain", [NewMessage(b"cold %d" % n) for n in range(6)])
    first, second, third = broker.claim("plain", limit=3)
    broker.settle([Complete(first), Fail(second, "again"), Fail(third, dead=True)])
    broker.claim("plain.dlq")
