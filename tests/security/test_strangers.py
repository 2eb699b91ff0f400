"""A key of one project against the queues of another: whatever it guesses, it changes nothing and learns
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead import Complete, DeadFilter, DeliveryRef, Extend, Fail, NewMessage, Release, Start, errors
from fairlead.middleware.stack import AdmittedCaller
from fairlead.model.access import Right
from fairlead.model.ids import IdSource, show_id
from fairlead.testing import laws
from tests.faces.table import BY_HEADER, Outcome, Thing, furnish, outcome
from tests.security.scene import Scene, opened
from tests.security.test_rights_table import everything_in
from tests.turns import new_place, next_place, turn

THEIRS, OURS, OURS_TAKEN = "shop/orders.eu", "store/orders.eu", "store/taken"
_ids = IdSource()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with opened() as scene:
        yield scene
        assert laws(scene.broker) == []


def stranger(scene: Scene) -> AdmittedCaller:
    """Everything in its own project, and nothing elsewhere."""
    return scene.with_grants(*[f"{right}:store/*" for right in Right])


def owner(scene: Scene) -> AdmittedCaller:
    return scene.with_grants(*[f"{right}:shop/*" for right in Right])


def code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except errors.FairleadError as refused:
        return refused.code
    return ""


#: In a queue of its own, with ids of messages in another's.
IN_OWN_QUEUE: dict[str, Callable[[Any, Thing], object]] = {
    "peek after it": lambda x, t: [info.payload for info in x.peek(OURS, after=t.ready)],
    "peek after a leased one": lambda x, t: [
        info.payload for info in x.peek(OURS_TAKEN, where="leased", after=t.leased.id)
    ],
    "peek after a waiting one": lambda x, t: [
        info.payload for info in x.peek(OURS, where="waiting", after=t.held)
    ],
    "find by its last characters": lambda x, t: x.find(t.ready[-8:], OURS),
    "find by its first characters": lambda x, t: x.find(t.ready[:34], OURS),
    "find it whole": lambda x, t: x.find(t.ready, OURS),
    "explain it": lambda x, t: x.explain(t.leased.id, OURS),
    "explain its dead letter": lambda x, t: x.explain(t.dead, OURS + ".dlq"),
    "ack": lambda x, t: x.ack(OURS, t.leased.id),
    "nack": lambda x, t: x.nack(OURS, t.leased.id),
    "drop": lambda x, t: x.drop(OURS, [t.ready, t.leased.id, t.held, t.dead]),
    "done": lambda x, t: x.done(OURS, [t.ready]),
    "bury": lambda x, t: x.bury(OURS, [t.ready, t.leased.id]),
    "hold": lambda x, t: x.hold(OURS, [t.ready, t.leased.id]),
    "unhold": lambda x, t: x.unhold(OURS, [t.held]),
    "fail": lambda x, t: x.fail(OURS, [t.leased.id]),
    "retry": lambda x, t: x.retry(OURS, [t.dead]),
    "retry as a dry run": lambda x, t: x.retry(OURS, [t.dead], dry_run=True),
    "redrive": lambda x, t: x.redrive(OURS, ids=[t.dead]),
    "redrive as a dry run": lambda x, t: x.redrive(OURS + ".dlq", ids=[t.dead], dry_run=True),
    "complete": lambda x, t: x.settle([Complete(t.leased), Complete(t.leased)]),
    "fail a delivery": lambda x, t: x.settle([Fail(t.leased, "no", reason="nonsense")]),
    "release": lambda x, t: x.settle([Release(t.leased), Release(DeliveryRef(t.leased.id, "ffff"))]),
    "extend": lambda x, t: x.settle([Extend(t.leased, "1h"), Extend(t.leased, 5)]),
    "start": lambda x, t: x.settle([Start(t.leased)]),
    "exchange": lambda x, t: turn(x, "holder", settle=[Extend(t.leased), Complete(t.leased)]),
    "exchange by id alone": lambda x, t: turn(
        x, "", settle=[Complete(DeliveryRef(t.ready, "")), Fail(DeliveryRef(t.dead, "1"))]
    ),
    "claim with its token": lambda x, t: x.claim(OURS + ".dlq", token=t.token),
    "the stream of another": lambda x, t: x.release_stream(OURS, "s"),
    "weights": lambda x, t: [x.config.list(), code_of(lambda: x.config.get(f"weight:{OURS}:k"))],
    "all lists": lambda x, t: [
        x.queues(),
        x.intents(),
        x.runbooks.list(),
        x.config.list(),
        len(x.keys.list()),
    ],
    "one's own stats": lambda x, t: x.stats(OURS, keys=True),
    "one's own failures": lambda x, t: x.failure_metrics(OURS),
}


@pytest.mark.parametrize("attempt", IN_OWN_QUEUE)
def test_ids_of_another_project_are_those_of_nothing(scene: Scene, attempt: str) -> None:
    """The same call in a broker that has none of it gives the same answer."""
    with opened() as elsewhere:
        answers: list[Outcome] = []
        strangers = [stranger(scene), stranger(elsewhere)]
        for x in strangers:
            x.create_queue(OURS)
            x.create_queue(OURS_TAKEN)
            _one_of_each(x, b"before")
        thing = furnish(scene.broker, THEIRS, "", token="t")
        scene.broker.config.set("throttle:t:rate", 5)
        for where, x in zip((scene, elsewhere), strangers, strict=True):
            _one_of_each(x, b"after")
            before = everything_in(where.broker)
            answers.append(outcome(IN_OWN_QUEUE[attempt], x, thing))
            assert _apart_from_audit(everything_in(where.broker)) == _apart_from_audit(before)
    assert answers[0] == answers[1]


def _one_of_each(x: AdmittedCaller, when: bytes) -> None:
    """Earlier and later than anything of the others, so that a place between the two would be seen."""
    x.enqueue(OURS_TAKEN, when)
    x.claim(OURS_TAKEN)
    held, _ = x.enqueue_many(OURS, [NewMessage(when), NewMessage(when)])
    x.hold(OURS, [held])


def _apart_from_audit(state: Any) -> object:
    return state[:-1]


def test_what_is_ones_own_in_a_batch_is_settled_beside_what_is_not(scene: Scene) -> None:
    thing, x = furnish(scene.broker, THEIRS, ""), stranger(scene)
    x.create_queue(OURS)
    x.enqueue(OURS, b"")
    (own,) = x.claim(OURS)
    results = x.settle(
        [Complete(thing.leased), Complete(own), Complete(DeliveryRef(show_id(bytes(16)), "1"))]
    )
    assert [(result.id, result.outcome) for result in results] == [
        (thing.leased.id, "not_found"),
        (own.id, "completed"),
        (show_id(bytes(16)), "not_found"),
    ]
    assert scene.broker.find(thing.leased.id).where == "leased"


def test_a_prefix_that_fits_messages_of_others_too_finds_ones_own(scene: Scene) -> None:
    scene.broker.create_queue(THEIRS)
    x = stranger(scene)
    x.create_queue(OURS)
    scene.broker.enqueue_many(THEIRS, [NewMessage(b"")] * 10)
    own = x.enqueue(OURS, b"")
    # On this clock all have the same milliseconds.
    assert x.find(own[:13]).id == own
    assert x.explain(own[:13]).subject == f"message {own}"
    second = x.enqueue(OURS, b"")
    with pytest.raises(errors.AmbiguousId) as ambiguous:
        x.find(own[:13])
    assert set(ambiguous.value.matches) == {own, second}


def test_a_prefix_finds_ones_own_behind_any_number_of_others(scene: Scene) -> None:
    scene.broker.create_queue(THEIRS)
    x = stranger(scene)
    x.create_queue(OURS)
    scene.broker.enqueue_many(THEIRS, [NewMessage(b"")] * 2500)
    own = x.enqueue(OURS, b"")
    scene.broker.enqueue_many(THEIRS, [NewMessage(b"")] * 10)
    assert x.find(own[:10]).id == own
    with pytest.raises(errors.MessageNotFound):
        scene.with_grants("admin:somewhere/*").find(own[:10])


# Tokens, sessions, names


def test_the_same_claim_token_of_two_keys_is_two(scene: Scene) -> None:
    one, two = scene.with_grants("consume:q"), scene.with_grants("consume:q")
    scene.broker.create_queue("q")
    scene.broker.enqueue_many("q", [NewMessage(b"a"), NewMessage(b"b")])
    (first,) = one.claim("q", token="t")
    (second,) = two.claim("q", token="t")
    assert first.id != second.id
    assert [one.claim("q", token="t")[0].id, two.claim("q", token="t")[0].id] == [first.id, second.id]
    assert scene.with_grants("consume:q").claim("q", token="t") == []


def test_a_claim_token_does_not_reach_what_a_request_of_another_claimed(scene: Scene) -> None:
    one, two = scene.with_grants("consume:q"), scene.with_grants("consume:q")
    place = new_place(one)
    scene.broker.create_queue("q")
    scene.broker.enqueue("q", b"a")
    (got,) = turn(one, "me", claim={"queue": "q"}, place=place).deliveries
    token = f"session:{one.caller.key_id}:{place['session']}:1"
    for guess in (token, f"{one.caller.key_id}/{token}"):
        assert two.claim("q", token=guess) == []
    assert turn(one, "me", claim={"queue": "q"}, place=place).deliveries[0].id == got.id


def test_the_same_session_of_two_keys_is_two(scene: Scene) -> None:
    one, two = owner(scene), stranger(scene)
    place = new_place(one)
    two.open_session(place["session"])
    one.create_queue(THEIRS)
    two.create_queue(OURS)
    first = turn(one, "me", enqueue={THEIRS: [NewMessage(b"a")]}, claim={"queue": THEIRS}, place=place)
    second = turn(two, "me", enqueue={OURS: [NewMessage(b"b")]}, claim={"queue": OURS}, place=place)
    # Neither was kept from having its effect, nor told of the other's.
    assert (list(first.enqueued), list(second.enqueued)) == ([THEIRS], [OURS])
    assert [got.payload for got in second.deliveries] == [b"b"]
    again = turn(two, "me", enqueue={OURS: [NewMessage(b"b")]}, claim={"queue": OURS}, place=place)
    assert again.enqueued == second.enqueued
    again = turn(one, "me", enqueue={THEIRS: [NewMessage(b"a")]}, claim={"queue": THEIRS}, place=place)
    assert again.enqueued == first.enqueued
    assert [scene.broker.stats(queue).totals.enqueued for queue in (THEIRS, OURS)] == [1, 1]


def test_saying_that_anothers_answer_arrived_does_not_make_it_forgotten(scene: Scene) -> None:
    one, two = owner(scene), stranger(scene)
    place = new_place(one)
    one.create_queue(THEIRS)
    work: dict[str, Any] = {"enqueue": {THEIRS: [NewMessage(b"a")]}}
    first = turn(one, "me", **work, place=place)
    assert code_of(lambda: turn(two, "me", place=next_place(place))) == "session_expired"
    two.open_session(place["session"])
    turn(two, "me", place=next_place(place))
    assert turn(one, "me", **work, place=place).enqueued == first.enqueued
    assert scene.broker.stats(THEIRS).ready == 1
    # One's own is.
    turn(one, "me", place=next_place(place))
    assert code_of(lambda: turn(one, "me", **work, place=place)) == "request_expired"


@pytest.mark.parametrize(
    "wrong",
    [
        {"session": 5},
        {"session": b"x"},
        {"session": ""},
        {"session": ["x"]},
        {"number": None},
        {"number": "1"},
        {"number": 1 << 70},
        {"arrived": None},
        {"arrived": 1},
        {"arrived": [0]},
    ],
    ids=str,
)
def test_a_place_that_is_none_is_refused_as_without_a_key(scene: Scene, wrong: dict[str, Any]) -> None:
    place = {"session": "s", "number": 1, **wrong}
    with pytest.raises(errors.InvalidRequest) as ours:
        turn(owner(scene), "me", place=place)
    with pytest.raises(errors.InvalidRequest) as engines:
        turn(scene.broker, "me", place=place)
    assert str(ours.value) == str(engines.value)


def test_a_goodbye_in_the_name_of_another_releases_nothing(scene: Scene) -> None:
    one, two = owner(scene), stranger(scene)
    one.create_queue(THEIRS)
    one.enqueue(THEIRS, b"")
    one.claim(THEIRS, consumer="ann")
    for guess in ("ann", f"{one.caller.key_id}/ann", f"../{one.caller.key_id}/ann", "", "/ann"):
        assert two.goodbye(guess) == 0
    assert scene.broker.stats(THEIRS).leased == 1
    assert one.goodbye("ann") == 1


def test_consumers_of_two_keys_with_one_name_do_not_share_what_each_may_hold(scene: Scene) -> None:
    one, two = scene.with_grants("consume:q"), scene.with_grants("consume:q")
    scene.broker.create_queue("q", max_unsettled_per_consumer=1)
    scene.broker.enqueue_many("q", [NewMessage(b"")] * 3)
    assert [len(x.claim("q", limit=3, consumer="ann")) for x in (one, two, one, two)] == [1, 1, 0, 0]


def test_dedup_keys_of_two_queues_do_not_know_of_each_other(scene: Scene) -> None:
    one, two = owner(scene), stranger(scene)
    one.create_queue(THEIRS, dedup="live")
    two.create_queue(OURS, dedup="live")
    first = one.enqueue(THEIRS, b"", dedup_key="k")
    assert two.enqueue(OURS, b"", dedup_key="k") != first
    assert code_of(lambda: two.enqueue(THEIRS, b"", dedup_key="k")) == "forbidden"


# What is seen without `read-payload`


@pytest.mark.parametrize("right", [right for right in Right if right is not Right.READ_PAYLOAD])
def test_without_read_payload_one_sees_that_there_is_a_message_and_not_what_it_says(
    scene: Scene, right: Right
) -> None:
    thing = furnish(scene.broker, THEIRS, "")
    scene.broker.settle([Extend(thing.leased, carry=b"secret")])
    x = scene.with_grants(f"{right}:{THEIRS}")
    seen = [
        *x.peek(THEIRS),
        *x.peek(THEIRS, where="leased"),
        *x.peek(THEIRS, where="waiting"),
        *x.peek(THEIRS + ".dlq"),
        x.find(thing.leased.id),
    ]
    assert len(seen) >= 7
    assert "secret" not in repr([(info, info.payload, info.carry, info.headers) for info in seen])
    assert {(info.payload, info.carry, *info.headers.values()) for info in seen} <= {
        (b"", b""),
        (b"", b"", ""),
    }
    assert {info.hidden for info in seen} == {("payload", "headers", "carry")}
    assert "secret" not in repr(
        [
            x.explain(thing.dead),
            x.explain(thing.leased.id),
            x.explain_queue(THEIRS),
            x.failure_metrics(THEIRS),
            x.stats(THEIRS),
        ]
    )


@pytest.mark.parametrize("verb", ["retry", "drop", "done", "bury", "hold", "unhold", "fail", "redrive"])
def test_a_filter_by_header_does_not_tell_what_headers_hold(scene: Scene, verb: str) -> None:
    furnish(scene.broker, THEIRS, "")
    x = scene.with_grants(*[f"{right}:{THEIRS}" for right in Right if right is not Right.READ_PAYLOAD])
    guesses = [
        BY_HEADER,
        DeadFilter(header=("h", "wrong")),
        DeadFilter(header=("h", "secret"), min_attempts=0),
    ]
    answers = {
        outcome(lambda x, _, guess=guess: getattr(x, verb)(THEIRS, filter=guess, dry_run=True), x, None)
        for guess in guesses
    }  # type: ignore[arg-type,misc]
    assert {answer.error for answer in answers} == {"forbidden"}
    assert len(answers) == 1


@pytest.mark.parametrize("pattern", ["*", "shop/*", THEIRS])
def test_the_header_that_a_redrive_selects_by_is_seen_with_read_payload_only(
    scene: Scene, pattern: str
) -> None:
    """It is under way for some hours, and was asked for by one who may read."""
    furnish(scene.broker, THEIRS, "")
    asked = DeadFilter(header=("h", "secret"), min_attempts=0)
    intent = scene.all_powerful().redrive(THEIRS, filter=asked, rate=0.0001).intent_id
    for right in Right:
        (seen,) = [
            one for one in scene.with_grants(f"{right}:{pattern}").intents() if one.intent_id == intent
        ]
        assert seen.filter == {
            "header": ["h", "secret" if right is Right.READ_PAYLOAD else ""],
            "min_attempts": 0,
        }
    assert "secret" not in repr([record.details for record in scene.broker.audit.read(verb="redrive")])
    assert "min_attempts=0" in repr([record.details for record in scene.broker.audit.read(verb="redrive")])


# Names that are nearly those of another


@pytest.mark.parametrize(
    "project",
    [
        "shop",
        "shop/",
        "shop/*",
        "*",
        "",
        "store/../shop",
        "store/shop",
        "STORE",
        "store.x",
        "shop/orders.eu",
        None,
        5,
        ["shop"],
    ],
)
def test_the_runbook_of_another_project_is_neither_read_nor_written(scene: Scene, project: Any) -> None:
    scene.broker.runbooks.save("shop", '{"project": "shop"}')
    scene.broker.runbooks.save("", "{}")
    x = stranger(scene)
    with opened() as elsewhere:
        y = stranger(elsewhere)
        for call in (
            lambda x, _: x.runbooks.get(project),
            lambda x, _: x.runbooks.save(project, '{"project": "shop"}'),
            lambda x, _: x.runbooks.list(),
        ):
            there, not_there = outcome(call, x, None), outcome(call, y, None)  # type: ignore[arg-type]
            assert there == not_there
            assert there.error in ("forbidden", "invalid_request") or there == Outcome("", "{}")
    assert scene.broker.runbooks.list() == {"shop": '{"project": "shop"}', "": "{}"}


@pytest.mark.parametrize(
    "key",
    [
        "weight:shop/orders.eu:k",
        "weight:shop/orders.eu.dlq:k",
        "weight::k",
        "weight:",
        "weight:*:k",
        "throttle:t:rate",
        "",
        "plain",
        None,
        5,
    ],
)
def test_configuration_of_others_is_neither_read_nor_written(scene: Scene, key: Any) -> None:
    scene.broker.config.set("weight:shop/orders.eu:k", 2)
    scene.broker.config.set("plain", "secret")
    x = stranger(scene)
    assert {
        code_of(lambda: x.config.get(key)),
        code_of(lambda: x.config.set(key, 1)),
        code_of(lambda: x.config.delete(key)),
    } == {"forbidden"}
    assert x.config.list() == x.config.list("weight:") == {}
    assert scene.broker.config.list() == {"plain": "secret", "weight:shop/orders.eu:k": "2"}


def test_a_list_tells_a_key_that_was_revoked_nothing_not_even_that_there_is_nothing(scene: Scene) -> None:
    key = scene.key("admin:store/*")
    x = scene.as_key(key)
    scene.broker.keys.revoke(key.info.id)
    calls: list[Callable[[], object]] = [
        x.config.list,
        x.runbooks.list,
        x.keys.list,
        x.queues,
        x.intents,
        x.keys.show,
        x.audit.read,
        lambda: x.settle([]),
        lambda: turn(x, ""),
        lambda: x.goodbye("x"),
        lambda: x.cancel_intent(1),
    ]
    assert {code_of(call) for call in calls} == {"unauthenticated"}
