"""Who may do what: one table, written from the design and not from the code that keeps it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from fairlead import Complete, DeadFilter, DeliveryRef, Extend, Fail, NewMessage, Release, Start
from fairlead.errors import FairleadError
from fairlead.model.access import Right
from fairlead.model.settle import Settlement

PROJECT = "shop"
QUEUE = "shop/orders.eu"
#: Patterns by what they reach.
ON_QUEUE = (QUEUE, "shop/orders.*", "shop/*", "*")
WHOLE_PROJECT = ("shop/*", "*")
BESIDE = ("shop/orders", "shop/orders.us", "shop/orders.eu.*")
IN_PROJECT = (*ON_QUEUE, *BESIDE)
EVERYWHERE = ("*",)
ELSEWHERE = ("orders.eu", "orders.*", "store/*", "shop.orders.eu", "shop")
PATTERNS = (*IN_PROJECT, *ELSEWHERE)

P, C, A = Right.PRODUCE, Right.CONSUME, Right.ADMIN
READ, REDRIVE, QUARANTINE = Right.READ_PAYLOAD, Right.REDRIVE, Right.QUARANTINE

#: How a refusal looks. FORBIDDEN names the right that is missing; HIDDEN is what there would be if the thing
#: were not there.
FORBIDDEN, HIDDEN = "forbidden", "hidden"


class Thing(NamedTuple):
    """One of everything in a queue."""

    queue: str
    ready: str
    held: str
    dead: str
    leased: DeliveryRef
    intent: int
    key: str
    path: str
    token: str
    generation: int = 1

    @property
    def consumer(self) -> str:
        """A durable one with a message in claim 1."""
        return f"etl-{self.queue}"

    @property
    def write(self) -> str:
        """What is staged, in a chunk `c`."""
        return f"write-{self.queue}"

    @property
    def burial(self) -> str:
        """What is staged as a dead letter, in a chunk `c`."""
        return f"burial-{self.queue}"

    @property
    def weight(self) -> str:
        return f"weight:{self.queue}:k"

    @property
    def project(self) -> str:
        return self.queue.partition("/")[0]


class Row(NamedTuple):
    """`needs` all of these rights, () any of them, None no right at all, under one of the patterns `where`.

    `seen`: how it is refused to those who may see the queue, where that differs.
    """

    needs: tuple[Right, ...] | None
    call: Callable[[Any, Thing], object]
    refused: str = FORBIDDEN
    where: tuple[str, ...] = ON_QUEUE
    seen: str = ""

    def allows(self, rights: set[Right], pattern: str) -> bool:
        if self.needs is None:
            return True
        return pattern in self.where and bool(rights) and rights.issuperset(self.needs)


def _settled(x: Any, *items: Settlement) -> list[str]:
    return [result.outcome for result in x.settle(list(items))]


def _exchanged(x: Any, **parts: Any) -> object:
    done = x.exchange("me", **parts)
    return (
        [result.outcome for result in done.settled],
        {queue: len(ids) for queue, ids in done.enqueued.items()},
        len(done.deliveries),
    )


def runbook(project: str) -> str:
    return json.dumps({"project": project})


BY_HEADER = DeadFilter(header=("h", "secret"))

#: Verb, or verb and what is special about it.
TABLE: dict[str, Row] = {
    # Messages in
    "enqueue": Row((P,), lambda x, t: x.enqueue(t.queue, b"new")),
    "enqueue_many": Row((P,), lambda x, t: x.enqueue_many(t.queue, [NewMessage(b"new")])),
    "twin": Row((P,), lambda x, t: x.twin(t.queue, "nobody has this key")),
    "exchange: enqueue": Row((P,), lambda x, t: _exchanged(x, enqueue={t.queue: [NewMessage(b"new")]})),
    "quarantine": Row((QUARANTINE,), lambda x, t: x.quarantine(t.queue, [NewMessage(b"bad")], error="bad")),
    "staging.stage": Row(
        (P,), lambda x, t: x.staging.stage(f"{t.write}.new", "c", t.queue, [NewMessage(b"new")]).count
    ),
    "staging.stage: as dead letters": Row(
        (QUARANTINE,),
        lambda x, t: (
            x.staging.stage(
                f"{t.write}.new", "c", t.queue, [NewMessage(b"bad")], dead=("unknown", "bad")
            ).count
        ),
    ),
    "staging.publish": Row(
        (P,), lambda x, t: x.staging.publish(t.write, t.queue, ["c"]).outcome, seen=FORBIDDEN
    ),
    "staging.publish: dead letters": Row(
        (QUARANTINE,), lambda x, t: x.staging.publish(t.burial, t.queue, ["c"]).outcome, seen=FORBIDDEN
    ),
    "staging.discard": Row((P,), lambda x, t: x.staging.discard(t.write, t.queue), seen=FORBIDDEN),
    "staging.list": Row(
        (), lambda x, t: [write.messages for write in x.staging.list() if write.token == t.write], HIDDEN
    ),
    # Messages out
    "claim": Row((C,), lambda x, t: len(x.claim(t.queue))),
    "claim: with a token": Row((C,), lambda x, t: len(x.claim(t.queue, token=t.token))),
    "claim: by credit": Row((C,), lambda x, t: x.consume_one(t.queue)),
    "exchange: claim": Row((C,), lambda x, t: _exchanged(x, claim={"queue": t.queue})),
    "settle: complete": Row((C,), lambda x, t: _settled(x, Complete(t.leased)), HIDDEN),
    "settle: fail": Row((C,), lambda x, t: _settled(x, Fail(t.leased, "no")), HIDDEN),
    "settle: release": Row((C,), lambda x, t: _settled(x, Release(t.leased)), HIDDEN),
    "settle: extend": Row((C,), lambda x, t: _settled(x, Extend(t.leased)), HIDDEN),
    "settle: start": Row((C,), lambda x, t: _settled(x, Start(t.leased)), HIDDEN),
    "exchange: settle": Row((C,), lambda x, t: _exchanged(x, settle=[Complete(t.leased)]), HIDDEN),
    "exchange: extend": Row((C,), lambda x, t: _exchanged(x, extend=[Extend(t.leased)]), HIDDEN),
    "ack": Row((C,), lambda x, t: x.ack(t.queue, t.leased.id).outcome),
    "nack": Row((C,), lambda x, t: x.nack(t.queue, t.leased.id, "no").outcome),
    "consumers.register": Row((C,), lambda x, t: x.consumers.register(f"{t.consumer}.new", t.queue).queue),
    "consumers.claim": Row((C,), lambda x, t: x.consumers.claim(t.consumer, t.queue, t.generation, 1).count),
    "consumers.read_pages": Row(
        (C,), lambda x, t: [one.payload for one in x.consumers.read(t.consumer, t.queue, t.generation, 1)]
    ),
    "consumers.record": Row((C,), lambda x, t: x.consumers.record(t.consumer, t.queue, t.generation, 1, [])),
    "consumers.take_up": Row(
        (C,), lambda x, t: x.consumers.take_up(t.consumer, t.queue, t.generation, 1).failed
    ),
    "consumers.choose": Row(
        (C,), lambda x, t: x.consumers.choose(t.consumer, t.queue, t.generation, 1, ["p"])
    ),
    "consumers.close": Row(
        (C,), lambda x, t: x.consumers.close(t.consumer, t.queue, t.generation, 1).settled
    ),
    "consumers.heartbeat": Row(
        (C,), lambda x, t: x.consumers.heartbeat(t.consumer, t.queue, t.generation).open
    ),
    "consumers.ceiling": Row((C,), lambda x, t: x.consumers.ceiling(t.consumer, t.queue, t.generation) > 0),
    "consumers.release": Row((A,), lambda x, t: x.consumers.release(t.consumer, t.queue)),
    "consumers.drop": Row((A,), lambda x, t: x.consumers.drop(t.consumer, t.queue)),
    "consumers.list": Row(
        (), lambda x, t: [info.name for info in x.consumers.list() if info.name == t.consumer], HIDDEN
    ),
    "consumers.show": Row((), lambda x, t: x.consumers.show(t.consumer, t.queue).open),
    # It reaches only what the key itself has claimed, so anybody may say it.
    "goodbye": Row(None, lambda x, t: x.goodbye("me")),
    # Queues
    "create_queue": Row(
        (A,), lambda x, t: x.create_queue(t.queue + ".new").name, where=(*ON_QUEUE[1:], "shop/orders.eu.*")
    ),
    "update_queue": Row((A,), lambda x, t: x.update_queue(t.queue, visibility_timeout="9s").name),
    "delete_queue": Row((A,), lambda x, t: x.delete_queue(t.queue)),
    "pause": Row((A,), lambda x, t: x.pause(t.queue)),
    "resume": Row((A,), lambda x, t: x.resume(t.queue)),
    "purge": Row((A,), lambda x, t: x.purge(t.queue)),
    # Operators
    "drop": Row((A,), lambda x, t: x.drop(t.queue, [t.ready])),
    "drop: dry run": Row((A,), lambda x, t: x.drop(t.queue, [t.ready], dry_run=True)),
    "drop: by header": Row((A, READ), lambda x, t: x.drop(t.queue, filter=BY_HEADER, dry_run=True)),
    "done": Row((A,), lambda x, t: x.done(t.queue, [t.ready])),
    "bury": Row((A,), lambda x, t: x.bury(t.queue, [t.ready])),
    "hold": Row((A,), lambda x, t: x.hold(t.queue, [t.ready])),
    "unhold": Row((A,), lambda x, t: x.unhold(t.queue, [t.held])),
    "fail": Row((A,), lambda x, t: x.fail(t.queue, [t.leased.id])),
    "prune": Row((A,), lambda x, t: x.prune(t.queue)),
    "release_stream": Row((A,), lambda x, t: x.release_stream(t.queue, "s")),
    "drain": Row((A, READ), lambda x, t: [info.payload for info in x.drain(t.queue)]),
    "retry": Row((REDRIVE,), lambda x, t: x.retry(t.queue, [t.dead])),
    "retry: in the dead letters": Row((REDRIVE,), lambda x, t: x.retry(t.queue + ".dlq", [t.dead])),
    "retry: by header": Row((REDRIVE, READ), lambda x, t: x.retry(t.queue, filter=BY_HEADER, dry_run=True)),
    "reset": Row((A,), lambda x, t: x.reset(t.queue, [t.ready])),
    "redrive": Row((REDRIVE,), lambda x, t: x.redrive(t.queue)),
    "redrive: of the dead letters": Row((REDRIVE,), lambda x, t: x.redrive(t.queue + ".dlq", ids=[t.dead])),
    "redrive: dry run": Row((REDRIVE,), lambda x, t: x.redrive(t.queue, dry_run=True)),
    "redrive: by header": Row(
        (REDRIVE, READ), lambda x, t: x.redrive(t.queue, filter=BY_HEADER, dry_run=True)
    ),
    "intents": Row(
        (), lambda x, t: [intent.intent_id for intent in x.intents() if intent.intent_id == t.intent], HIDDEN
    ),
    "cancel_intent": Row((REDRIVE,), lambda x, t: x.cancel_intent(t.intent), HIDDEN, seen=FORBIDDEN),
    # Looking
    "queues": Row(
        (),
        lambda x, t: sorted(info.name for info in x.queues() if info.name in (t.queue, t.queue + ".dlq")),
        HIDDEN,
    ),
    "stats": Row((), lambda x, t: x.stats(t.queue).ready),
    "stats: of the dead letters": Row((), lambda x, t: x.stats(t.queue + ".dlq", keys=True).ready),
    "peek": Row((), lambda x, t: [info.id for info in x.peek(t.queue)]),
    "peek: dead letters": Row((), lambda x, t: [info.id for info in x.peek(t.queue + ".dlq")]),
    "browse": Row((), lambda x, t: [info.id for info in x.browse(t.queue)]),
    "browse: dead letters": Row((), lambda x, t: [info.id for info in x.browse(t.queue, view="dead")]),
    "browse_splits": Row((), lambda x, t: len(x.browse_splits(t.queue))),
    "failure_metrics": Row((), lambda x, t: x.failure_metrics(t.queue).queue),
    "explain_queue": Row((), lambda x, t: x.explain_queue(t.queue).subject),
    "find": Row((), lambda x, t: x.find(t.ready).id, HIDDEN),
    "find: in a queue": Row((), lambda x, t: x.find(t.ready, t.queue).id),
    "find: by its last characters": Row((), lambda x, t: x.find(t.ready[-12:], t.queue).id),
    "find: by its first characters": Row((), lambda x, t: x.find(t.ready[:30]).id, HIDDEN),
    "find: leased": Row((), lambda x, t: x.find(t.leased.id).where, HIDDEN),
    "find: dead": Row((), lambda x, t: x.find(t.dead).where, HIDDEN),
    "explain": Row((), lambda x, t: x.explain(t.ready).subject, HIDDEN),
    "explain: leased": Row((), lambda x, t: x.explain(t.leased.id).subject, HIDDEN),
    "explain: in a queue": Row((), lambda x, t: x.explain(t.dead, t.queue).subject),
    # The broker itself
    "checkpoint": Row((A,), lambda x, t: x.checkpoint(t.path), where=EVERYWHERE),
    "audit.read": Row((A,), lambda x, t: len(x.audit.read(limit=1)), where=EVERYWHERE),
    "config.get": Row((A,), lambda x, t: x.config.get(t.weight)),
    "config.set": Row((A,), lambda x, t: x.config.set(t.weight, 3)),
    "config.delete": Row((A,), lambda x, t: x.config.delete(t.weight)),
    "config.list": Row((A,), lambda x, t: x.config.list(t.weight), HIDDEN),
    "config.get: of no queue": Row((A,), lambda x, t: x.config.get("plain"), where=EVERYWHERE),
    "config.set: of no queue": Row((A,), lambda x, t: x.config.set("throttle:t:rate", 3), where=EVERYWHERE),
    "config.delete: of no queue": Row((A,), lambda x, t: x.config.delete("plain"), where=EVERYWHERE),
    "config.list: of no queue": Row((A,), lambda x, t: x.config.list("plain"), HIDDEN, where=EVERYWHERE),
    "runbooks.save": Row(
        (A,), lambda x, t: x.runbooks.save(t.project, runbook(t.project)), where=WHOLE_PROJECT
    ),
    "runbooks.get": Row((), lambda x, t: x.runbooks.get(t.project), where=IN_PROJECT),
    "runbooks.list": Row((), lambda x, t: x.runbooks.list().get(t.project), HIDDEN, where=IN_PROJECT),
    # Keys: of the rights one has oneself, where one is admin
    "keys.create": Row((A, C), lambda x, t: x.keys.create("made", [f"consume:{t.queue}"]).info.grants),
    "keys.list": Row((A, C), lambda x, t: [info.id for info in x.keys.list() if info.id == t.key], HIDDEN),
    "keys.show": Row((A, C), lambda x, t: x.keys.show(t.key).id, HIDDEN),
    "keys.show: one's own": Row(None, lambda x, t: len(x.keys.show().id)),
    "keys.set_grants": Row(
        (A, C), lambda x, t: x.keys.set_grants(t.key, [f"consume:{t.queue}"]).grants, HIDDEN
    ),
    "keys.create: without rights": Row((A,), lambda x, t: x.keys.create("made").info.grants, where=PATTERNS),
    "keys.change_grants": Row(
        (A, C), lambda x, t: x.keys.change_grants(t.key, remove=[f"consume:{t.queue}"]).grants, HIDDEN
    ),
    "keys.revoke": Row((A, C), lambda x, t: x.keys.revoke(t.key), HIDDEN),
    "keys.rotate": Row((A, C), lambda x, t: x.keys.rotate(t.key).info.name, HIDDEN),
}


def furnish(x: Any, queue: str, path: str, token: str = "t") -> Thing:
    """Through any face that may do everything. There is something for every verb to do."""
    x.create_queue(queue, retry="none", visibility_timeout="1h")
    message = NewMessage(b"secret", {"h": "secret"})
    *_, dead = x.enqueue_many(queue, [message] * 4)
    assert all(
        result.outcome == "dead"
        for result in x.settle([Fail(delivery, dead=True) for delivery in x.claim(queue, limit=4)])
    )
    x.enqueue(queue, b"secret", headers={"h": "secret"})
    (leased,) = x.claim(queue, consumer="holder")
    generation = x.consumers.register(f"etl-{queue}", queue).generation
    x.enqueue(queue, b"secret", headers={"h": "secret"})
    assert x.consumers.claim(f"etl-{queue}", queue, generation, 1).count == 1
    x.staging.stage(f"write-{queue}", "c", queue, [NewMessage(b"secret")])
    x.staging.stage(f"burial-{queue}", "c", queue, [NewMessage(b"secret")], dead=("unknown", "bad"))
    held, _ = x.enqueue_many(queue, [NewMessage(b"secret", stream="s"), NewMessage(b"secret", stream="s")])
    x.hold(queue, [held])
    ready, *_ = x.enqueue_many(queue, [message] * 2)
    intent = x.redrive(queue, rate=0.0001).intent_id
    # The first goes at once, and the next in some hours.
    if hasattr(x, "run_due"):
        x.run_due()
    _until(lambda: [one.done for one in x.intents() if one.intent_id == intent] == [1])
    key = x.keys.create("inside", [f"consume:{queue}"]).info.id
    x.config.set(f"weight:{queue}:k", 2)
    x.config.set("plain", "x")
    project = queue.partition("/")[0]
    x.runbooks.save(project, runbook(project))
    return Thing(
        queue, ready, held, dead, DeliveryRef(leased.id, leased.lease), intent, key, path, token, generation
    )


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Outcome(NamedTuple):
    """What a caller learns from a call, in plain values; `error` is the code of an error, or ""."""

    error: str
    said: str


def outcome(call: Callable[[Any, Thing], object], x: Any, thing: Thing) -> Outcome:
    try:
        return Outcome("", repr(call(x, thing)))
    except FairleadError as refused:
        return Outcome(
            refused.code,
            msgspec.json.encode(
                [refused.message, refused.fields], enc_hook=str, order="deterministic"
            ).decode(),
        )
