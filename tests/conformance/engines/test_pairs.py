"""Each verb after each verb that changes something: in one transaction the two end as they do in two.

So every verb sees what the request before it changed, in memory and in rows of every kind. A test takes every
`EVERY_PAIR`th pair, others in memory than on disk; `EVERY_PAIR=1` in the environment takes all 10,000 (three minutes).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release, Start
from fairlead.decide.dead_filter import DeadFilter
from fairlead.engine import cold
from fairlead.engine.engine import Engine
from fairlead.engine.laws import broken_laws
from fairlead.engine.work import WORK, WORK_IN_STEPS
from fairlead.model.ids import find_id, show_id
from fairlead.model.settle import DeliveryRef
from fairlead.records.ids import id_of
from fairlead.request import LOCAL, Request
from fairlead.store.kv.dictionary import DictionaryData, DictionaryStore
from fairlead.testing import ManualClock
from fairlead.testing.storage import copy_data
from fairlead.verbs.browse import Browse, BrowseSplits
from fairlead.verbs.claim import Claim
from fairlead.verbs.config import ConfigDelete, ConfigGet, ConfigList, ConfigSet
from fairlead.verbs.consumers import (
    ConsumersBeginSlice,
    ConsumersChoose,
    ConsumersClaim,
    ConsumersClose,
    ConsumersDrop,
    ConsumersHeartbeat,
    ConsumersList,
    ConsumersRead,
    ConsumersRecord,
    ConsumersRegister,
    ConsumersRelease,
    ConsumersShow,
)
from fairlead.verbs.dead_letters import CancelIntent, Intents, Redrive
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Explain, ExplainQueue, Find, GetFailureMetrics, Peek, Stats
from fairlead.verbs.keys import (
    KeysChangeGrants,
    KeysCreate,
    KeysList,
    KeysRevoke,
    KeysRotate,
    KeysSetGrants,
    KeysShow,
)
from fairlead.verbs.operate import (
    Bury,
    Done,
    Drain,
    Drop,
    FailLeased,
    Hold,
    Prune,
    ReleaseStream,
    Reset,
    Retry,
    Unhold,
)
from fairlead.verbs.queues import CreateQueue, DeleteQueue, ListQueues, Pause, Purge, Resume, UpdateQueue
from fairlead.verbs.runbooks import RunbooksGet, RunbooksList, RunbooksSave
from fairlead.verbs.sessions import CloseSession, OpenSession, session_rule
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle
from fairlead.verbs.throttles import CloseThrottle, OpenThrottle, Throttles
from tests.conformance.engines.rich_scene import make_rich
from tests.conformance.engines.running import RUNBOOKS, Called, Side
from tests.sampling import sampled

QUEUES = ("ordered", "plain", "consumed", "staged")
#: A transaction reads the payloads that it staged once it is written, so requests on staged writes do not join.
STAGING = {"StagingStage", "StagingPublish", "StagingDiscard", "StagingList"}
#: They work on the directory, or are parts of another verb.
LEFT_OUT = {"Checkpoint", "AuditRead", "_CancelFoundIntent", "ConsumersCeiling"}


class Scene(NamedTuple):
    """A store with something of everything, and the names of what is in it."""

    data: DictionaryData
    names: dict[bytes, int]
    #: By queue: what claims hold there.
    held: dict[str, list[DeliveryRef]]
    #: By queue: ids of messages that no claim holds.
    free: dict[str, list[str]]
    dead: list[str]
    generation: int
    key_id: str


@cache
def make_scene() -> Scene:
    data = DictionaryData()
    broker = make_rich(DictionaryStore(data), ManualClock())
    broker.run_due()
    dead = broker.enqueue_many("plain", [NewMessage(b"to die %d" % n) for n in range(3)])
    broker.bury("plain", dead)
    broker.claim("plain", limit=2, consumer="c")
    broker.redrive("ordered", rate=0.5)
    key_id = broker.keys.create("ann", {}).info.id
    broker.open_session("opened")
    memory = broker.engine.memory
    held = {}
    for queue in QUEUES:
        members = memory.in_claim_order(list(memory.by_name[queue].leases.values()))
        held[queue] = [
            DeliveryRef(show_id(id_of(memory.chunk_of(number).prefix, number)), f"{lease.terms.claim_id:x}")
            for lease, number in members
        ]
    shown = [
        one.id for queue in QUEUES for view in ("messages", "dead") for one in broker.browse(queue, view=view)
    ]
    leased = {ref.id for refs in held.values() for ref in refs}
    free = {queue: [one.id for one in broker.browse(queue) if one.id not in leased] for queue in QUEUES}
    names = {find_id(one) or b"": at for at, one in enumerate(shown)}
    generation = broker.consumers.show("etl", "consumed").generation
    return Scene(data, names, held, free, dead, generation, key_id)


def changing(scene: Scene) -> Iterator[Request[Any]]:
    ordered, plain, members = scene.held["ordered"], scene.held["plain"], scene.held["consumed"]
    message, waiting = scene.free["plain"][0], scene.free["ordered"]
    consumer = ("etl", "consumed", scene.generation)
    yield Enqueue("plain", b"new", dedup_key="w0")
    yield Enqueue("ordered", b"new", stream="cold", dedup_key="d1")
    yield EnqueueMany(
        "plain", [NewMessage(b"%d" % n, fairness_key=f"k{n}", dedup_key=f"n{n}") for n in range(3)]
    )
    yield EnqueueMany(
        "ordered", [NewMessage(b"late", delay="1m", stream="s"), NewMessage(b"t", throttle_keys=["t"])]
    )
    yield Quarantine("plain", [NewMessage(b"bad")])
    yield Claim("ordered", 4, token="token")
    yield Claim("plain", 3)
    yield Claim(["plain.dlq", "ordered.dlq"], 2)
    yield Settle([Complete(one) for one in (*ordered[:2], *plain[:2])])
    yield Settle([Fail(one, "no") for one in (*ordered[:2], *plain[:2])])
    yield Settle([Fail(one, dead=True) for one in (*ordered[:2], *plain[:2])])
    yield Settle([Fail(one, "429", retry_after="1m", close="t") for one in ordered])
    yield Settle([Release(one, keep_order=False) for one in (*ordered[:2], *plain[:2])])
    yield Settle([*[Extend(one, "2h", progress=3) for one in ordered[:2]], *map(Start, plain[:2])])
    yield Ack("plain", plain[0].id)
    yield Nack("plain", message)
    yield Exchange(
        [Settle([Complete(plain[0])]), EnqueueMany("plain", [NewMessage(b"next")]), Claim("plain", 1)]
    )
    yield Goodbye("c")
    yield Retry("plain", scene.dead)
    yield Retry("ordered", waiting)
    yield Reset("plain", scene.dead[:2])
    yield Drop("plain", [message, *scene.dead[:1]])
    yield Done("plain", [message])
    yield Bury("ordered", waiting[:2])
    yield Hold("plain", [message])
    yield Unhold("ordered", waiting)
    yield FailLeased("ordered", [ordered[0].id])
    yield Drop("plain", filter=DeadFilter(key="default"))
    yield Prune("plain", which="dead")
    yield Drain("plain", 2)
    yield Purge("plain")
    yield Redrive("plain", scene.dead[1:])
    yield Redrive("plain")
    yield CancelIntent(1 << 70)
    yield ReleaseStream("ordered", "s")
    yield ReleaseStream("ordered", "cold")
    yield CreateQueue("new")
    yield UpdateQueue("plain", {"quantum": 3, "max_unsettled_per_key": 4, "expired_to_dead": True})
    yield Pause("plain")
    yield Resume("plain")
    yield DeleteQueue("plain")
    yield OpenSession("s")
    yield CloseSession("opened")
    yield ConfigSet("throttle.t", "1,2")
    yield ConfigSet("weight:plain:default", "5")
    yield ConfigDelete("throttle.t")
    yield CloseThrottle("t", "1m")
    yield OpenThrottle("shut")
    yield KeysCreate("bob", ["consume:*"])
    yield KeysSetGrants(scene.key_id, ["produce:plain"])
    yield KeysChangeGrants(scene.key_id, add=["consume:plain"])
    yield KeysRotate(scene.key_id)
    yield KeysRevoke(scene.key_id)
    yield RunbooksSave("shop", RUNBOOKS[-1])
    yield ConsumersRegister("etl", "consumed")
    yield ConsumersRegister("two", "plain")
    yield ConsumersClaim(*consumer, 2, limit=2)
    yield ConsumersRecord(*consumer, 1, [Fail(one) for one in members[:1]], "b")
    yield ConsumersBeginSlice(*consumer, 1, 0, 2)
    yield ConsumersChoose(*consumer, 1, ["b"], add=True)
    yield ConsumersHeartbeat(*consumer)
    yield ConsumersClose(*consumer, 1)
    yield ConsumersRelease("etl", "consumed")
    yield ConsumersDrop("etl", "consumed")


def looking(scene: Scene) -> Iterator[Request[Any]]:
    yield Twin("plain", "w0")
    yield Twin("ordered", "d1")
    yield Intents()
    yield ListQueues()
    yield Find(scene.free["plain"][0])
    yield Find("stream:cold", "ordered")
    yield Explain(scene.free["ordered"][0])
    yield ConfigGet("throttle.t")
    yield ConfigList()
    yield Throttles()
    yield KeysList()
    yield KeysShow(scene.key_id)
    yield RunbooksGet("shop")
    yield RunbooksList()
    yield ConsumersList()
    yield ConsumersShow("etl", "consumed")
    yield ConsumersRead("etl", "consumed", scene.generation, 1, unsettled=True)
    for queue in QUEUES[:2]:
        yield from (ExplainQueue(queue), GetFailureMetrics(queue), BrowseSplits(queue, n=2))
        yield from (Peek(queue, where=where) for where in ("ready", "waiting", "leased", "done"))
        yield from (Browse(queue, view) for view in ("messages", "dead"))
    for queue in QUEUES:
        yield Stats(queue, keys=True)


def after_all(scene: Scene) -> Iterator[Request[Any]]:
    """What tells where everything is, and at last the order of delivery."""
    yield from looking(scene)
    for queue in (*QUEUES, "new", "plain.dlq", "ordered.dlq"):
        yield Claim(queue, 100, max_per_stream=100)


def names_of_verbs(requests: Iterator[Request[Any]]) -> set[str]:
    return {type(one).__name__ for one in requests}


def test_every_verb_is_in_a_pair() -> None:
    scene = make_scene()
    known = names_of_verbs(changing(scene)) | names_of_verbs(looking(scene)) | STAGING | LEFT_OUT
    assert known == {verb.__name__ for verb in (*WORK, *WORK_IN_STEPS)}


EVERY_PAIR = int(os.environ.get("EVERY_PAIR") or sampled(36, of=12))


def open_side(scene: Scene) -> tuple[Side, Engine]:
    clock = ManualClock()
    engine = Engine(DictionaryStore(copy_data(scene.data)), clock=clock, rng=Random(0))
    return Side(engine.do, clock, dict(scene.names), key_ids=[scene.key_id]), engine


@pytest.mark.parametrize(
    ("hot", "start"), [(cold.HOT_MESSAGES, 0), (0, EVERY_PAIR // 2)], ids=["hot", "cold"]
)
def test_two_requests_of_one_transaction_end_as_they_do_in_two(hot: int, start: int) -> None:
    scene = make_scene()
    seconds = [*changing(scene), *looking(scene)]
    with patch.multiple(cold, HOT_MESSAGES=hot, CACHED_MESSAGES=hot):
        for at, first in enumerate(changing(scene), start):
            # Another remainder in each row: each request is in many pairs.
            for second in seconds[at % EVERY_PAIR :: EVERY_PAIR]:
                compare(scene, first, second)


def compare(scene: Scene, first: Request[Any], second: Request[Any]) -> None:
    (alone, _), (joined, engine) = open_side(scene), open_side(scene)
    where = f"{first} and then {second}"
    expected = [comparable(one, alone.carry_out(one)) for one in (first, second)]
    with engine.transaction():
        got = [comparable(one, joined.carry_out(one)) for one in (first, second)]
    assert got == expected, where
    assert broken_laws(engine) == [], where
    for look in after_all(scene):
        assert joined.carry_out(look) == alone.carry_out(look), f"{look} after {where}"


def in_session(number: int, request: Request[Any]) -> Request[Any] | Called:
    """With a number, if a session remembers it."""
    rule = session_rule(type(request), is_one_transaction=type(request) in WORK)
    if rule != "remembered" or getattr(request, "token", None) is not None:
        return request
    return Called(request, LOCAL._replace(session="mine", number=number, arrived=number - 1))


def test_two_requests_of_one_transaction_in_a_session_end_as_they_do_in_two() -> None:
    scene = make_scene()
    seconds = [*changing(scene)]
    for at, first in enumerate(changing(scene)):
        for second in seconds[at % EVERY_PAIR :: EVERY_PAIR]:
            (alone, apart), (joined, engine) = open_side(scene), open_side(scene)
            for side in (alone, joined):
                side.do(OpenSession("mine"))
            steps = [in_session(number, one) for number, one in enumerate((first, second), 1)]
            expected = [alone.carry_out(step) for step in steps]
            with engine.transaction():
                got = [joined.carry_out(step) for step in steps]
            assert got == expected, steps
            assert joined.do(OpenSession("mine")) == alone.do(OpenSession("mine")), steps
            assert broken_laws(engine) == broken_laws(apart) == [], steps


def comparable(request: Request[Any], answer: Any) -> Any:
    """What passed is counted when it is written, so that no lost transaction counts."""
    return answer[:4] if isinstance(request, Stats) else answer
