"""The work batch: one call, its order of effects, all or nothing, and the same answer when it is asked again."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from fairlead import Complete, DeliveryRef, Extend, Fail, NewMessage, Release, Start, errors
from fairlead.testing import CommitStep
from fairlead.testing.engine import hooks_of
from fairlead.testing.steps import ignore
from fairlead.testing.stored import stored_requests
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import ACCEPTED, Exchange
from fairlead.verbs.inspect import Stats
from fairlead.verbs.settle import Settle
from tests.integration.world import World
from tests.turns import new_place, next_place, turn

MINUTE = 60_000


def named(*names: str, **options: Any) -> list[NewMessage]:
    return [NewMessage(name.encode(), **options) for name in names]


def outcomes(result: Any) -> list[str]:
    return [item.outcome for item in result.settled]


def payloads(result: Any) -> list[bytes]:
    return [delivery.payload for delivery in result.deliveries]


# Effects


def test_a_whole_turn_of_work_in_one_call(world: World) -> None:
    world.broker.create_queue("next")
    world.broker.enqueue_many("q", named("m1", "m2", "m3", "m4"))
    m1, m2, m3, m4 = world.broker.claim("q", limit=4, consumer="ann")
    lost = DeliveryRef(m1.id, "f" * 16)
    result = turn(
        world.broker,
        "ann",
        settle=[
            Extend(m4, "5m"),
            Complete(m1),
            Fail(m2, retry_in="1h"),
            Release(m3),
            Complete(lost),
            Complete("what"),
            Complete(DeliveryRef("018bcfe5-6800-7000-8000-00000000001a", "1")),
        ],  # type: ignore[arg-type]
        enqueue={"q": named("m5"), "next": named("n1", "n2")},
        claim={"queue": "q", "limit": 10},
    )
    assert outcomes(result) == [
        "extended",
        "completed",
        "retry",
        "released",
        "lost_lease",
        "invalid",
        "not_found",
    ]
    assert result.settled[0].lease_until == world.clock.now_ms() + 5 * MINUTE
    assert {name: len(ids) for name, ids in result.enqueued.items()} == {"q": 1, "next": 2}
    assert payloads(result) == [b"m3", b"m5"], "what was released and enqueued is there for the claim"
    assert {delivery.lease for delivery in result.deliveries} != {m1.lease}
    assert world.counts("q") == (0, 1, 3, 0)
    assert [info.payload for info in world.broker.peek("next")] == [b"n1", b"n2"]
    assert world.broker.goodbye("ann") == 3, "the claim belongs to the consumer of the call"


def test_nothing_at_all_is_a_valid_turn(world: World) -> None:
    before = world.store.last_commit
    result = turn(world.broker, "ann")
    assert (result.settled, result.enqueued, result.deliveries) == ([], {}, [])
    assert world.store.last_commit == before


def test_completes_come_before_fails_and_fails_before_releases(world: World) -> None:
    world.broker.enqueue_many("q", named("a", "b"))
    a, b = world.broker.claim("q", limit=2)
    result = turn(world.broker, "ann", settle=[Release(a), Fail(a), Complete(a), Release(b), Fail(b)])
    assert outcomes(result) == ["lost_lease", "lost_lease", "completed", "lost_lease", "retry"], (
        "results are in the order given"
    )
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_message_settled_and_extended_in_one_call_is_settled(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    result = turn(
        world.broker, "ann", settle=[Extend(delivery, "1h", progress=4), Fail(delivery, progress=2)]
    )
    assert outcomes(result) == ["extended", "retry"]
    (info,) = world.broker.peek("q")
    assert info.progress & 6 == 6, "what the extension said was done counts"
    assert world.counts("q") == (1, 0, 0, 0)


def test_in_one_settle_the_first_word_on_a_delivery_counts(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    assert [result.outcome for result in world.broker.settle([Fail(delivery), Complete(delivery)])] == [
        "retry",
        "lost_lease",
    ]
    assert world.counts("q") == (1, 0, 0, 0)


def test_a_failure_and_releases_behind_it_go_on_without_it_in_the_same_call(world: World) -> None:
    world.broker.update_queue("q", retry_in_stream={"cooldown": "1m"})
    world.broker.enqueue_many("q", named("m1", "m2", "m3", stream="s"))
    m1, m2, m3 = world.broker.claim("q", limit=3, max_per_stream=3)
    result = turn(
        world.broker,
        "ann",
        settle=[Release(m3), Release(m2), Fail(m1)],
        claim={"queue": "q", "limit": 9, "max_per_stream": 9},
    )
    assert [item.rule for item in result.settled] == [
        "release.let_by",
        "release.let_by",
        "retry_in_stream.fixed",
    ]
    assert payloads(result) == [b"m2", b"m3"]


def test_what_it_enqueues_into_a_stream_goes_behind_what_it_settles_there(world: World) -> None:
    world.broker.enqueue_many("q", named("a", stream="s"))
    delivery = world.claim_one("q")
    result = turn(
        world.broker,
        "ann",
        settle=[Complete(delivery)],
        enqueue={"q": named("b", stream="s")},
        claim={"queue": "q"},
    )
    assert payloads(result) == [b"b"]
    result = turn(
        world.broker, "ann", settle=[Release(result.deliveries[0])], enqueue={"q": named("c", stream="s")}
    )
    assert [delivery.payload for delivery in world.broker.claim("q", limit=5, max_per_stream=5)] == [
        b"b",
        b"c",
    ]


def test_a_claim_has_all_of_its_options(world: World) -> None:
    world.broker.create_queue("other")
    world.broker.enqueue_many("q", named("a", "b", "c", stream="s"))
    world.broker.enqueue_many("other", named("x"))
    result = turn(
        world.broker,
        "ann",
        claim={"queue": ["q", "other"], "limit": 3, "max_per_stream": 2, "started": False},
    )
    assert sorted(payloads(result)) == [b"a", b"b", b"x"]
    world.clock.advance(seconds=30)
    assert world.broker.find(result.deliveries[0].id).attempts == 0, "unstarted: a release, not a failure"


def test_it_does_not_expire_the_leases_of_others(world: World) -> None:
    world.fill("q", count=2)
    late = world.claim_one("q", consumer="bob")
    timer, world.clock._listeners = world.clock._listeners, []
    world.clock.advance(seconds=31)
    result = turn(world.broker, "ann", claim={"queue": "q", "limit": 5})
    assert late.id not in [delivery.id for delivery in result.deliveries], "only the timer ends a lease"
    assert [result.outcome for result in world.broker.settle([Complete(late)])] == ["completed"]
    world.clock._listeners = timer


def test_an_extension_in_time_wins_over_an_expiry_that_nobody_committed_yet(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q")
    timer, world.clock._listeners = world.clock._listeners, []
    world.clock.advance(seconds=31)
    result = turn(world.broker, "ann", settle=[Extend(delivery, "1m")], claim={"queue": "q"})
    world.clock._listeners = timer
    assert (outcomes(result), result.deliveries) == (["extended"], [])
    world.clock.advance(ms=1)
    assert world.broker.settle([Complete(delivery)])[0].outcome == "completed"


def test_an_extension_after_the_loss_is_refused_and_the_new_holder_unharmed(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q", consumer="ann")
    world.clock.advance(seconds=30)
    holder = world.claim_one("q", consumer="bob")
    result = turn(world.broker, "ann", settle=[Extend(delivery, "1h"), Complete(delivery)])
    assert outcomes(result) == ["lost_lease", "lost_lease"]
    assert world.broker.find(delivery.id).lease_until == holder.lease_until


def test_starts_are_settlements_too(world: World) -> None:
    world.fill("q", count=1)
    delivery = world.claim_one("q", started=False)
    assert outcomes(turn(world.broker, "ann", settle=[Start(delivery)])) == ["started"]
    world.clock.advance(seconds=30)
    assert world.broker.find(delivery.id).attempts == 1


# All or nothing


@pytest.mark.parametrize("with_claim", [False, True])
def test_when_the_commit_fails_nothing_of_it_happened(world: World, with_claim: bool) -> None:
    world.broker.create_queue("next")
    world.broker.enqueue_many("q", named("m1", "m2", "m3", "m4"))
    m1, m2, m3, m4 = world.broker.claim("q", limit=4)
    request = new_place(world.broker)

    def carry_out() -> Any:
        return turn(
            world.broker,
            "ann",
            settle=[Extend(m4, "1h", carry=b"c"), Complete(m1), Fail(m2), Release(m3)],
            enqueue={"next": named("n"), "q": named("m5")},
            claim={"queue": "q", "limit": 9} if with_claim else None,
            place=request,
        )

    def refuse(step: CommitStep) -> None:
        raise errors.StoreFull("here", 0, 1)

    before = world.store.last_commit
    world.store.on_step = refuse
    with pytest.raises(errors.StoreFull):
        carry_out()
    world.store.on_step = ignore
    assert world.store.last_commit == before
    assert (world.counts("q"), world.counts("next")) == ((0, 0, 4, 0), (0, 0, 0, 0))
    result = carry_out()
    assert outcomes(result) == ["extended", "completed", "retry", "released"], (
        "the same request, now carried out"
    )
    assert len(result.deliveries) == (3 if with_claim else 0)
    assert world.counts("next") == (1, 0, 0, 0)


def test_settle_enqueue_and_claim_are_one_commit(world: World) -> None:
    world.fill("q", count=2)
    done, failed = world.broker.claim("q", limit=2)
    place = new_place(world.broker)
    commits: list[list[str]] = []
    world.store.on_step = lambda step: commits.append(step.words)
    turn(
        world.broker,
        "ann",
        settle=[Complete(done), Fail(failed)],
        enqueue={"q": named("a")},
        claim={"queue": "q"},
        place=place,
    )
    (kinds,) = commits
    assert {"complete", "move", "enqueue", "claim", "remember request"} <= set(kinds)


def test_an_exchange_whose_claim_could_not_be_committed_has_done_nothing_and_may_be_repeated(
    world: World,
) -> None:
    world.fill("q", count=2)
    delivery = world.claim_one("q")
    request = new_place(world.broker)

    def refuse_claims(step: CommitStep) -> None:
        if "claim" in step:
            raise errors.StoreFull("here", 0, 1)

    world.store.on_step = refuse_claims
    with pytest.raises(errors.StoreFull):
        turn(world.broker, "ann", settle=[Complete(delivery)], claim={"queue": "q"}, place=request)
    assert world.counts("q") == (1, 0, 1, 0)
    world.store.on_step = ignore
    again = turn(world.broker, "ann", settle=[Complete(delivery)], claim={"queue": "q"}, place=request)
    assert (outcomes(again), len(again.deliveries)) == (["completed"], 1)
    assert world.counts("q") == (0, 0, 1, 0)


class Bad(NamedTuple):
    """Requests beside a good `Settle`, or a place in a session, that spoil the call."""

    requests: Any = ()
    place: Any = None


@pytest.mark.parametrize(
    "bad",
    [
        Bad([EnqueueMany("none", named("x"))]),
        Bad([EnqueueMany("q", named("ok")), EnqueueMany("none", named("x"))]),
        Bad([EnqueueMany("q.dlq", named("x"))]),
        Bad([EnqueueMany("q", [NewMessage("text")])]),  # type: ignore[arg-type]
        Bad([EnqueueMany("q", named("x", delay="-1s"))]),
        Bad([EnqueueMany("full", named("1", "2"))]),
        Bad([Enqueue("full", b"1"), Enqueue("full", b"2")]),
        Bad([EnqueueMany("q", "text")]),  # type: ignore[arg-type]
        Bad([EnqueueMany(None, named("x"))]),  # type: ignore[arg-type]
        Bad([Claim("none")]),
        Bad([Claim("q", wait="1s")]),
        Bad([Claim("q", token="mine")]),
        Bad([Claim("q", limit=0)]),
        Bad([Claim("q", limit=True)]),
        Bad([Claim("q", max_per_stream=0)]),
        Bad([Claim("q", started="yes")]),  # type: ignore[arg-type]
        Bad([Claim("q", consumer="x" * 1000)]),
        Bad([Claim([])]),
        Bad([Claim(5)]),  # type: ignore[arg-type]
        Bad([Claim("q"), Claim("q")]),
        Bad([Settle("text")]),  # type: ignore[arg-type]
        Bad([Settle(None)]),  # type: ignore[arg-type]
        Bad([Settle([5] * 100_001)]),  # type: ignore[list-item]
        Bad([Stats("q")]),
        Bad([Exchange([])]),
        Bad(["claim"]),
        Bad(place={"session": 5, "number": 1}),
        Bad(place={"session": "unknown", "number": 1}),
        Bad(place={"session": "unknown", "number": 0}),
        Bad(place={"session": "unknown", "number": 2, "arrived": 2}),
    ],
    ids=lambda bad: repr(bad)[4:74],
)
def test_a_bad_part_spoils_the_whole_call_and_nothing_of_it_happens(world: World, bad: Bad) -> None:
    world.broker.create_queue("full", max_messages=1)
    world.fill("q", count=2)
    good = Settle([Complete(world.claim_one("q"))])
    before = world.store.last_commit
    call = Exchange([good, *bad.requests])
    with pytest.raises((errors.Rejected, errors.QueueFull)):
        world.broker.do(call) if bad.place is None else world.broker.once(call, **bad.place)
    assert world.store.last_commit == before
    assert world.counts("q") == (1, 0, 1, 0)


@pytest.mark.parametrize("requests", [None, 5, "text", Settle([])])
def test_an_exchange_is_a_list_of_requests(world: World, requests: Any) -> None:
    with pytest.raises(errors.InvalidRequest) as refused:
        world.broker.exchange(requests)
    assert refused.value.field == "requests"


def test_the_answers_are_in_the_order_of_the_requests(world: World) -> None:
    world.fill("q", count=2)
    a, b = world.broker.claim("q", limit=2)
    claimed, first, many, single, last = world.broker.exchange(
        [
            Claim("q", limit=9),
            Settle([Complete(a)]),
            EnqueueMany("q", named("x", "y")),
            Enqueue("q", b"z"),
            Settle([Fail(b, dead=True), Complete(a)]),
        ]
    )
    assert [result.outcome for result in first] == ["completed"]
    assert [result.outcome for result in last] == ["dead", "lost_lease"]
    assert [delivery.id for delivery in claimed] == [*many, single]


def test_enqueues_of_one_exchange_into_one_queue_see_each_others_dedup_keys(world: World) -> None:
    first, again = world.broker.exchange(
        [Enqueue("q", b"x", dedup_key="d"), EnqueueMany("q", named("x", dedup_key="d"))]
    )
    assert again == [first]
    assert world.counts("q") == (1, 0, 0, 0)


def test_nothing_that_is_audited_can_be_part_of_an_exchange() -> None:
    assert not any(kind.audited or kind.shows_messages for kind in ACCEPTED)


# The same request again


@pytest.mark.parametrize("restart", [False, True], ids=["", "after a restart"])
def test_the_same_request_again_gives_the_same_answers_and_has_no_second_effect(
    world: World, restart: bool
) -> None:
    world.broker.enqueue_many("q", named("m1", "m2", "m3", "m4"))
    m1, m2, m3, m4 = world.broker.claim("q", limit=4)
    work: dict[str, Any] = {
        "settle": [
            Extend(m4, "5m"),
            Complete(m1),
            Fail(m2, retry_in="1h"),
            Release(m3),
            Complete(DeliveryRef(m1.id, "1")),
            Complete(5),
        ],  # type: ignore[arg-type]
        "enqueue": {"q": named("m5", "m6")},
        "claim": {"queue": "q", "limit": 2},
        "place": new_place(world.broker),
    }
    first = turn(world.broker, "ann", **work)
    counts, commit = world.counts("q"), world.store.last_commit
    if restart:
        world.restart()
    world.clock.advance(seconds=5)
    again = turn(world.broker, "ann", **work)
    assert again.settled == first.settled
    assert again.enqueued == first.enqueued
    assert [(delivery.id, delivery.lease) for delivery in again.deliveries] == [
        (delivery.id, delivery.lease) for delivery in first.deliveries
    ]
    assert world.counts("q") == counts
    assert restart or world.store.last_commit == commit
    assert world.broker.find(m2.id).attempts == 1


def test_of_the_claim_the_same_request_gives_what_is_still_leased(world: World) -> None:
    world.broker.enqueue_many("q", named("a", "b", "c", "d"))
    work: dict[str, Any] = {"claim": {"queue": "q", "limit": 3}, "place": new_place(world.broker)}
    a, b, c = turn(world.broker, "ann", **work).deliveries
    world.broker.settle([Complete(a), Release(b)])
    assert payloads(turn(world.broker, "ann", **work)) == [b"c"]
    world.broker.settle([Complete(c)])
    assert payloads(turn(world.broker, "ann", **work)) == [], "not other messages instead"
    assert world.counts("q") == (2, 0, 0, 0)


def test_a_claim_that_found_nothing_finds_nothing_again_under_its_number(world: World) -> None:
    work: dict[str, Any] = {"claim": {"queue": "q"}, "place": new_place(world.broker)}
    assert turn(world.broker, "ann", **work).deliveries == []
    world.fill("q", count=1)
    assert turn(world.broker, "ann", **work).deliveries == [], "the first answer was: nothing"
    assert len(turn(world.broker, "ann", claim={"queue": "q"}, place=new_place(world.broker)).deliveries) == 1


def test_another_session_is_another_request(world: World) -> None:
    for _ in range(2):
        turn(world.broker, "ann", enqueue={"q": named("x")}, place=new_place(world.broker))
    assert world.counts("q") == (2, 0, 0, 0)


def test_without_a_session_nothing_is_remembered(world: World) -> None:
    for _ in range(2):
        turn(world.broker, "ann", enqueue={"q": named("x")})
    assert world.counts("q") == (2, 0, 0, 0)


def test_an_answer_outlives_the_queue_it_was_about(world: World) -> None:
    world.broker.create_queue("short")
    work: dict[str, Any] = {
        "enqueue": {"short": named("x")},
        "claim": {"queue": "short"},
        "place": new_place(world.broker),
    }
    first = turn(world.broker, "ann", **work)
    world.broker.delete_queue("short")
    again = turn(world.broker, "ann", **work)
    assert (again.enqueued, again.deliveries) == (first.enqueued, [])


def test_dedup_in_an_exchange_gives_the_first_id(world: World) -> None:
    first = turn(world.broker, "ann", enqueue={"q": named("x", dedup_key="d")}).enqueued
    assert turn(world.broker, "ann", enqueue={"q": named("x", dedup_key="d")}).enqueued == first
    assert world.counts("q") == (1, 0, 0, 0)


# Answers that have arrived


def test_what_has_arrived_is_forgotten_in_the_same_commit(world: World) -> None:
    first = new_place(world.broker)
    turn(world.broker, "ann", enqueue={"q": named("a")}, place=first)
    commits: list[list[str]] = []
    world.store.on_step = lambda step: commits.append(step.words)
    turn(world.broker, "ann", enqueue={"q": named("b")}, place=next_place(first))
    assert len(commits) == 1
    assert {"enqueue", "remember request", "forget requests"} == set(commits[0])
    assert stored_requests(world.store) == {2}


@pytest.mark.parametrize("slow", ["enqueue", "settle"])
def test_a_late_copy_of_a_request_whose_answer_has_arrived_is_refused_and_not_carried_out(
    world: World, slow: str
) -> None:
    """The first copy is held up in a hook; a second one is carried out and answered meanwhile, and the caller
    says so.
    """
    world.broker.update_queue(
        "q",
        on_enqueue="function on_enqueue(m) return {} end",
        on_failure="function on_failure(m) return {} end",
    )
    world.fill("q", count=1)
    failed = Fail(world.claim_one("q"))
    work: dict[str, Any] = {
        "place": new_place(world.broker),
        **({"enqueue": {"q": named("x")}} if slow == "enqueue" else {"settle": [failed]}),
    }
    hooks = hooks_of(world.broker)
    name = "on_enqueue_columns" if slow == "enqueue" else "on_failure"
    ask = getattr(hooks, name)
    copies = 0

    def overtaken(*call: Any) -> Any:
        nonlocal copies
        copies += 1
        if copies == 1:
            turn(world.broker, "ann", **work)
            turn(world.broker, "ann", place=next_place(work["place"]))
        return ask(*call)

    setattr(hooks, name, overtaken)
    with pytest.raises(errors.RequestExpired):
        turn(world.broker, "ann", **work)
    assert world.counts("q") == ((1, 0, 1, 0) if slow == "enqueue" else (1, 0, 0, 0))
    with pytest.raises(errors.RequestExpired):
        turn(world.broker, "ann", **work)
    assert world.counts("q") == ((1, 0, 1, 0) if slow == "enqueue" else (1, 0, 0, 0))
