"""One table of verbs: who may make a call, and which audit entry it leaves.

Written from the design and not from the code that keeps it. Each row runs through every face and against every
right (`test_every_verb.py`, `tests/security/test_rights_table.py`), so a new verb needs one row here, and nothing
else unless it has a command beside `fairlead do` (`doors.COMMANDS`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from fairlead import Complete, DeadFilter, DeliveryRef, Extend, Fail, NewMessage, Release, Start
from fairlead.errors import FairleadError
from fairlead.model.access import Right
from fairlead.model.settle import Settlement
from fairlead.runbook.model import QueueSpec, Runbook, dump_runbook
from tests.turns import turn

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

#: In payloads, headers, values and runbooks; never in an audit entry.
SECRET = "secret"

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
    def provider(self) -> str:
        """The throttle key of the leased message."""
        return f"provider of {self.queue}"

    @property
    def weight(self) -> str:
        return f"weight:{self.queue}:k"

    @property
    def note(self) -> str:
        """A configuration key that is of no queue."""
        return f"note:{self.queue}"

    @property
    def project(self) -> str:
        return self.queue.partition("/")[0]


class Entry(NamedTuple):
    """The audit entry of a call that was carried out: of how many messages, and of which queue of a `Thing`."""

    count: int | None = None
    queue: str = "{queue}"
    #: Only a caller who may read payloads leaves it.
    of_reading: bool = False
    #: The verb of the entry, where it is not that of the call.
    verb: str = ""


ACT, ACT_ON_NO_QUEUE = Entry(), Entry(queue="")


def acts_on(count: int, queue: str = "{queue}") -> Entry:
    return Entry(count, queue)


def reads(count: int, queue: str = "{queue}") -> Entry:
    return Entry(count, queue, of_reading=True)


class Row(NamedTuple):
    """`needs` all of these rights, () any of them, None no right at all, under one of the patterns `where`.

    `seen`: how it is refused to those who may see the queue, where that differs. `entry`: None for a call that
    the audit does not record.
    """

    needs: tuple[Right, ...] | None
    call: Callable[[Any, Thing], object]
    refused: str = FORBIDDEN
    where: tuple[str, ...] = ON_QUEUE
    seen: str = ""
    entry: Entry | None = None

    def allows(self, rights: set[Right], pattern: str) -> bool:
        if self.needs is None:
            return True
        return pattern in self.where and bool(rights) and rights.issuperset(self.needs)


def _settled(x: Any, *items: Settlement) -> list[str]:
    return [result.outcome for result in x.settle(list(items))]


def _exchanged(x: Any, **parts: Any) -> object:
    done = turn(x, "me", **parts)
    return (
        [result.outcome for result in done.settled],
        {queue: len(ids) for queue, ids in done.enqueued.items()},
        len(done.deliveries),
    )


def runbook(project: str) -> str:
    return dump_runbook(Runbook(project, {SECRET: QueueSpec(SECRET)}))


BY_HEADER = DeadFilter(header=("h", SECRET))

#: Verb, or verb and what is special about it.
TABLE: dict[str, Row] = {
    # Messages in
    "enqueue": Row((P,), lambda x, t: x.enqueue(t.queue, b"new")),
    "enqueue_many": Row((P,), lambda x, t: x.enqueue_many(t.queue, [NewMessage(b"new")])),
    "twin": Row((P,), lambda x, t: x.twin(t.queue, "nobody has this key")),
    "exchange: enqueue": Row((P,), lambda x, t: _exchanged(x, enqueue={t.queue: [NewMessage(b"new")]})),
    "quarantine": Row(
        (QUARANTINE,),
        lambda x, t: x.quarantine(t.queue, [NewMessage(SECRET.encode())], error="bad"),
        entry=acts_on(1),
    ),
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
    "staging.discard": Row(
        (P,), lambda x, t: x.staging.discard(t.write, t.queue), seen=FORBIDDEN, entry=acts_on(1)
    ),
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
    "settle: close a throttle key": Row(
        (C,),
        lambda x, t: _settled(x, Fail(t.leased, "429", retry_after="60s", close=t.provider)),
        HIDDEN,
        entry=Entry(verb="close_throttle"),
    ),
    "settle: release": Row((C,), lambda x, t: _settled(x, Release(t.leased)), HIDDEN),
    "settle: extend": Row((C,), lambda x, t: _settled(x, Extend(t.leased)), HIDDEN),
    "settle: start": Row((C,), lambda x, t: _settled(x, Start(t.leased)), HIDDEN),
    "exchange: settle": Row((C,), lambda x, t: _exchanged(x, settle=[Complete(t.leased)]), HIDDEN),
    "exchange: extend": Row((C,), lambda x, t: _exchanged(x, settle=[Extend(t.leased)]), HIDDEN),
    "ack": Row((C,), lambda x, t: x.ack(t.queue, t.leased.id).outcome),
    "nack": Row((C,), lambda x, t: x.nack(t.queue, t.leased.id, "no").outcome),
    "consumers.register": Row((C,), lambda x, t: x.consumers.register(f"{t.consumer}.new", t.queue).queue),
    "consumers.claim": Row((C,), lambda x, t: x.consumers.claim(t.consumer, t.queue, t.generation, 1).count),
    "consumers.read_pages": Row(
        (C,), lambda x, t: [one.payload for one in x.consumers.read(t.consumer, t.queue, t.generation, 1)]
    ),
    "consumers.record": Row((C,), lambda x, t: x.consumers.record(t.consumer, t.queue, t.generation, 1, [])),
    "consumers.begin_slice": Row(
        (C,), lambda x, t: x.consumers.begin_slice(t.consumer, t.queue, t.generation, 1).failed
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
    "consumers.release": Row((A,), lambda x, t: x.consumers.release(t.consumer, t.queue), entry=acts_on(1)),
    "consumers.drop": Row((A,), lambda x, t: x.consumers.drop(t.consumer, t.queue), entry=ACT),
    "consumers.list": Row(
        (), lambda x, t: [info.name for info in x.consumers.list() if info.name == t.consumer], HIDDEN
    ),
    "consumers.show": Row((), lambda x, t: x.consumers.show(t.consumer, t.queue).open),
    # It reaches only what the key itself has claimed, so anybody may say it.
    "goodbye": Row(None, lambda x, t: x.goodbye("me")),
    # Queues
    "create_queue": Row(
        (A,),
        lambda x, t: x.create_queue(t.queue + ".new").name,
        where=(*ON_QUEUE[1:], "shop/orders.eu.*"),
        entry=Entry(queue="{queue}.new"),
    ),
    "update_queue": Row((A,), lambda x, t: x.update_queue(t.queue, visibility_timeout="9s").name, entry=ACT),
    "delete_queue": Row((A,), lambda x, t: x.delete_queue(t.queue), entry=ACT),
    "pause": Row((A,), lambda x, t: x.pause(t.queue), entry=ACT),
    "resume": Row((A,), lambda x, t: x.resume(t.queue), entry=ACT),
    "purge": Row((A,), lambda x, t: x.purge(t.queue), entry=acts_on(5)),
    # Operators
    "drop": Row((A,), lambda x, t: x.drop(t.queue, [t.ready, t.held]), entry=acts_on(2)),
    "drop: dry run": Row((A,), lambda x, t: x.drop(t.queue, [t.ready], dry_run=True)),
    "drop: by header": Row(
        (A, READ), lambda x, t: x.drop(t.queue, filter=BY_HEADER, dry_run=True), entry=acts_on(7)
    ),
    "done": Row((A,), lambda x, t: x.done(t.queue, [t.ready]), entry=acts_on(1)),
    "bury": Row((A,), lambda x, t: x.bury(t.queue, [t.ready]), entry=acts_on(1)),
    "hold": Row((A,), lambda x, t: x.hold(t.queue, [t.ready]), entry=acts_on(1)),
    "unhold": Row((A,), lambda x, t: x.unhold(t.queue, [t.held]), entry=acts_on(1)),
    "fail": Row((A,), lambda x, t: x.fail(t.queue, [t.leased.id]), entry=acts_on(1)),
    "prune": Row((A,), lambda x, t: x.prune(t.queue), entry=acts_on(3)),
    "release_stream": Row((A,), lambda x, t: x.release_stream(t.queue, "s"), entry=ACT),
    "drain": Row((A, READ), lambda x, t: [info.payload for info in x.drain(t.queue)], entry=acts_on(4)),
    "retry": Row((REDRIVE,), lambda x, t: x.retry(t.queue, [t.dead]), entry=acts_on(1)),
    "retry: in the dead letters": Row(
        (REDRIVE,), lambda x, t: x.retry(t.queue + ".dlq", [t.dead]), entry=acts_on(1, "{queue}.dlq")
    ),
    "retry: by header": Row(
        (REDRIVE, READ), lambda x, t: x.retry(t.queue, filter=BY_HEADER, dry_run=True), entry=acts_on(3)
    ),
    "reset": Row((A,), lambda x, t: x.reset(t.queue, [t.ready]), entry=acts_on(0)),
    "redrive": Row((REDRIVE,), lambda x, t: x.redrive(t.queue), entry=acts_on(3)),
    "redrive: of the dead letters": Row(
        (REDRIVE,), lambda x, t: x.redrive(t.queue + ".dlq", ids=[t.dead]), entry=acts_on(1, "{queue}.dlq")
    ),
    "redrive: all of the dead letters": Row(
        (REDRIVE,), lambda x, t: x.redrive(t.queue + ".dlq"), entry=acts_on(3, "{queue}.dlq")
    ),
    "redrive: dry run": Row((REDRIVE,), lambda x, t: x.redrive(t.queue, dry_run=True), entry=acts_on(3)),
    "redrive: by header": Row(
        (REDRIVE, READ), lambda x, t: x.redrive(t.queue, filter=BY_HEADER, dry_run=True), entry=acts_on(3)
    ),
    "open_session": Row((), lambda x, t: x.open_session("mine").last, where=PATTERNS),
    "close_session": Row((), lambda x, t: x.close_session("never opened"), where=PATTERNS),
    "intents": Row(
        (), lambda x, t: [intent.intent_id for intent in x.intents() if intent.intent_id == t.intent], HIDDEN
    ),
    "cancel_intent": Row(
        (REDRIVE,),
        lambda x, t: x.cancel_intent(t.intent),
        HIDDEN,
        seen=FORBIDDEN,
        entry=Entry(queue="{queue}.dlq"),
    ),
    # Looking
    "queues": Row(
        (),
        lambda x, t: sorted(info.name for info in x.queues() if info.name in (t.queue, t.queue + ".dlq")),
        HIDDEN,
    ),
    "stats": Row((), lambda x, t: x.stats(t.queue).ready),
    "stats: of the dead letters": Row((), lambda x, t: x.stats(t.queue + ".dlq", keys=True).ready),
    "peek": Row((), lambda x, t: [info.id for info in x.peek(t.queue)], entry=reads(4)),
    "peek: dead letters": Row(
        (), lambda x, t: [info.id for info in x.peek(t.queue + ".dlq")], entry=reads(3, "{queue}.dlq")
    ),
    "peek: leased": Row(
        (), lambda x, t: [info.id for info in x.peek(t.queue, where="leased")], entry=reads(2)
    ),
    "browse": Row((), lambda x, t: [info.id for info in x.browse(t.queue)], entry=reads(7)),
    "browse: dead letters": Row(
        (), lambda x, t: [info.id for info in x.browse(t.queue, view="dead")], entry=reads(3, "{queue}.dlq")
    ),
    "browse_splits": Row((), lambda x, t: len(x.browse_splits(t.queue))),
    "failure_metrics": Row((), lambda x, t: x.failure_metrics(t.queue).queue),
    "explain_queue": Row((), lambda x, t: x.explain_queue(t.queue).subject),
    "find": Row((), lambda x, t: x.find(t.ready).id, HIDDEN, entry=reads(1)),
    "find: in a queue": Row((), lambda x, t: x.find(t.ready, t.queue).id, entry=reads(1)),
    "find: by its last characters": Row((), lambda x, t: x.find(t.ready[-12:], t.queue).id, entry=reads(1)),
    "find: by its first characters": Row((), lambda x, t: x.find(t.ready[:30]).id, HIDDEN, entry=reads(1)),
    "find: leased": Row((), lambda x, t: x.find(t.leased.id).where, HIDDEN, entry=reads(1)),
    "find: dead": Row((), lambda x, t: x.find(t.dead).where, HIDDEN, entry=reads(1, "{queue}.dlq")),
    "explain": Row((), lambda x, t: x.explain(t.ready).subject, HIDDEN),
    "explain: leased": Row((), lambda x, t: x.explain(t.leased.id).subject, HIDDEN),
    "explain: in a queue": Row((), lambda x, t: x.explain(t.dead, t.queue).subject),
    # The broker itself
    "checkpoint": Row((A,), lambda x, t: x.checkpoint(t.path), where=EVERYWHERE, entry=ACT_ON_NO_QUEUE),
    "audit.read": Row((A,), lambda x, t: len(x.audit.read(limit=1)), where=EVERYWHERE),
    "throttles": Row((A,), lambda x, t: [one.key for one in x.throttles()], where=EVERYWHERE),
    "close_throttle": Row(
        (A,), lambda x, t: x.close_throttle("provider", "1m").key, where=EVERYWHERE, entry=ACT_ON_NO_QUEUE
    ),
    "open_throttle": Row(
        (A,), lambda x, t: x.open_throttle("provider"), where=EVERYWHERE, entry=ACT_ON_NO_QUEUE
    ),
    "config.get": Row((A,), lambda x, t: x.config.get(t.weight)),
    "config.set": Row((A,), lambda x, t: x.config.set(t.weight, 3), entry=ACT_ON_NO_QUEUE),
    "config.delete": Row((A,), lambda x, t: x.config.delete(t.weight), entry=ACT_ON_NO_QUEUE),
    "config.list": Row((A,), lambda x, t: x.config.list(t.weight), HIDDEN),
    "config.get: of no queue": Row((A,), lambda x, t: x.config.get(t.note), where=EVERYWHERE),
    "config.set: of no queue": Row(
        (A,), lambda x, t: x.config.set(t.note, SECRET), where=EVERYWHERE, entry=ACT_ON_NO_QUEUE
    ),
    "config.delete: of no queue": Row(
        (A,), lambda x, t: x.config.delete(t.note), where=EVERYWHERE, entry=ACT_ON_NO_QUEUE
    ),
    "config.list: of no queue": Row((A,), lambda x, t: x.config.list(t.note), HIDDEN, where=EVERYWHERE),
    "runbooks.save": Row(
        (A,),
        lambda x, t: x.runbooks.save(t.project, runbook(t.project)),
        where=WHOLE_PROJECT,
        entry=ACT_ON_NO_QUEUE,
    ),
    "runbooks.get": Row((), lambda x, t: x.runbooks.get(t.project), where=IN_PROJECT),
    "runbooks.list": Row((), lambda x, t: x.runbooks.list().get(t.project), HIDDEN, where=IN_PROJECT),
    # Keys: of the rights one has oneself, where one is admin
    "keys.create": Row(
        (A, C), lambda x, t: x.keys.create("made", [f"consume:{t.queue}"]).info.grants, entry=ACT_ON_NO_QUEUE
    ),
    "keys.list": Row((A, C), lambda x, t: [info.id for info in x.keys.list() if info.id == t.key], HIDDEN),
    "keys.show": Row((A, C), lambda x, t: x.keys.show(t.key).id, HIDDEN),
    "keys.show: one's own": Row(None, lambda x, t: len(x.keys.show().id)),
    "keys.set_grants": Row(
        (A, C),
        lambda x, t: x.keys.set_grants(t.key, [f"consume:{t.queue}"]).grants,
        HIDDEN,
        entry=ACT_ON_NO_QUEUE,
    ),
    "keys.create: without rights": Row(
        (A,), lambda x, t: x.keys.create("made").info.grants, where=PATTERNS, entry=ACT_ON_NO_QUEUE
    ),
    "keys.change_grants": Row(
        (A, C),
        lambda x, t: x.keys.change_grants(t.key, remove=[f"consume:{t.queue}"]).grants,
        HIDDEN,
        entry=ACT_ON_NO_QUEUE,
    ),
    "keys.revoke": Row((A, C), lambda x, t: x.keys.revoke(t.key), HIDDEN, entry=ACT_ON_NO_QUEUE),
    "keys.rotate": Row((A, C), lambda x, t: x.keys.rotate(t.key).info.name, HIDDEN, entry=ACT_ON_NO_QUEUE),
}


def furnish(x: Any, queue: str, path: str, token: str = "t") -> Thing:
    """Through any face that may do everything. There is something for every verb to do."""
    x.create_queue(queue, retry="none", visibility_timeout="1h")
    message = NewMessage(SECRET.encode(), {"h": SECRET})
    *_, dead = x.enqueue_many(queue, [message] * 4)
    assert all(
        result.outcome == "dead"
        for result in x.settle([Fail(delivery, dead=True) for delivery in x.claim(queue, limit=4)])
    )
    x.enqueue(queue, SECRET.encode(), headers={"h": SECRET}, throttle_keys=[f"provider of {queue}"])
    (leased,) = x.claim(queue, consumer="holder")
    generation = x.consumers.register(f"etl-{queue}", queue).generation
    x.enqueue(queue, SECRET.encode(), headers={"h": SECRET})
    assert x.consumers.claim(f"etl-{queue}", queue, generation, 1).count == 1
    x.staging.stage(f"write-{queue}", "c", queue, [NewMessage(SECRET.encode())])
    x.staging.stage(f"burial-{queue}", "c", queue, [NewMessage(SECRET.encode())], dead=("unknown", "bad"))
    held, _ = x.enqueue_many(
        queue, [NewMessage(SECRET.encode(), stream="s"), NewMessage(SECRET.encode(), stream="s")]
    )
    x.hold(queue, [held])
    ready, *_ = x.enqueue_many(queue, [message] * 2)
    intent = x.redrive(queue, rate=0.0001).intent_id
    # The first goes at once, and the next in some hours.
    if hasattr(x, "run_due"):
        x.run_due()
    _until(lambda: [one.done for one in x.intents() if one.intent_id == intent] == [1])
    key = x.keys.create("inside", [f"consume:{queue}"]).info.id
    x.config.set(f"weight:{queue}:k", 2)
    x.config.set(f"note:{queue}", SECRET)
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
