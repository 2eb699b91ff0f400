"""The disk reserve, verb by verb: what can grow the store stops there, and everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead import Broker, Complete, Extend, Fail, NewMessage, Release, Settings, Start
from fairlead.decide.dead_filter import DeadFilter
from fairlead.errors import InvalidRequest, StoreFull
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_SHORT_ERROR_BYTES
from fairlead.request import VERBS, Room
from fairlead.runbook.model import Runbook, dump_runbook
from fairlead.testing import ManualClock
from fairlead.testing.sizes import read_size
from tests.turns import turn

#: More than any disk has: from the first call on it is below its reserve.
DISK_RESERVE_BYTES = read_size("disk_reserve_bytes")
MIN_DISK_RESERVE_BYTES = read_size("min_disk_reserve_bytes")
FLOOR_BYTES = read_size("disk_reserve_floor_bytes")

BELOW_RESERVE = Settings(disk_reserve_bytes=1 << 60)
SECRET = "fl_aaaaaaaaaaaa_" + "b" * 43


class Full:
    """A broker with messages in every state, whose disk is below its reserve."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.path = path
        with fairlead.open(path / "data", durability="os", clock=clock) as broker:
            broker.create_queue("q", visibility_timeout="1h", retry={"policy": "fixed", "cooldown": "1h"})
            broker.enqueue_many("q", [NewMessage(b"x")] * 10 + [NewMessage(b"y", stream="s")] * 2)
            first, second, *_ = broker.claim("q", limit=3, consumer="me")
            broker.settle([Fail(first, "e", dead=True), Fail(second, "e")])
            self.waiting = second.id
            (self.held,) = broker.hold("q", [broker.peek("q", limit=1)[0].id]).changed
            broker.config.set("key", "value")
            self.key = broker.keys.create("name").info.id
            self.generation = broker.consumers.register("consumer", "q").generation
            broker.consumers.claim("consumer", "q", self.generation, 1, limit=1)
            self.member = next(broker.consumers.read("consumer", "q", self.generation, 1))
            broker.staging.stage("token", "chunk", "q", [NewMessage(b"z")])
            broker.open_session("opened")
        self.broker = fairlead.open(path / "data", durability="os", clock=clock, settings=BELOW_RESERVE)

    def claimed(self) -> Delivery:
        return self.broker.claim("q", consumer="me")[0]

    def ready(self) -> list[str]:
        return [info.id for info in self.broker.peek("q", limit=1)]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    made = Full(tmp_path, ManualClock())
    yield made
    made.broker.close()


def _raise_if_refused(results: Any) -> None:
    for result in results:
        if result.outcome == "store_full":
            assert "free bytes" in result.error
            raise StoreFull("", 0, 1)


#: One call of each verb that stores something; of those that weigh what they store, one that stores much.
CALLS: dict[str, Callable[[Full], Any]] = {
    "create_queue": lambda full: full.broker.create_queue("new"),
    "update_queue": lambda full: full.broker.update_queue("q", max_messages=100),
    "pause": lambda full: full.broker.pause("q"),
    "resume": lambda full: full.broker.resume("q"),
    "purge": lambda full: full.broker.purge("q"),
    "delete_queue": lambda full: full.broker.delete_queue("q"),
    "enqueue": lambda full: full.broker.enqueue("q", b""),
    "enqueue_many": lambda full: full.broker.enqueue_many("q", [NewMessage(b"")]),
    "quarantine": lambda full: full.broker.quarantine("q", [NewMessage(b"")]),
    "claim": lambda full: full.broker.claim("q", limit=2),
    "settle": lambda full: _raise_if_refused(full.broker.settle([Extend(full.claimed(), carry=b"value")])),
    "ack": lambda full: full.broker.ack("q", full.claimed().id),
    "nack": lambda full: full.broker.nack("q", full.claimed().id, "error"),
    "goodbye": lambda full: full.broker.goodbye("me"),
    "exchange": lambda full: turn(full.broker, "me", enqueue={"q": [NewMessage(b"")]}),
    "reset": lambda full: full.broker.reset("q", [full.waiting]),
    "retry": lambda full: full.broker.retry("q", [full.waiting]),
    "drop": lambda full: full.broker.drop("q", full.ready()),
    "done": lambda full: full.broker.done("q", full.ready()),
    "bury": lambda full: full.broker.bury("q", full.ready()),
    "hold": lambda full: full.broker.hold("q", full.ready()),
    "unhold": lambda full: full.broker.unhold("q", [full.held]),
    "fail": lambda full: full.broker.fail("q", [full.claimed().id]),
    "drain": lambda full: full.broker.drain("q"),
    "prune": lambda full: full.broker.prune("q"),
    "release_stream": lambda full: full.broker.release_stream("q", "s"),
    "redrive": lambda full: full.broker.redrive("q", filter=DeadFilter()),
    "cancel_intent": lambda full: full.broker.cancel_intent(1),
    "checkpoint": lambda full: full.broker.checkpoint(full.path / "copy"),
    "close_throttle": lambda full: full.broker.close_throttle("provider", "1m"),
    "open_throttle": lambda full: full.broker.open_throttle("provider"),
    "config.set": lambda full: full.broker.config.set("other", "value"),
    "config.delete": lambda full: full.broker.config.delete("key"),
    "runbooks.save": lambda full: full.broker.runbooks.save("", dump_runbook(Runbook())),
    "keys.create": lambda full: full.broker.keys.create("another"),
    "keys.set_grants": lambda full: full.broker.keys.set_grants(full.key, []),
    "keys.change_grants": lambda full: full.broker.keys.change_grants(full.key),
    "keys.revoke": lambda full: full.broker.keys.revoke(full.key),
    "keys.rotate": lambda full: full.broker.keys.rotate(full.key),
    "consumers.register": lambda full: full.broker.consumers.register("another", "q"),
    "consumers.claim": lambda full: _claim_next(full),
    "consumers.record": lambda full: full.broker.consumers.record(
        "consumer", "q", full.generation, 1, [Fail(full.member, "error")]
    ),
    "consumers.begin_slice": lambda full: full.broker.consumers.begin_slice(
        "consumer", "q", full.generation, 1
    ),
    "consumers.choose": lambda full: full.broker.consumers.choose(
        "consumer", "q", full.generation, 1, ["part"]
    ),
    "consumers.close": lambda full: full.broker.consumers.close("consumer", "q", full.generation, 1),
    "consumers.heartbeat": lambda full: full.broker.consumers.heartbeat("consumer", "q", full.generation),
    "consumers.release": lambda full: full.broker.consumers.release("consumer", "q"),
    "consumers.drop": lambda full: full.broker.consumers.drop("consumer", "q"),
    "open_session": lambda full: full.broker.open_session("session"),
    "close_session": lambda full: full.broker.close_session("opened"),
    "staging.stage": lambda full: full.broker.staging.stage("token", "other", "q", [NewMessage(b"")]),
    "staging.publish": lambda full: full.broker.staging.publish("token", "q", ["chunk"]),
    "staging.discard": lambda full: full.broker.staging.discard("token", "q"),
}


def _claim_next(full: Full) -> None:
    full.broker.consumers.close("consumer", "q", full.generation, 1)
    full.broker.consumers.claim("consumer", "q", full.generation, 2, limit=1)
    assert list(full.broker.consumers.read("consumer", "q", full.generation, 2))


ROOM = {name: verb.request.room for name, verb in VERBS.items()}

#: Calls beside the verbs that store something: all of them must go on below the reserve.
BESIDE: dict[str, Callable[[Full], Any]] = {
    "run_due": lambda full: full.broker.run_due(),
    "close": lambda full: full.broker.close(),
    "adopt a key": lambda full: full.broker.key_ring.adopt(SECRET, "bootstrap", []),
    "authenticate": lambda full: (
        full.broker.key_ring.adopt(SECRET, "b", []) and full.broker.key_ring.authenticate(SECRET)
    ),
    "look up a key": lambda full: full.broker.key_ring.current(full.key),
    "audit an act that frees space": lambda full: full.broker.audit_trail.finish(
        full.broker.audit_trail.begin("who", "name", "from", "purge", "q"), "done"
    ),
}


#: Methods of the broker beside the verbs that store nothing, and what gives access to keys and audit.
READING = {"clock", "now_ms", "observe", "measures", "queue_names", "queues_of", "full_id", "answering"}
READING |= {"kinds_of_write", "interrupt_waits", "key_ring", "audit_trail", "queues_of_leases"}


def test_every_call_that_stores_something_is_tried() -> None:
    assert {verb for verb, room in ROOM.items() if room is not Room.READS} == set(CALLS)
    beside = {name for name in vars(fairlead.Broker) if not name.startswith("_")} - {"do", "once"}
    assert beside - READING == {"run_due", "close"}
    assert beside - READING <= BESIDE.keys()


def test_the_audit_of_an_act_that_grows_the_store_stops_at_the_reserve(full: Full) -> None:
    with pytest.raises(StoreFull):
        full.broker.audit_trail.begin("who", "name", "from", "redrive", "q")


@pytest.mark.parametrize("call", BESIDE)
def test_what_a_server_does_beside_the_verbs_goes_on_below_the_reserve(full: Full, call: str) -> None:
    BESIDE[call](full)


@pytest.mark.parametrize("verb", [verb for verb, room in ROOM.items() if room in (Room.GROWS, Room.WEIGHS)])
def test_what_can_grow_the_store_stops_at_the_reserve(full: Full, verb: str) -> None:
    with pytest.raises(StoreFull):
        CALLS[verb](full)


@pytest.mark.parametrize("verb", [verb for verb, room in ROOM.items() if room in (Room.FITS, Room.LEASES)])
def test_what_frees_space_or_is_bounded_by_the_live_messages_goes_on_below_the_reserve(
    full: Full, verb: str
) -> None:
    CALLS[verb](full)


def test_an_item_that_stores_a_value_is_refused_alone_and_its_lease_stays(full: Full) -> None:
    first, second, third, fourth = full.broker.claim("q", limit=4, consumer="me")
    items = [
        Extend(first, carry=b"value"),
        Complete(second),
        Extend(third, progress=8),
        Start(first),
        Extend(fourth),
    ]
    outcomes = [result.outcome for result in full.broker.settle(items)]
    assert outcomes == ["store_full", "completed", "extended", "started", "extended"]
    results = full.broker.settle([Complete(first), Release(third), Fail(fourth, "error")])
    assert [result.outcome for result in results] == ["completed", "released", "retry"]


def test_a_failure_below_the_reserve_keeps_the_beginning_of_its_error(full: Full) -> None:
    delivery = full.claimed()
    assert full.broker.settle([Fail(delivery, "é" * 4000)])[0].ok
    (failure,) = full.broker.find(delivery.id).failures
    assert failure.error.startswith("ééé")
    assert failure.error.endswith("[cut by fairlead: the disk is below its reserve]")
    assert len(failure.error.encode()) <= MAX_SHORT_ERROR_BYTES


def test_an_error_of_a_full_store_adds_up(full: Full) -> None:
    with pytest.raises(StoreFull) as refused:
        full.broker.enqueue("q", b"x" * 1000)
    error = refused.value
    assert error.free_bytes < error.needed_bytes, "a refusal names more than there is"
    assert error.reserve_bytes == 1 << 60
    assert f"expected at least {error.needed_bytes} free bytes" in error.message
    assert f"found {error.free_bytes}" in error.message
    assert f"{1 << 60} in reserve" in error.message


@pytest.mark.parametrize("reserve", [0, 16 << 20, MIN_DISK_RESERVE_BYTES - 1])
def test_a_reserve_that_cannot_keep_its_promise_is_refused(tmp_path: Path, reserve: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        fairlead.open(tmp_path / "data", settings=Settings(disk_reserve_bytes=reserve))
    assert refused.value.field == "disk_reserve_bytes"
    assert str(MIN_DISK_RESERVE_BYTES) in refused.value.message
    assert str(FLOOR_BYTES) in refused.value.message
    assert not (tmp_path / "data").exists()


def test_the_smallest_reserve_is_allowed_and_the_usual_one_is_larger(tmp_path: Path) -> None:
    assert Settings().disk_reserve_bytes == DISK_RESERVE_BYTES > MIN_DISK_RESERVE_BYTES
    with fairlead.open(
        tmp_path / "data", settings=Settings(disk_reserve_bytes=MIN_DISK_RESERVE_BYTES)
    ) as broker:
        assert isinstance(broker, Broker)
