"""Every verb with bad values: a typed error that names the field and what was expected, and nothing stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Broker, DeadFilter, Extend, Fail, NewMessage, Settings, Start, errors
from tests.integration.world import World

LONG = "x" * 513


class Odd:
    """Neither text, number, list nor message."""


def enqueue(**options: Any) -> Callable[[Broker], Any]:
    return lambda broker: broker.enqueue("q", **{"payload": b"", **options})


def claim(queue: Any = "q", **options: Any) -> Callable[[Broker], Any]:
    return lambda broker: broker.claim(queue, **options)


def create(**options: Any) -> Callable[[Broker], Any]:
    return lambda broker: broker.create_queue("new", **options)


def update(**options: Any) -> Callable[[Broker], Any]:
    return lambda broker: broker.update_queue("q", **options)


def redrive(**options: Any) -> Callable[[Broker], Any]:
    return lambda broker: broker.redrive("q", **options)


def filtered(**options: Any) -> Callable[[Broker], Any]:
    return redrive(filter=DeadFilter(**options))


def peek(**options: Any) -> Callable[[Broker], Any]:
    return lambda broker: broker.peek("q", **options)


Case = tuple[str, Callable[[Broker], Any], str]

ENQUEUE: list[Case] = [
    ("payload text", enqueue(payload="text"), "payload"),
    ("payload None", enqueue(payload=None), "payload"),
    ("payload number", enqueue(payload=5), "payload"),
    ("payload too long", enqueue(payload=b"x" * (16 * 1024 * 1024 + 1)), "payload"),
    ("headers list", enqueue(headers=[("a", "b")]), "headers"),
    ("headers text", enqueue(headers="a=b"), "headers"),
    ("header value number", enqueue(headers={"a": 1}), "headers"),
    ("header name bytes", enqueue(headers={b"a": "1"}), "headers"),
    ("header not text", enqueue(headers={"a": "\ud800"}), "headers"),
    ("headers too long", enqueue(headers={"a": "x" * 65_537}), "headers"),
    ("key empty", enqueue(fairness_key=""), "fairness_key"),
    ("key None", enqueue(fairness_key=None), "fairness_key"),
    ("key too long", enqueue(fairness_key=LONG), "fairness_key"),
    ("key too many bytes", enqueue(fairness_key="ü" * 300), "fairness_key"),
    ("key not text", enqueue(fairness_key="\ud800"), "fairness_key"),
    ("weight text", enqueue(weight="2"), "weight"),
    ("weight float", enqueue(weight=1.5), "weight"),
    ("weight None", enqueue(weight=None), "weight"),
    ("weight True", enqueue(weight=True), "weight"),
    ("throttle keys text", enqueue(throttle_keys="api"), "throttle_keys"),
    ("throttle key empty", enqueue(throttle_keys=["a", ""]), "throttle_keys"),
    ("throttle key number", enqueue(throttle_keys=[5]), "throttle_keys"),
    ("throttle keys odd", enqueue(throttle_keys=Odd()), "throttle_keys"),
    ("throttle key too long", enqueue(throttle_keys=[LONG]), "throttle_keys"),
    ("too many throttle keys", enqueue(throttle_keys=[str(at) for at in range(17)]), "throttle_keys"),
    ("stream", enqueue(stream=""), "stream"),
    ("stream of another type", enqueue(stream=7), "stream"),
    ("delay number", enqueue(delay=5), "delay"),
    ("delay negative", enqueue(delay="-5s"), "delay"),
    ("delay without unit", enqueue(delay="5"), "delay"),
    ("delay over ten years", enqueue(delay="4000d"), "delay"),
    ("ttl number", enqueue(ttl=5), "ttl"),
    ("ttl words", enqueue(ttl="soon"), "ttl"),
    ("dedup key empty", enqueue(dedup_key=""), "dedup_key"),
    ("dedup key number", enqueue(dedup_key=5), "dedup_key"),
    ("dedup key too long", enqueue(dedup_key=LONG), "dedup_key"),
    ("queue name", lambda broker: broker.enqueue("no such name!", b""), "queue"),
    ("queue None", lambda broker: broker.enqueue(None, b""), "queue"),  # type: ignore[arg-type]
    ("queue list", lambda broker: broker.enqueue(["q"], b""), "queue"),  # type: ignore[arg-type]
    ("many text", lambda broker: broker.enqueue_many("q", "messages"), "messages"),  # type: ignore[arg-type]
    ("many None", lambda broker: broker.enqueue_many("q", None), "messages"),  # type: ignore[arg-type]
    ("many bytes", lambda broker: broker.enqueue_many("q", [NewMessage(b""), b"x"]), "messages[1].message"),  # type: ignore[list-item]
    (
        "many with one bad",
        lambda broker: broker.enqueue_many("q", [NewMessage(b""), NewMessage(b"", weight="1")]),
        "messages[1].weight",
    ),  # type: ignore[arg-type]
    ("too many", lambda broker: broker.enqueue_many("q", [NewMessage(b"")] * 100_001), "messages"),
    ("too many bytes", lambda broker: broker.enqueue_many("q", [NewMessage(b"x" * 2**24)] * 17), "messages"),
    (
        "quarantine reason",
        lambda broker: broker.quarantine("q", [NewMessage(b"")], reason="bad luck"),
        "reason",
    ),
    ("quarantine reason 8", lambda broker: broker.quarantine("q", [NewMessage(b"")], reason=8), "reason"),
    ("quarantine error", lambda broker: broker.quarantine("q", [NewMessage(b"")], error=5), "error"),  # type: ignore[arg-type]
    ("quarantine message", lambda broker: broker.quarantine("q", [NewMessage("x")]), "payload"),  # type: ignore[arg-type]
]

CLAIM: list[Case] = [
    ("limit 0", claim(limit=0), "limit"),
    ("limit negative", claim(limit=-1), "limit"),
    ("limit too large", claim(limit=100_001), "limit"),
    ("limit text", claim(limit="5"), "limit"),
    ("limit float", claim(limit=1.0), "limit"),
    ("limit True", claim(limit=True), "limit"),
    ("wait number", claim(wait=5), "wait"),
    ("wait negative", claim(wait="-1s"), "wait"),
    ("consumer None", claim(consumer=None), "consumer"),
    ("consumer too long", claim(consumer="x" * 257), "consumer"),
    ("token empty", claim(token=""), "token"),
    ("token number", claim(token=5), "token"),
    ("token too long", claim(token="x" * 257), "token"),
    ("started text", claim(started="no"), "started"),
    ("no queues", claim([]), "queue"),
    ("queue number", claim(5), "queue"),
    ("queues with a number", claim(["q", 5]), "queue"),
    ("queue with a bad name", claim(["q", "no such name!"]), "queue"),
    ("settle text", lambda broker: broker.settle("x"), "items"),  # type: ignore[arg-type]
    ("settle one item", lambda broker: broker.settle(Start(None)), "items"),  # type: ignore[arg-type]
    ("settle too many", lambda broker: broker.settle([Fail(None)] * 100_001), "items"),  # type: ignore[arg-type]
    ("ack short id", lambda broker: broker.ack("q", "1234"), "id"),
    ("ack None", lambda broker: broker.ack("q", None), "id"),  # type: ignore[arg-type]
    ("nack no id", lambda broker: broker.nack("q", ""), "id"),
    ("goodbye None", lambda broker: broker.goodbye(None), "consumer"),  # type: ignore[arg-type]
    ("goodbye list", lambda broker: broker.goodbye(["ann"]), "consumer"),  # type: ignore[arg-type]
]

QUEUES: list[Case] = [
    ("unknown option", create(colour="red"), "queue option"),
    ("timeout number", create(visibility_timeout=30), "visibility_timeout"),
    ("timeout too short", create(visibility_timeout="99ms"), "visibility_timeout"),
    ("timeout too long", create(visibility_timeout="8d"), "visibility_timeout"),
    ("timeout None", create(visibility_timeout=None), "visibility_timeout"),
    ("retry number", create(retry=3), "retry"),
    ("retry unknown", create(retry="sometimes"), "retry.policy"),
    ("retry unknown field", create(retry={"policy": "none", "times": 3}), "retry.times"),
    ("retry attempts", create(retry={"attempts": -1}), "retry.attempts"),
    ("retry attempts text", create(retry={"attempts": "3"}), "retry.attempts"),
    ("retry attempts True", create(retry={"attempts": True}), "retry.attempts"),
    *[
        (f"{option} negative", create(**{option: -1}), option)
        for option in ("max_attempts", "max_deliveries", "max_messages", "max_bytes")
    ],
    *[
        (f"{option} text", update(**{option: "1"}), option)
        for option in ("max_unsettled_per_consumer", "max_unsettled_per_key")
    ],
    ("quantum 0", create(quantum=0), "quantum"),
    ("quantum None", create(quantum=None), "quantum"),
    ("ttl words", create(ttl="soon"), "ttl"),
    ("expired_to_dead text", create(expired_to_dead="yes"), "expired_to_dead"),
    ("dead_retention number", create(dead_retention=5), "dead_retention"),
    ("dedup number", create(dedup=5), "dedup"),
    ("dedup 0", create(dedup="0s"), "dedup"),
    ("ordering", create(ordering="random"), "ordering"),
    ("ordering list", create(ordering=["strict"]), "ordering"),
    ("second option bad", update(max_attempts=3, quantum="x"), "quantum"),
    ("update name", lambda broker: broker.update_queue("no such name!"), "queue"),
    ("pause None", lambda broker: broker.pause(None), "queue"),  # type: ignore[arg-type]
    ("purge dict", lambda broker: broker.purge({}), "queue"),  # type: ignore[arg-type]
    ("delete number", lambda broker: broker.delete_queue(5), "queue"),  # type: ignore[arg-type]
    ("list number", lambda broker: broker.queues(5), "prefix"),  # type: ignore[arg-type]
    ("stats list", lambda broker: broker.stats(["q"]), "queue"),  # type: ignore[arg-type]
    ("stats key_limit", lambda broker: broker.stats("q", keys=True, key_limit=-1), "key_limit"),
]

DEAD: list[Case] = [
    ("count 0", redrive(count=0), "count"),
    ("count text", redrive(count="all"), "count"),
    ("rate 0", redrive(rate=0), "rate"),
    ("rate negative", redrive(rate=-1), "rate"),
    ("rate nan", redrive(rate=float("nan")), "rate"),
    ("rate text", redrive(rate="1/s"), "rate"),
    ("rate too high", redrive(rate=10**7), "rate"),
    ("rate with ids", redrive(ids=[], rate=1), "rate"),
    ("dry_run text", redrive(dry_run="yes"), "dry_run"),
    ("clear_progress text", redrive(clear_progress="no"), "clear_progress"),
    ("filter dict", redrive(filter={"key": "a"}), "filter"),
    ("ids text", redrive(ids="abc"), "ids"),
    ("ids short", redrive(ids=["1234"]), "ids"),
    ("ids number", redrive(ids=[5]), "ids"),
    ("ids too many", redrive(ids=["018bcfe5-6800-7000-8000-00000000001a"] * 10_001), "ids"),
    ("filter reason", filtered(reason="bad luck"), "filter.reason"),
    ("filter error", filtered(error=5), "filter.error"),
    ("filter regex", filtered(error_regex="("), "filter.error_regex"),
    ("filter regex that looks ahead", filtered(error_regex="(?=x)"), "filter.error_regex"),
    ("filter regex without end", filtered(error_regex="(x{1,9999}){1,9999}"), "filter.error_regex"),
    ("filter regex bytes", filtered(error_regex=b"x"), "filter.error_regex"),
    ("filter key", filtered(key=5), "filter.key"),
    ("filter header", filtered(header="kind"), "filter.header"),
    ("filter header value", filtered(header=("kind", 5)), "filter.header"),
    ("filter age", filtered(older_than=5), "filter.older_than"),
    ("filter younger", filtered(newer_than="soon"), "filter.newer_than"),
    ("filter attempts", filtered(min_attempts=-1), "filter.min_attempts"),
    ("filter attempts text", filtered(max_attempts="3"), "filter.max_attempts"),
    ("cancel text", lambda broker: broker.cancel_intent("1"), "intent_id"),  # type: ignore[arg-type]
    ("cancel list", lambda broker: broker.cancel_intent([1]), "intent_id"),  # type: ignore[arg-type]
]

LOOKING: list[Case] = [
    ("peek limit", peek(limit=0), "limit"),
    ("peek limit too large", peek(limit=10_001), "limit"),
    ("peek where", peek(where="gone"), "where"),
    ("peek where list", peek(where=["ready"]), "where"),
    ("peek key", peek(key=5), "key"),
    ("peek key empty", peek(key=""), "key"),
    ("peek after", peek(after="1234"), "after"),
    ("find id", lambda broker: broker.find("xyz"), "id"),
    ("find queue", lambda broker: broker.find("0123abcd", queue="no such name!"), "queue"),
    ("explain id", lambda broker: broker.explain(None), "id"),  # type: ignore[arg-type]
    ("explain queue", lambda broker: broker.explain_queue(5), "queue"),  # type: ignore[arg-type]
    ("config get", lambda broker: broker.config.get(5), "key"),  # type: ignore[arg-type]
    ("config delete", lambda broker: broker.config.delete(""), "key"),
    ("config list", lambda broker: broker.config.list(None), "prefix"),  # type: ignore[arg-type]
    ("checkpoint number", lambda broker: broker.checkpoint(5), "path"),  # type: ignore[arg-type]
]

CASES = [
    pytest.param(call, field, id=f"{verb}: {label}")
    for verb, cases in {
        "enqueue": ENQUEUE,
        "claim": CLAIM,
        "queues": QUEUES,
        "dead": DEAD,
        "looking": LOOKING,
    }.items()
    for label, call, field in cases
]


@pytest.mark.parametrize(("call", "field"), CASES)
def test_a_bad_value_is_refused_by_name_and_nothing_is_stored(
    memory_world: World, call: Callable[[Broker], Any], field: str
) -> None:
    world = memory_world
    before = world.store.last_commit
    with pytest.raises(errors.InvalidRequest) as refused:
        call(world.broker)
    assert refused.value.field == field
    assert str(refused.value).startswith(f"expected {field} to be ")
    assert refused.value.code == "invalid_request"
    assert len(str(refused.value)) < 1000, "a large value is shown cut"
    assert world.store.last_commit == before
    assert [info.name for info in world.broker.queues()] == ["q", "q.dlq"]
    assert world.counts("q") == (0, 0, 0, 0)


SETTLE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "reason": (lambda d: Fail(d, reason="bad luck"), "reason"),
    "reason None": (lambda d: Fail(d, reason=None), "reason"),  # type: ignore[arg-type]
    "error bytes": (lambda d: Fail(d, error=b"x"), "error"),  # type: ignore[arg-type]
    "dead text": (lambda d: Fail(d, dead="yes"), "dead"),  # type: ignore[arg-type]
    "dead and retry_in": (lambda d: Fail(d, dead=True, retry_in="5s"), "retry_in"),
    "retry_in number": (lambda d: Fail(d, retry_in=5), "retry_in"),  # type: ignore[arg-type]
    "progress float": (lambda d: Fail(d, progress=1.5), "progress"),  # type: ignore[arg-type]
    "progress too large": (lambda d: Fail(d, progress=1 << 64), "progress"),
    "duration number": (lambda d: Extend(d, 30), "duration"),  # type: ignore[arg-type]
    "duration too short": (lambda d: Extend(d, "99ms"), "duration"),
    "duration too long": (lambda d: Extend(d, "8d"), "duration"),
    "carry text": (lambda d: Extend(d, carry="x"), "carry"),  # type: ignore[arg-type]
    "carry too long": (lambda d: Extend(d, carry=b"x" * 65_537), "carry"),
    "delivery None": (lambda d: Start(None), "delivery"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("make", "field"), SETTLE.values(), ids=SETTLE.keys())
def test_a_bad_settlement_is_invalid_by_name_and_changes_nothing(
    memory_world: World, make: Callable[[Any], Any], field: str
) -> None:
    world = memory_world
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    before = world.store.last_commit
    (result,) = world.broker.settle([make(delivery)])
    assert (result.outcome, result.ok) == ("invalid", False)
    assert result.error.startswith(f"expected {field} to be ")
    assert world.store.last_commit == before
    assert world.counts("q") == (0, 0, 1, 0)


ON_A_QUEUE = ["enqueue", "quarantine", "claim", "ack", "stats", "peek"]
ON_A_QUEUE += ["update_queue", "pause", "resume", "purge", "delete_queue", "redrive", "explain_queue"]


@pytest.mark.parametrize("verb", ON_A_QUEUE)
def test_an_unknown_queue_is_named(memory_world: World, verb: str) -> None:
    more = {
        "enqueue": [b""],
        "quarantine": [[NewMessage(b"")]],
        "ack": ["018bcfe5-6800-7000-8000-00000000001a"],
    }.get(verb, [])
    with pytest.raises(errors.QueueNotFound) as missing:
        getattr(memory_world.broker, verb)("nowhere", *more)
    assert missing.value.queue == "nowhere"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("read_ahead_rows", 0.5),
        ("read_ahead_rows", 400_001),
        ("active_lanes", None),
        ("body_cache_bytes", -1),
        ("block_cache_bytes", 1 << 63),
        ("disk_reserve_bytes", "64MB"),
        ("disk_reserve_bytes", True),
        ("lua", {"default_timeout_ms": 10}),
    ],
)
def test_a_bad_setting_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        Settings(**{setting: value})
    assert refused.value.field == setting


class Word(str):
    """Text of the caller's own kind."""


def test_a_kind_of_text_is_taken_as_the_text_it_is(world: World) -> None:
    world.broker.create_queue(Word("named"))
    more = {
        "fairness_key": Word("k"),
        "throttle_keys": [Word("t")],
        "dedup_key": Word("d"),
        "stream": Word("s"),
    }
    world.broker.enqueue(Word("q"), b"", **more)
    (delivery,) = world.broker.claim(Word("q"), consumer=Word("ann"), token=Word("t"))
    world.broker.settle([Fail(delivery, error=Word("bad luck"), reason=Word("handler_exception"))])
    world.restart()
    found = world.broker.find(delivery.id)
    assert (found.fairness_key, found.stream, found.failures[-1].error) == ("k", "s", "bad luck")


@pytest.mark.parametrize("payload", [bytearray(b"abc"), memoryview(b"abc"), b"abc"])
def test_anything_like_bytes_is_a_payload_and_is_kept_as_it_was(memory_world: World, payload: Any) -> None:
    memory_world.broker.enqueue("q", payload)
    if isinstance(payload, bytearray):
        payload[0] = 0
    assert memory_world.claim_one("q").payload == b"abc"


def test_the_largest_of_everything_is_taken(memory_world: World) -> None:
    headers = {"a": "x" * 65_000}
    options: dict[str, Any] = {
        "fairness_key": "k" * 512,
        "throttle_keys": [f"{at:0512}" for at in range(16)],
        "dedup_key": "d" * 512,
    }
    memory_world.broker.enqueue(
        "q", b"x" * 16 * 1024 * 1024, headers=headers, delay="0s", ttl="3650d", **options
    )
    delivery = memory_world.claim_one("q", consumer="c" * 256, token="t" * 256)
    assert (len(delivery.payload), delivery.headers, delivery.fairness_key) == (
        16 * 1024 * 1024,
        headers,
        "k" * 512,
    )
    assert delivery.throttle_keys == tuple(options["throttle_keys"])
