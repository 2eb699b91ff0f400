from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec
import pytest

import fairlead
from fairlead import (
    Complete,
    DeadFilter,
    DeliveryRef,
    Extend,
    Fail,
    FailureReason,
    NewMessage,
    Start,
    errors,
    surface,
)
from fairlead.client.async_bulk import AsyncBulkConsumers, AsyncBulkStaging
from fairlead.client.async_client import AsyncClient
from fairlead.client.bulk import BulkConsumers, BulkStaging
from fairlead.client.client import Client
from fairlead.model.access import EVERY_RIGHT, Grant, Right
from fairlead.request import VERBS
from fairlead.surface import AsyncSurface, Surface
from fairlead.testing.engine import waiting_claims
from fairlead.verbs.claim import Claim
from fairlead.verbs.consumers import ConsumersRead
from fairlead.verbs.inspect import Stats
from fairlead.verbs.queues import CreateQueue, Pause, Purge, UpdateQueue
from fairlead.verbs.settle import Settle
from tests.client.scene import PATIENCE_S, Scene, until
from tests.turns import turn

#: Methods beside the verbs.
CLIENTS_OWN = {"consume", "is_lost", "consumer", "process_span", "browse_batches", "close"}
#: Forms of verbs: message by message.
OTHER_FORMS = {"consumers.read"}
SURFACES: dict[type, dict[str, type]] = {
    Surface: {
        "config": surface.ConfigGroup,
        "runbooks": surface.RunbooksGroup,
        "keys": surface.KeysGroup,
        "audit": surface.AuditGroup,
        "consumers": surface.ConsumersGroup,
        "staging": surface.StagingGroup,
    },
    AsyncSurface: {
        "config": surface.AsyncConfigGroup,
        "runbooks": surface.AsyncRunbooksGroup,
        "keys": surface.AsyncKeysGroup,
        "audit": surface.AsyncAuditGroup,
        "consumers": surface.AsyncConsumersGroup,
        "staging": surface.AsyncStagingGroup,
    },
}
#: The asyncio client reads slices with an asynchronous iterator of its own.
BLOCKING_ONLY = {"consumers.read_pages"}


def public(kind: type) -> set[str]:
    groups = {name for name, held in vars(kind).items() if isinstance(held, cached_property)}
    return {name for name in vars(kind) if not name.startswith("_")} - groups - {"do", "once"}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def method_of(kind: type, verb: str) -> Callable[..., Any]:
    group, _, name = verb.rpartition(".")
    found: Callable[..., Any] = getattr(SURFACES[kind][group] if group else kind, name)
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_method_with_its_fields_in_their_order_and_with_their_defaults(verb: str) -> None:
    _, *given = parameters(method_of(Surface, verb))
    fields = msgspec.structs.fields(VERBS[verb].request)
    assert [one.name for one in given] == [field.name for field in fields]
    for one, field in zip(given, fields, strict=True):
        if one.kind is one.VAR_KEYWORD:
            continue
        assert one.default == (one.empty if field.required else field.default), one.name


#: Its method and its verb describe different things: pages, and the messages of all pages.
OWN_DESCRIPTION = {"consumers.read_pages"}


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - OWN_DESCRIPTION))
def test_a_method_is_described_in_the_words_of_its_verb(verb: str) -> None:
    described = " ".join((method_of(Surface, verb).__doc__ or "").split())
    assert described.startswith(" ".join((VERBS[verb].request.__doc__ or "no docstring").split()))


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - BLOCKING_ONLY))
def test_the_asyncio_method_of_a_verb_is_the_same_function_as_a_coroutine(verb: str) -> None:
    awaited = method_of(AsyncSurface, verb)
    assert inspect.unwrap(awaited) is method_of(Surface, verb)
    assert inspect.iscoroutinefunction(awaited)


@pytest.mark.parametrize("kind", SURFACES)
def test_a_surface_has_a_method_for_every_verb_and_no_other(kind: type) -> None:
    methods = public(kind) | {
        f"{group}.{name}" for group, held in SURFACES[kind].items() for name in public(held)
    }
    assert methods - OTHER_FORMS == VERBS.keys() - (BLOCKING_ONLY if kind is AsyncSurface else set())


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_adds_nothing_but_what_concerns_its_connection(kind: type) -> None:
    assert public(kind) == CLIENTS_OWN


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (BulkConsumers, AsyncBulkConsumers),
        (BulkStaging, AsyncBulkStaging),
    ],
)
def test_the_forms_with_record_batches_take_the_same_arguments_in_both_clients(
    blocking: type, awaited: type
) -> None:
    assert public(blocking) == public(awaited) - {"read"}
    for name in public(blocking):
        assert parameters(getattr(blocking, name)) == parameters(getattr(awaited, name))


def test_grants_are_given_as_records_or_as_text(client: Client) -> None:
    made = client.keys.create("x", [Grant(Right.PRODUCE, "q"), "consume:q"])
    assert made.info.grants == ("consume:q", "produce:q")
    assert client.keys.set_grants(made.info.id, EVERY_RIGHT).grants == tuple(sorted(map(str, EVERY_RIGHT)))


@pytest.mark.parametrize("grants", [None, 5, "produce:q", [None], [5]])
def test_wrong_grants_are_refused_in_the_same_words_in_process_and_by_a_client(
    client: Client, scene: Scene, grants: Any
) -> None:
    told = []
    for face in (scene.broker, client):
        with pytest.raises(errors.InvalidRequest) as refused:
            face.keys.create("x", grants)
        told.append(refused.value.message)
    assert told[0] == told[1]


@pytest.mark.parametrize("options", [None, 5, [1], "ordering"])
@pytest.mark.parametrize("kind", [CreateQueue, UpdateQueue])
def test_options_that_are_no_mapping_are_refused(scene: Scene, kind: Any, options: Any) -> None:
    with pytest.raises(errors.InvalidRequest):
        scene.broker.do(kind("q2" if kind is CreateQueue else "q", options))


def test_every_verb_says_in_a_sentence_what_it_does() -> None:
    assert [verb.name for verb in VERBS.values() if not verb.summary.endswith(".")] == []


def test_both_ways_to_connect_take_the_same_options() -> None:
    assert parameters(fairlead.connect) == parameters(fairlead.aio.connect)


def test_the_life_of_a_message(client: Client, scene: Scene) -> None:
    message_id = client.enqueue("q", b"work", headers={"a": "b"}, fairness_key="acme", weight=3, stream="s")
    (delivery,) = client.claim("q", wait="1s")
    assert (delivery.id, delivery.payload, delivery.headers) == (message_id, b"work", {"a": "b"})
    assert (delivery.queue, delivery.fairness_key, delivery.weight, delivery.stream, delivery.attempts) == (
        "q",
        "acme",
        3,
        "s",
        0,
    )
    assert scene.broker.find(message_id).consumer == client.consumer
    (failed,) = client.settle([Fail(delivery, "broke", "dependency_failure", retry_in="0s")])
    assert (failed.outcome, failed.id) == ("retry", message_id)
    (again,) = client.claim("q")
    assert (again.attempts, again.failures[0].error, again.failures[0].reason) == (
        1,
        "broke",
        FailureReason.DEPENDENCY_FAILURE,
    )
    assert (
        client.settle([Extend(again, timedelta(minutes=1), carry=b"so far"), Complete(again)])[1].outcome
        == "completed"
    )
    assert scene.counts() == (0, 0, 0, 0)


def test_a_delivery_is_settled_by_its_two_strings(client: Client) -> None:
    client.enqueue("q", b"")
    (delivery,) = client.claim("q")
    ref = DeliveryRef(delivery.id, delivery.lease)
    assert [result.outcome for result in client.settle([Start(ref), Complete(ref)])] == [
        "started",
        "completed",
    ]


def test_one_bad_item_does_not_spoil_the_others(client: Client) -> None:
    client.enqueue("q", b"")
    (delivery,) = client.claim("q")
    items: list[Any] = [
        Fail(delivery, reason="no such reason"),
        "nonsense",
        Complete(delivery),
        Complete(DeliveryRef("x", "y")),
    ]
    assert [result.outcome for result in client.settle(items)] == [
        "invalid",
        "invalid",
        "completed",
        "invalid",
    ]


@pytest.mark.parametrize("items", [None, "text", 5, {Complete}])
def test_a_settle_of_something_that_is_no_list_is_refused(client: Client, scene: Scene, items: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as ours:
        client.settle(items)
    with pytest.raises(errors.InvalidRequest) as engines:
        scene.broker.settle(items)
    assert str(ours.value) == str(engines.value)


def test_a_settle_of_nothing_is_nothing(client: Client) -> None:
    assert client.settle([]) == []


WRONG: dict[str, Callable[[Any], object]] = {
    "no such queue": lambda x: x.enqueue("nowhere", b""),
    "a dead-letter queue": lambda x: x.enqueue("q.dlq", b""),
    "a payload that is no bytes": lambda x: x.enqueue("q", "text"),
    "a bad message in a batch": lambda x: x.enqueue_many("q", [NewMessage(b""), NewMessage(b"", weight="1")]),
    "headers that are no text": lambda x: x.enqueue("q", b"", headers={"a": 1}),
    "a queue twice": lambda x: x.create_queue("q"),
    "an option that is none": lambda x: x.create_queue("new", nonsense=1),
    "a hook that is none": lambda x: x.create_queue("new", on_enqueue="no lua"),
    "a bare number of seconds": lambda x: x.claim("q", wait=5),
    "a limit that is none": lambda x: x.claim("q", limit=0),
    "a claim of no queue": lambda x: x.claim([]),
    "a claim of two queues of which one is not there": lambda x: x.claim(["q", "nowhere"]),
    "an id that is none": lambda x: x.find("nonsense!"),
    "a message that is not there": lambda x: x.find("01a1e19d-989b-7001-bc76-5741d6c9b655"),
    "a key that is not set": lambda x: x.config.get("nothing"),
    "a throttle that is none": lambda x: x.config.set("throttle:a:rate", "fast"),
    "a redrive with a count that is none": lambda x: x.redrive("q.dlq", count=0),
    "ids that are none": lambda x: x.drop("q", ["nonsense"]),
    "an exchange of nonsense": lambda x: x.exchange([Settle("nonsense")]),
    "an exchange of another verb": lambda x: x.exchange([Stats("q")]),
    "a session without a name": lambda x: x.open_session(""),
    "an unack": lambda x: x.ack("q", "nonsense"),
    "a verb of many steps in a session": lambda x: x.once(Purge("q"), session="s", number=1),
    "a verb of pages in a session": lambda x: x.once(ConsumersRead("c", "q", 1, 1), session="s", number=1),
    "a number that is none": lambda x: x.once(Pause("q"), session="s", number=0),
    "a claim with a number that is none": lambda x: x.once(Claim("q"), session="s", number=None),
    "an exchange in a session that is not open": lambda x: turn(x, "me", place={"session": "s", "number": 1}),
    "an act in a session that is not open": lambda x: x.once(Pause("q"), session="s", number=1),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_what_the_engine_refuses_is_refused_with_the_same_error(
    client: Client, scene: Scene, call: Callable[[Any], object]
) -> None:
    with pytest.raises(errors.FairleadError) as engines:
        call(scene.broker)
    with pytest.raises(errors.FairleadError) as ours:
        call(client)
    assert (type(ours.value), ours.value.message) == (type(engines.value), engines.value.message)
    assert ours.value.fields.keys() == engines.value.fields.keys()


def test_what_cannot_travel_is_refused(client: Client) -> None:
    with pytest.raises(errors.InvalidRequest):
        client.claim(object())  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest):
        client.create_queue("new", retry=object())


def test_a_claim_waits_for_a_message(client: Client, scene: Scene) -> None:
    threading.Timer(0.05, lambda: scene.broker.enqueue("q", b"late")).start()
    assert client.claim("q", wait="60s")[0].payload == b"late"


def test_a_wait_longer_than_one_request_goes_on(
    client: Client, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.client.core.POLL_MS", 50)
    threading.Timer(0.3, lambda: scene.broker.enqueue("q", b"late")).start()
    assert client.claim("q", wait="60s")[0].payload == b"late"


def test_a_wait_that_is_over_gives_nothing(client: Client) -> None:
    assert client.claim("q", wait="100ms") == []


def test_claims_that_wait_hold_up_neither_each_other_nor_anything_else(client: Client, scene: Scene) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: found.extend(delivery.payload for delivery in client.claim("q", wait="60s")),
            daemon=True,
        )
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    until(
        lambda: scene.broker.stats("q").consumers > 0 and waiting_claims(scene.broker, "q") == 20,
        "all waiting",
    )
    assert client.stats("q").ready == 0
    client.enqueue_many("q", [NewMessage(b"%d" % at) for at in range(20)])
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(found) == sorted(b"%d" % at for at in range(20))


def test_operators_work_through_a_client(client: Client, scene: Scene) -> None:
    client.create_queue("jobs", retry="none")
    ids = client.enqueue_many("jobs", [NewMessage(b"%d" % at, headers={"n": str(at)}) for at in range(3)])
    for delivery in client.claim("jobs", limit=3):
        client.settle([Fail(delivery, "no", "validation_failure")])
    assert client.stats("jobs").dead == 3
    assert client.redrive("jobs.dlq", filter=DeadFilter(header=("n", "1")), dry_run=True).matched == 1
    assert client.redrive("jobs.dlq", ids=[ids[0]]).moved == 1
    assert client.drop("jobs.dlq", [ids[1]]).changed == (ids[1],)
    assert [info.id for info in client.peek("jobs.dlq")] == [ids[2]]
    assert client.quarantine(
        "jobs", [NewMessage(b"bad", throttle_keys=["t"], delay=timedelta(seconds=1))], reason="poison_message"
    )
    assert client.failure_metrics("jobs").queue == "jobs"
    assert client.explain(ids[0]).subject == scene.broker.explain(ids[0]).subject
    assert client.queues("jobs") == scene.broker.queues("jobs")
    assert client.purge("jobs") == 1
    client.config.set("throttle:t:rate", 5)
    assert client.config.list("throttle:") == {"throttle:t:rate": "5"}
    client.delete_queue("jobs")
    assert [queue.name for queue in client.queues("jobs")] == []


def test_an_unfenced_ack_goes_through_a_client(client: Client) -> None:
    message_id = client.enqueue("q", b"")
    client.claim("q")
    assert client.ack("q", message_id).outcome == "completed"


def test_a_goodbye_when_closing_releases_what_the_client_holds(scene: Scene) -> None:
    client = scene.client(consumer="leaver")
    other = scene.client(consumer="stayer")
    client.enqueue_many("q", [NewMessage(b"a"), NewMessage(b"b")])
    client.claim("q")
    other.claim("q")
    client.close(goodbye=True)
    assert scene.counts() == (1, 0, 1, 0)


def test_closing_keeps_leases(scene: Scene) -> None:
    client = scene.client()
    client.enqueue("q", b"")
    client.claim("q")
    client.close()
    client.close()
    assert scene.counts() == (0, 0, 1, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.enqueue("q", b""),
        lambda x: x.claim("q"),
        lambda x: x.settle([]),
        lambda x: x.stats("q"),
        lambda x: next(x.consume("q")),
    ],
)
def test_a_closed_client_says_so(client: Client, call: Callable[[Client], object]) -> None:
    client.close()
    with pytest.raises(errors.ClientClosed):
        call(client)


def test_closing_ends_a_claim_that_waits(client: Client, scene: Scene) -> None:
    outcome: list[object] = []

    def wait() -> None:
        try:
            client.claim("q", wait="1h")
        except errors.FairleadError as error:
            outcome.append(type(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: scene.broker.stats("q").consumers == 1, "the claim waiting")
    client.close()
    thread.join(PATIENCE_S)
    assert outcome == [errors.ClientClosed]


def test_connect_waits_for_an_answer_and_names_itself(scene: Scene) -> None:
    with fairlead.connect(scene.address) as one, fairlead.connect(scene.address) as two:
        assert one.consumer != two.consumer
        assert one.enqueue("q", b"") == two.peek("q")[0].id


def test_connect_says_when_nobody_is_there(scene: Scene) -> None:
    with pytest.raises(errors.ServerUnreachable, match=r"127\.0\.0\.1:1, .*refused"):
        fairlead.connect("127.0.0.1:1", retry_for="100ms")


@pytest.mark.parametrize(
    "wrong",
    [{"retry_for": 5}, {"timeout": 5}, {"heartbeat_cap": 5}, {"consumer": ""}, {"consumer": "x" * 300}],
)
def test_connect_refuses_options_that_are_none(scene: Scene, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest):
        fairlead.connect(scene.address, **wrong)
