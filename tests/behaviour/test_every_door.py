"""One table of behaviour, tried through every door that has the verb: the same answers, the same errors.

`given` arranges behind the door, on the broker itself; `when` is the call through the door; `then` is what it
answers, or the error it answers with; `after` looks at the broker again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fairlead import Broker, Fail, NewMessage, errors
from tests.behaviour.doors import KINDS, Refused, open_door

Given = Callable[[Broker], Any]


@dataclass(frozen=True)
class Case:
    name: str
    verb: str
    when: Callable[[Any, Any], Any]
    then: Any = None
    given: Given = lambda broker: None
    after: Callable[[Broker], Any] | None = None
    left: Any = None


def queue(broker: Broker) -> None:
    broker.create_queue("q", visibility_timeout="30s")


def one(broker: Broker) -> str:
    queue(broker)
    return broker.enqueue("q", b"1", headers={"h": "v"})


def three(broker: Broker) -> list[str]:
    queue(broker)
    return broker.enqueue_many("q", [NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3")])


def leased(broker: Broker) -> str:
    message_id = one(broker)
    broker.claim("q", consumer="holder")
    return message_id


def settled(broker: Broker) -> str:
    message_id = leased(broker)
    broker.ack("q", message_id)
    return message_id


def dead(broker: Broker) -> str:
    message_id = one(broker)
    (delivery,) = broker.claim("q")
    broker.settle([Fail(delivery, error="no", reason="dependency_failure", dead=True)])
    return message_id


def two_dead(broker: Broker) -> None:
    queue(broker)
    broker.quarantine("q", [NewMessage(b"1"), NewMessage(b"2")], error="bad")


def cooling(broker: Broker) -> str:
    broker.create_queue("q", retry={"policy": "fixed", "cooldown": "1h"})
    message_id = broker.enqueue("q", b"1")
    (delivery,) = broker.claim("q")
    broker.settle([Fail(delivery, error="no", reason="dependency_failure")])
    return message_id


def blocked_stream(broker: Broker) -> None:
    broker.create_queue("q", retry_in_stream={"policy": "fixed", "cooldown": "1h"})
    broker.enqueue_many("q", [NewMessage(b"1", stream="s"), NewMessage(b"2", stream="s")])
    (delivery,) = broker.claim("q")
    broker.settle([Fail(delivery)])


def configured(broker: Broker) -> None:
    for key, value in (("a.x", "1"), ("a.y", "2"), ("b", "3")):
        broker.config.set(key, value)


def counts(broker: Broker) -> tuple[int, int, int, int]:
    found = broker.stats("q")
    return found.ready, found.waiting, found.leased, found.dead


def names(broker: Broker) -> list[str]:
    return [info.name for info in broker.queues()]


CASES = [
    Case(
        "a queue is made with its dead letters",
        "create_queue",
        lambda door, _: door.create_queue("q"),
        "q",
        after=names,
        left=["q", "q.dlq"],
    ),
    Case(
        "a queue that exists is not made again",
        "create_queue",
        lambda door, _: door.create_queue("q"),
        errors.QueueExists,
        given=queue,
    ),
    Case(
        "a queue has a name",
        "create_queue",
        lambda door, _: door.create_queue(""),
        errors.InvalidRequest,
        after=names,
        left=[],
    ),
    Case(
        "no queue is called by a control character",
        "create_queue",
        lambda door, _: door.create_queue("a\x07b"),
        errors.InvalidRequest,
    ),
    Case(
        "a queue is changed",
        "update_queue",
        lambda door, _: door.update_queue("q", visibility_timeout="2m"),
        120_000,
        given=queue,
    ),
    Case(
        "what is changed exists",
        "update_queue",
        lambda door, _: door.update_queue("q", visibility_timeout="2m"),
        errors.QueueNotFound,
    ),
    Case(
        "a queue goes with its dead letters",
        "delete_queue",
        lambda door, _: door.delete_queue("q"),
        given=two_dead,
        after=names,
        left=[],
    ),
    Case(
        "what is deleted exists", "delete_queue", lambda door, _: door.delete_queue("q"), errors.QueueNotFound
    ),
    Case("queues are listed by name", "queues", lambda door, _: door.queues(), ["q", "q.dlq"], given=queue),
    Case("no queues are an empty list", "queues", lambda door, _: door.queues(), []),
    Case(
        "a paused queue hands out nothing",
        "pause",
        lambda door, _: door.pause("q"),
        given=one,
        after=lambda b: b.claim("q"),
        left=[],
    ),
    Case("what is paused exists", "pause", lambda door, _: door.pause("q"), errors.QueueNotFound),
    Case(
        "a queue is resumed",
        "resume",
        lambda door, _: door.resume("q"),
        given=lambda b: (queue(b), b.pause("q")),
        after=lambda b: b.stats("q").paused,
        left=False,
    ),
    Case(
        "a purge says how many went",
        "purge",
        lambda door, _: door.purge("q"),
        3,
        given=three,
        after=counts,
        left=(0, 0, 0, 0),
    ),
    Case(
        "a message goes in",
        "enqueue",
        lambda door, _: len(door.enqueue("q", b"x", {"a": "b"})),
        36,
        given=queue,
        after=lambda b: [(m.payload, m.headers) for m in b.peek("q")],
        left=[(b"x", {"a": "b"})],
    ),
    Case(
        "an empty payload is a payload",
        "enqueue",
        lambda door, _: len(door.enqueue("q", b"")),
        36,
        given=queue,
        after=counts,
        left=(1, 0, 0, 0),
    ),
    Case(
        "a message goes into a queue that exists",
        "enqueue",
        lambda door, _: door.enqueue("q", b"x"),
        errors.QueueNotFound,
    ),
    Case(
        "nobody enqueues a dead letter",
        "enqueue",
        lambda door, _: door.enqueue("q.dlq", b"x"),
        errors.InvalidRequest,
        given=queue,
    ),
    Case(
        "a full queue says so",
        "enqueue",
        lambda door, _: door.enqueue("q", b"x"),
        errors.QueueFull,
        given=lambda b: (b.create_queue("q", max_messages=1), b.enqueue("q", b"1")),
    ),
    Case(
        "key, weight and delay arrive",
        "enqueue_with",
        lambda door, _: len(
            door.enqueue_with("q", b"x", fairness_key="k", weight=7, throttle_keys=["t"], delay="1h")
        ),
        36,
        given=queue,
        after=lambda b: [(m.fairness_key, m.weight, m.throttle_keys) for m in b.peek("q", where="waiting")],
        left=[("k", 7, ("t",))],
    ),
    Case(
        "a duplicate has the id of the first",
        "enqueue_with",
        lambda door, _: (
            door.enqueue_with("q", b"1", dedup_key="d") == door.enqueue_with("q", b"2", dedup_key="d")
        ),
        True,
        given=queue,
        after=counts,
        left=(1, 0, 0, 0),
    ),
    Case(
        "a payload is bytes",
        "enqueue_with",
        lambda door, _: door.enqueue_with("q", "text"),
        errors.InvalidRequest,
        given=queue,
    ),
    Case(
        "a bare number is no delay",
        "enqueue_with",
        lambda door, _: door.enqueue_with("q", b"x", delay=5),
        errors.InvalidRequest,
        given=queue,
    ),
    Case(
        "headers are text",
        "enqueue_with",
        lambda door, _: door.enqueue_with("q", b"x", headers={"a": 1}),
        errors.InvalidRequest,
        given=queue,
    ),
    Case(
        "many go in at once",
        "enqueue_many",
        lambda door, _: door.enqueue_many("q", [b"1", b"2"]),
        2,
        given=queue,
        after=counts,
        left=(2, 0, 0, 0),
    ),
    Case("none is many too", "enqueue_many", lambda door, _: door.enqueue_many("q", []), 0, given=queue),
    Case(
        "a message is quarantined",
        "quarantine",
        lambda door, _: door.quarantine("q", b"x"),
        1,
        given=queue,
        after=counts,
        left=(0, 0, 0, 1),
    ),
    Case(
        "messages come out in order",
        "claim",
        lambda door, _: door.claim("q", 2),
        [(b"1", 0), (b"2", 0)],
        given=three,
    ),
    Case(
        "a claim names a queue that exists", "claim", lambda door, _: door.claim("q", 1), errors.QueueNotFound
    ),
    Case(
        "nothing to claim is nothing",
        "claim_with",
        lambda door, _: door.claim_with("q", limit=5),
        [],
        given=queue,
    ),
    Case(
        "a claim has a limit",
        "claim_with",
        lambda door, _: door.claim_with("q", limit=0),
        errors.InvalidRequest,
        given=queue,
    ),
    Case(
        "a limit is a number",
        "claim_with",
        lambda door, _: door.claim_with("q", limit="many"),
        errors.InvalidRequest,
        given=queue,
    ),
    Case(
        "several queues are claimed from",
        "claim_with",
        lambda door, _: sorted(door.claim_with(["q", "r"], limit=9)),
        [b"1", b"r"],
        given=lambda b: (one(b), b.create_queue("r"), b.enqueue("r", b"r")),
    ),
    Case(
        "a token gives the same again",
        "claim_with",
        lambda door, _: [door.claim_with("q", limit=2, token="t") for _ in "ab"],
        [[b"1", b"2"]] * 2,
        given=three,
    ),
    Case(
        "each delivery has its own outcome",
        "work",
        lambda door, _: door.work("q", "complete", "fail", "dead"),
        ["completed", "retry", "dead"],
        given=three,
        after=counts,
        left=(1, 0, 0, 1),
    ),
    Case(
        "a release goes back",
        "work",
        lambda door, _: door.work("q", "release"),
        ["released"],
        given=one,
        after=counts,
        left=(1, 0, 0, 0),
    ),
    Case(
        "a delivery is settled once",
        "settle_twice",
        lambda door, _: door.settle_twice("q"),
        ["completed", "not_found"],
        given=one,
    ),
    Case(
        "a turn of work is one call",
        "exchange",
        lambda door, _: door.exchange("q", "r"),
        (["completed"], 2, [b"x"]),
        given=lambda b: (one(b), b.create_queue("r")),
    ),
    Case(
        "an ack completes",
        "ack",
        lambda door, message_id: door.ack("q", message_id),
        given=leased,
        after=counts,
        left=(0, 0, 0, 0),
    ),
    Case(
        "an ack of what is settled is too late",
        "ack",
        lambda door, message_id: door.ack("q", message_id),
        errors.LostLease,
        given=settled,
    ),
    Case(
        "an ack of what is not leased is none",
        "ack",
        lambda door, message_id: door.ack("q", message_id),
        errors.LostLease,
        given=one,
    ),
    Case(
        "an ack names a message",
        "ack",
        lambda door, _: door.ack("q", "not an id"),
        errors.InvalidRequest,
        given=queue,
    ),
    Case(
        "a nack fails",
        "nack",
        lambda door, message_id: door.nack("q", message_id, "no"),
        given=leased,
        after=lambda b: [(m.attempts, m.failures[-1].error) for m in b.peek("q")],
        left=[(1, "no")],
    ),
    Case(
        "a nack of what is settled is too late",
        "nack",
        lambda door, message_id: door.nack("q", message_id, "no"),
        errors.LostLease,
        given=settled,
    ),
    Case(
        "a goodbye gives back what is held",
        "goodbye",
        lambda door, _: door.goodbye("holder"),
        1,
        given=leased,
        after=counts,
        left=(1, 0, 0, 0),
    ),
    Case("counts are exact", "stats", lambda door, _: door.stats("q"), (3, 0), given=three),
    Case("what is counted exists", "stats", lambda door, _: door.stats("q"), errors.QueueNotFound),
    Case(
        "a peek takes nothing",
        "peek",
        lambda door, _: door.peek("q"),
        [b"1", b"2", b"3"],
        given=three,
        after=counts,
        left=(3, 0, 0, 0),
    ),
    Case(
        "a message is found by its tail",
        "find",
        lambda door, message_id: door.find("q", message_id[-8:]),
        "leased",
        given=leased,
    ),
    Case(
        "what is not there is not found",
        "find",
        lambda door, _: door.find("q", "ffffffff"),
        errors.MessageNotFound,
        given=queue,
    ),
    *[
        Case(
            f"{verb} acts on one message",
            "operate",
            lambda door, message_id, verb=verb: door.operate(verb, "q", message_id),
            (1, 0),
            given=given,
            after=counts,
            left=left,
        )
        for verb, given, left in (
            ("retry", dead, (1, 0, 0, 0)),
            ("retry", cooling, (1, 0, 0, 0)),
            ("drop", one, (0, 0, 0, 0)),
            ("done", leased, (0, 0, 0, 0)),
            ("bury", one, (0, 0, 0, 1)),
            ("hold", one, (0, 1, 0, 0)),
            ("fail", leased, (1, 0, 0, 0)),
        )
    ],
    Case(
        "dead letters are pruned",
        "prune",
        lambda door, _: door.prune("q"),
        2,
        given=two_dead,
        after=counts,
        left=(0, 0, 0, 0),
    ),
    Case(
        "what is ready is drained",
        "drain",
        lambda door, _: door.drain("q"),
        [b"1", b"2", b"3"],
        given=three,
        after=counts,
        left=(0, 0, 0, 0),
    ),
    Case(
        "a stream is released",
        "release_stream",
        lambda door, _: door.release_stream("q", "s"),
        True,
        given=blocked_stream,
        after=lambda b: [d.payload for d in b.claim("q")],
        left=[b"2"],
    ),
    Case(
        "dead letters come back",
        "redrive",
        lambda door, _: door.redrive("q"),
        2,
        given=two_dead,
        after=counts,
        left=(2, 0, 0, 0),
    ),
    Case(
        "as many come back as asked for",
        "redrive",
        lambda door, _: door.redrive("q", 1),
        1,
        given=two_dead,
        after=counts,
        left=(1, 0, 0, 1),
    ),
    Case("no dead letters are none", "redrive", lambda door, _: door.redrive("q"), 0, given=queue),
    Case("what is redriven exists", "redrive", lambda door, _: door.redrive("q"), errors.QueueNotFound),
    Case(
        "a dry run moves nothing",
        "redrive_dry",
        lambda door, _: door.redrive_dry("q"),
        2,
        given=two_dead,
        after=counts,
        left=(0, 0, 0, 2),
    ),
    Case(
        "a message says why it waits",
        "explain",
        lambda door, message_id: door.explain("q", message_id),
        ["waiting", "no_consumer"],
        given=cooling,
    ),
    Case(
        "failures are counted by reason",
        "failures",
        lambda door, _: door.failures("q"),
        {"dependency_failure": 1},
        given=cooling,
    ),
    Case(
        "a value is kept",
        "config_set",
        lambda door, _: door.config_set("k", "v"),
        after=lambda b: b.config.get("k"),
        left="v",
    ),
    Case("a key has a name", "config_set", lambda door, _: door.config_set("", "v"), errors.InvalidRequest),
    Case(
        "a rate is a number",
        "config_set",
        lambda door, _: door.config_set("throttle:a:rate", "fast"),
        errors.InvalidRequest,
    ),
    Case("a value is read", "config_get", lambda door, _: door.config_get("a.x"), "1", given=configured),
    Case(
        "what is read is set",
        "config_get",
        lambda door, _: door.config_get("a.z"),
        errors.ConfigKeyNotFound,
        given=configured,
    ),
    Case(
        "values are listed by prefix",
        "config_list",
        lambda door, _: door.config_list("a."),
        {"a.x": "1", "a.y": "2"},
        given=configured,
    ),
    Case(
        "a value is taken back",
        "config_unset",
        lambda door, _: door.config_unset("b"),
        given=configured,
        after=lambda b: sorted(b.config.list()),
        left=["a.x", "a.y"],
    ),
    Case(
        "what is taken back is set",
        "config_unset",
        lambda door, _: door.config_unset("c"),
        errors.ConfigKeyNotFound,
        given=configured,
    ),
]

TRIED = [
    pytest.param(case, door, id=f"{door}: {case.name}")
    for case in CASES
    for door, kind in KINDS.items()
    if hasattr(kind, case.verb)
]


@pytest.mark.parametrize(("case", "door_name"), TRIED)
def test_it_behaves(case: Case, door_name: str) -> None:
    with open_door(door_name) as (door, broker):
        arranged = case.given(broker)
        if isinstance(case.then, type) and issubclass(case.then, errors.FairleadError):
            with pytest.raises(Refused) as refused:
                case.when(door, arranged)
            assert refused.value.matches(case.then), refused.value.said
        else:
            assert case.when(door, arranged) == case.then
        if case.after is not None:
            assert case.after(broker) == case.left


def test_every_door_is_tried_with_every_verb_it_has() -> None:
    for door, kind in KINDS.items():
        verbs = {name for name in vars(kind) if not name.startswith("_")}
        assert verbs == {case.verb for case in CASES if hasattr(kind, case.verb)}, door
