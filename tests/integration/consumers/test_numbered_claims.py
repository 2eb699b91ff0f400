"""Claims by number: the same set in the same order until they are closed, one after the other, without gaps."""

from __future__ import annotations

import pytest

from fairlead import Complete, Fail, NewMessage, Release
from fairlead.errors import (
    ClaimClosed,
    ClaimNotNext,
    ConsumerNotFound,
    InvalidRequest,
    QueueNotFound,
    StaleConsumer,
    StoreFull,
)
from fairlead.model.consumer import NumberedClaim
from fairlead.testing import CommitStep, laws
from fairlead.testing.between import between_steps
from fairlead.testing.engine import forget_bodies, waiting_claims
from fairlead.testing.sizes import size
from fairlead.verbs.consumers import ConsumersRead
from tests.integration.consumers.scene import Reader, payloads, shown
from tests.integration.world import Background, World, wait_until


def test_the_number_in_hand_gives_the_same_messages_in_the_same_order_as_often_as_asked(world: World) -> None:
    world.fill("q", key="a", count=5)
    world.fill("q", key="b", count=5)
    reader = Reader(world)
    first = reader.claim(1, limit=7)
    assert first == NumberedClaim(1, 7, 7)
    seen = shown(reader.read(1))
    assert [deliveries for *_, deliveries, _ in seen] == [1] * 7
    assert reader.claim(1, limit=10, max_bytes=1) == first
    assert shown(reader.read(1)) == seen
    world.restart()
    assert reader.claim(1) == first
    assert shown(reader.read(1)) == seen
    assert len({lease for *_, lease in seen}) == 1


def test_nobody_else_gets_what_is_in_hand_and_its_lease_does_not_run_out(world: World) -> None:
    world.fill("q", count=3)
    reader = Reader(world, ttl="30d")
    seen = shown(reader.take(1))
    world.clock.advance(ms=20 * 24 * 3600 * 1000)
    assert world.broker.claim("q", limit=10) == []
    world.restart(away_ms=24 * 3600 * 1000)
    world.broker.run_due()
    assert world.broker.claim("q", limit=10) == []
    assert shown(reader.read(1)) == seen
    assert world.counts("q") == (0, 0, 3, 0)


def test_an_empty_claim_makes_nothing(world: World) -> None:
    reader = Reader(world)
    before = world.broker.consumers.show("etl", "q")
    assert reader.claim(1) == NumberedClaim(1, 0, 0)
    assert world.broker.consumers.show("etl", "q") == before
    world.fill("q", count=1)
    assert reader.claim(1).count == 1


def test_a_claim_waits_for_its_first_message(world: World) -> None:
    reader = Reader(world)
    waiting = Background(lambda: reader.claim(1, wait="30s"))
    wait_until(lambda: waiting_claims(world.broker, "q") > 0)
    world.fill("q", count=2)
    assert waiting.result().count == 2


def test_who_waits_is_told_when_another_takes_the_consumer_over(world: World) -> None:
    reader = Reader(world)
    waiting = Background(lambda: reader.claim(1, wait="30s"))
    wait_until(lambda: waiting_claims(world.broker, "q") > 0)
    world.broker.consumers.register("etl", "q")
    world.fill("q", count=2)
    with pytest.raises(StaleConsumer):
        waiting.result()
    assert world.counts("q") == (2, 0, 0, 0)


def test_numbers_have_no_gaps_and_do_not_come_again(world: World) -> None:
    world.fill("q", count=4)
    reader = Reader(world)
    with pytest.raises(ClaimNotNext):
        reader.claim(2)
    reader.claim(1, limit=2)
    with pytest.raises(ClaimNotNext, match="take claim 1 first"):
        reader.claim(2)
    with pytest.raises(ClaimNotNext):
        reader.read(2)
    reader.close(1)
    with pytest.raises(ClaimClosed, match="continue with claim 2"):
        reader.claim(1)
    with pytest.raises(ClaimNotNext):
        reader.read(2)
    assert reader.claim(2).count == 2


def test_a_new_generation_goes_on_with_the_claim_in_hand_and_fences_the_old_one_off(world: World) -> None:
    world.fill("q", count=3)
    old, new = Reader(world), Reader(world)
    assert new.generation == old.generation + 1
    new.claim(1)
    half_read = world.broker.consumers.read("etl", "q", new.generation, 1)
    for call in (
        lambda: old.claim(1),
        lambda: old.read(1),
        lambda: old.record(1, []),
        lambda: old.choose(1, []),
        lambda: old.close(1),
    ):
        with pytest.raises(StaleConsumer, match=f"expected generation {new.generation}"):
            call()
    with pytest.raises(StaleConsumer):
        world.broker.consumers.heartbeat("etl", "q", old.generation)
    with pytest.raises(StaleConsumer):
        world.broker.consumers.ceiling("etl", "q", old.generation)
    newest = Reader(world)
    with pytest.raises(StaleConsumer):
        list(half_read)
    assert newest.claim(1).count == 3


def test_the_same_name_in_another_queue_is_another_consumer(world: World) -> None:
    world.broker.create_queue("other")
    for queue, count in (("q", 3), ("other", 2)):
        world.fill(queue, count=count)
    here, there = Reader(world), Reader(world, queue="other")
    assert (here.claim(1).count, there.claim(1).count) == (3, 2)
    assert here.close(1).settled == {"completed": 3}
    world.restart()
    (message,) = world.broker.peek("other", where="leased", limit=1)
    assert "consumer release other etl" in str(world.broker.explain(message.id))
    assert [delivery.queue for delivery in there.read(1)] == ["other", "other"]
    assert [(info.queue, info.name, info.open) for info in world.broker.consumers.list()] == [
        ("other", "etl", 1),
        ("q", "etl", 0),
    ]
    world.broker.consumers.drop("etl", "q")
    assert world.broker.consumers.release("etl", "other") == 2
    assert Reader(world).generation > here.generation


def test_an_older_generation_of_a_dropped_consumer_never_counts_again(world: World) -> None:
    old = Reader(world)
    for _ in range(3):
        old.register()
    world.broker.consumers.drop("etl", "q")
    new = Reader(world)
    assert new.generation > old.generation
    with pytest.raises(StaleConsumer):
        old.claim(1)


def test_unknown_names_and_queues_are_said_so(world: World) -> None:
    for call in (
        lambda: world.broker.consumers.claim("nobody", "q", 1, 1),
        lambda: world.broker.consumers.show("nobody", "q"),
        lambda: world.broker.consumers.release("nobody", "q"),
        lambda: world.broker.consumers.drop("nobody", "q"),
    ):
        with pytest.raises(ConsumerNotFound, match=r"consumers\.register"):
            call()
    with pytest.raises(QueueNotFound):
        world.broker.consumers.register("etl", "missing")


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("name", lambda c: c.register("", "q")),
        ("name", lambda c: c.register("x" * 257, "q")),
        ("queue", lambda c: c.show("etl", "no such name")),
        ("queue", lambda c: c.claim("etl", 1, 1, 1)),
        ("ttl", lambda c: c.register("etl", "q", ttl="999ms")),
        ("ttl", lambda c: c.register("etl", "q", ttl=5)),
        ("generation", lambda c: c.claim("etl", "q", "1", 1)),
        ("number", lambda c: c.claim("etl", "q", 1, 0)),
        ("limit", lambda c: c.claim("etl", "q", 1, 1, limit=100_001)),
        ("max_bytes", lambda c: c.claim("etl", "q", 1, 1, max_bytes=256 * 1024 * 1024 + 1)),
        ("wait", lambda c: c.claim("etl", "q", 1, 1, wait=3)),
        ("up_to", lambda c: c.claim("etl", "q", 1, 1, up_to=-1)),
        ("slices", lambda c: c.read("etl", "q", 1, 1, slices=0)),
        ("slice", lambda c: c.read("etl", "q", 1, 1, slice=2, slices=2)),
        ("items", lambda c: c.record("etl", "q", 1, 1, "abc")),
        ("items", lambda c: c.record("etl", "q", 1, 1, [object()])),
        ("part", lambda c: c.record("etl", "q", 1, 1, [], part=3)),
        ("parts", lambda c: c.choose("etl", "q", 1, 1, "abc")),
        ("parts", lambda c: c.choose("etl", "q", 1, 1, [""])),
        ("add", lambda c: c.choose("etl", "q", 1, 1, [], add=1)),
        ("up_to", lambda c: c.close("etl", "q", 1, None)),
    ],
)
def test_what_cannot_be_meant_so_is_refused_by_its_name(
    memory_world: World, field: str, call: object
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        call(memory_world.broker.consumers)  # type: ignore[operator]
    assert refused.value.field == field


# What is picked


def test_keys_share_a_numbered_claim_as_they_share_any(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"a", fairness_key="a", weight=3) for _ in range(40)])
    world.broker.enqueue_many("q", [NewMessage(b"b", fairness_key="b") for _ in range(40)])
    taken = payloads(Reader(world).take(1, limit=20))
    assert (taken.count(b"a"), taken.count(b"b")) == (15, 5)


def test_tokens_are_paid_for_and_a_paused_queue_gives_nothing(world: World) -> None:
    world.broker.config.set("throttle:t:burst", "2")
    world.broker.config.set("throttle:t:rate", "1")
    world.fill("q", count=5, throttle_keys=["t"])
    reader = Reader(world)
    world.broker.pause("q")
    assert reader.claim(1).count == 0
    world.broker.resume("q")
    assert reader.claim(1).count == 2
    reader.close(1)
    assert reader.claim(2).count == 0
    world.clock.advance(ms=1000)
    assert reader.claim(2).count == 1


def test_limits_on_what_is_unsettled_hold_for_numbered_claims_too(world: World) -> None:
    world.broker.update_queue("q", max_unsettled_per_key=2, max_unsettled_per_consumer=3)
    world.fill("q", key="a", count=5)
    world.fill("q", key="b", count=5)
    reader = Reader(world)
    assert reader.claim(1).count == 3
    reader.close(1)
    assert reader.claim(2).count == 3


def test_bytes_end_a_claim_and_one_message_always_fits(world: World) -> None:
    world.fill("q", count=10, payload=b"x" * 1000)
    reader = Reader(world)
    assert reader.claim(1, max_bytes=1) == NumberedClaim(1, 1, 1000)
    reader.close(1)
    second = reader.claim(2, max_bytes=3500)
    assert second.count in (4, 5)
    assert second.bytes == 1000 * second.count


def test_a_stream_is_taken_in_order_and_whole_though_the_claim_is_put_together_in_pieces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), 4)
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="long") for n in range(11)])
    world.broker.enqueue_many("q", [NewMessage(b"x%d" % n, stream=f"s{n}") for n in range(3)])
    world.fill("q", count=3)
    taken = Reader(world).take(1)
    assert [d.payload for d in taken if d.stream == "long"] == [b"%d" % n for n in range(11)]
    assert len(taken) == 17
    assert world.counts("q") == (0, 0, 17, 0)


@pytest.mark.parametrize("piece", [2, 3, 100])
def test_a_claim_may_take_a_few_of_each_stream_so_that_more_of_them_find_room(
    world: World, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), piece)
    world.broker.enqueue_many(
        "q", [NewMessage(b"%d" % n, stream=stream) for stream in "abc" for n in range(7)]
    )
    reader = Reader(world)
    for number, expected in ((1, [b"0", b"1", b"2"]), (2, [b"3", b"4", b"5"]), (3, [b"6"])):
        taken = reader.take(number, max_per_stream=3)
        assert {
            stream: [d.payload for d in taken if d.stream == stream] for stream in "abc"
        } == dict.fromkeys("abc", expected)
        reader.close(number)
    assert reader.claim(4).count == 0


def test_few_of_a_stream_are_few_also_where_a_crash_broke_its_run_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), 2)
    world.broker.enqueue_many(
        "q", [NewMessage(b"%d" % n, stream=stream) for stream in "ab" for n in range(7)]
    )
    reader = Reader(world)
    pieces: list[object] = []

    def crash_at_the_second(step: CommitStep) -> None:
        pieces.extend(step.changes("fill numbered claim"))
        if len(pieces) == 2:
            raise StoreFull("here", 0, 1)

    world.store.on_step = crash_at_the_second
    with pytest.raises(StoreFull):
        reader.claim(1, max_per_stream=3)
    world.restart()
    assert payloads(reader.take(1, max_per_stream=3)) == [b"0", b"1", b"2"] * 2


def test_a_stream_goes_on_where_the_claim_before_ended_and_is_held_up_until_it_is_closed(
    world: World,
) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(6)])
    reader = Reader(world)
    assert payloads(reader.take(1, limit=4)) == [b"0", b"1", b"2", b"3"]
    assert world.broker.claim("q", limit=10, max_per_stream=10) == []
    reader.close(1)
    assert payloads(reader.take(2)) == [b"4", b"5"]


def test_a_claim_that_a_crash_broke_off_is_gone_on_with_under_its_number(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), 3)
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(10)])
    world.fill("q", count=4)
    reader = Reader(world)
    pieces: list[object] = []

    def crash_at_the_third(step: CommitStep) -> None:
        pieces.extend(step.changes("fill numbered claim"))
        if len(pieces) == 3:
            raise StoreFull("here", 0, 1)

    world.store.on_step = crash_at_the_third
    with pytest.raises(StoreFull):
        reader.claim(1)
    with pytest.raises(ClaimNotNext):
        reader.read(1)
    with pytest.raises(ClaimNotNext):
        reader.close(1)
    assert world.broker.consumers.show("etl", "q").messages == 6
    world.restart()
    assert laws(world.store) == []
    reader.register()
    assert reader.claim(1).count == 14
    taken = reader.read(1)
    assert [d.payload for d in taken if d.stream] == [b"%d" % n for n in range(10)]


def test_a_run_that_passes_one_that_waits_goes_no_further_after_a_crash_than_it_may(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), 1)
    world.broker.update_queue("q", retry_in_stream={"policy": "fixed", "cooldown": "1m"})
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(4)])
    waits, *let_by = world.broker.claim("q", limit=3, max_per_stream=3)
    world.broker.settle([Fail(waits), *[Release(delivery) for delivery in let_by]])
    reader = Reader(world)
    pieces: list[object] = []

    def crash_at_the_second(step: CommitStep) -> None:
        pieces.extend(step.changes("fill numbered claim"))
        if len(pieces) == 2:
            raise StoreFull("here", 0, 1)

    world.store.on_step = crash_at_the_second
    with pytest.raises(StoreFull):
        reader.claim(1)
    world.restart()
    assert payloads(reader.take(1)) == [b"1", b"2"]


def test_two_who_ask_for_the_same_number_at_once_get_the_same_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), 5)
    world.fill("q", count=200)
    reader = Reader(world)
    calls = [Background(lambda: reader.claim(1)) for _ in range(3)]
    assert {call.result() for call in calls} == {NumberedClaim(1, 200, 200)}
    assert len({d.id for d in reader.read(1)}) == 200


def test_a_claim_that_another_call_has_sealed_meanwhile_is_not_added_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), 2)
    world.fill("q", count=20)
    reader = Reader(world)
    others = iter([lambda: reader.claim(1, limit=5)])
    counts: list[int] = []

    def overtake() -> None:
        for claim in others:
            counts.append(claim().count)

    with between_steps(world.broker, overtake):
        slow = reader.claim(1, limit=20)
    assert (counts, slow.count) == ([5], 5)
    assert len(reader.read(1)) == 5


def test_a_larger_claim_lets_others_in_between_its_pieces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("claim_piece_messages"), 5)
    world.fill("q", count=20)
    reader = Reader(world)
    most: list[int] = []
    world.store.on_step = lambda step: most.extend(
        change.count for change in step.changes("fill numbered claim")
    )
    assert reader.claim(1).count == 20
    assert most == [5, 5, 5, 5]


# Ceilings


def test_nothing_that_came_after_the_ceiling_is_taken_up_to_it(world: World) -> None:
    world.fill("q", key="a", count=3, payload=b"before")
    world.fill("q", key="b", count=2, payload=b"before", throttle_keys=["t"])
    reader = Reader(world)
    ceiling = world.broker.consumers.ceiling("etl", "q", reader.generation)
    world.fill("q", key="a", count=3, payload=b"after")
    world.fill("q", key="c", count=3, payload=b"after")
    assert payloads(reader.take(1, up_to=ceiling)) == [b"before"] * 5
    reader.close(1)
    assert reader.claim(2, up_to=ceiling).count == 0
    assert payloads(reader.take(2)) == [b"after"] * 6


def test_a_stream_stops_at_the_ceiling_and_a_retry_stands_behind_it(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(3)])
    world.fill("q", count=1, payload=b"fails")
    reader = Reader(world)
    ceiling = world.broker.consumers.ceiling("etl", "q", reader.generation)
    world.broker.enqueue("q", b"late", stream="s")
    taken = reader.take(1, up_to=ceiling)
    assert sorted(payloads(taken)) == [b"0", b"1", b"2", b"fails"]
    reader.record(1, [Fail(delivery) for delivery in taken if delivery.payload == b"fails"])
    assert reader.close(1).settled == {"completed": 3, "retry": 1}
    assert reader.claim(2, up_to=ceiling).count == 0
    assert sorted(payloads(reader.take(2))) == [b"fails", b"late"]


def test_a_ceiling_leaves_the_order_of_what_it_holds_back_alone(world: World) -> None:
    world.fill("q", key="a", count=1)
    reader = Reader(world)
    ceiling = world.broker.consumers.ceiling("etl", "q", reader.generation)
    ids = [world.fill("q", key=key, count=2) for key in ("b", "c", "a")]
    reader.take(1, up_to=ceiling)
    reader.close(1)
    got = [world.claim_one("q").id for _ in range(6)]
    assert [message_id for message_id in got if message_id in ids[0]] == ids[0]
    assert {*got[:3]} == {ids[0][0], ids[1][0], ids[2][0]}


# Slices


def test_slices_share_a_claim_without_overlap_and_a_stream_sits_in_one_of_them(world: World) -> None:
    world.broker.enqueue_many(
        "q", [NewMessage(b"%d" % n, stream=f"s{n % 9}" if n % 2 else None) for n in range(300)]
    )
    reader = Reader(world)
    whole = shown(reader.take(1))
    slices = [shown(reader.read(1, slice=at, slices=4)) for at in range(4)]
    assert sorted(row for part in slices for row in part) == sorted(whole)
    assert all(part == [row for row in whole if row in part] for part in slices)
    assert all(len(part) > 20 for part in slices)
    by_stream = [{stream for _, _, stream, *_ in part if stream} for part in slices]
    assert sum(len(streams) for streams in by_stream) == 9


def test_a_claim_is_read_in_pages_of_so_many_bytes(world: World) -> None:
    world.fill("q", count=30, payload=b"x" * (1024 * 1024))
    reader = Reader(world)
    reader.claim(1, max_bytes=256 * 1024 * 1024)
    forget_bodies(world.broker)
    pages = world.broker.do(ConsumersRead("etl", "q", reader.generation, 1))
    assert [len(page) for page in pages] == [2] * 15, "2 MiB a page"


# What is shown


def test_consumers_are_listed_with_what_they_have_in_hand(world: World) -> None:
    world.fill("q", count=3, payload=b"12345")
    reader, other = Reader(world), Reader(world, name="b")
    reader.claim(1, limit=2)
    first, second = world.broker.consumers.list()
    assert (first.name, first.open, first.messages, first.bytes) == ("b", 0, 0, 0)
    assert (second.name, second.queue, second.open, second.messages, second.bytes, second.last_closed) == (
        "etl",
        "q",
        1,
        2,
        10,
        0,
    )
    assert second.expires_at == world.clock.now_ms() + 7 * 24 * 3600 * 1000
    reader.close(1)
    shown_now = world.broker.consumers.show("etl", "q")
    assert (shown_now.open, shown_now.messages, shown_now.last_closed, shown_now.lost) == (0, 0, 1, 0)
    assert other.claim(1).count == 1


def test_every_call_with_the_current_generation_shows_that_the_consumer_lives(world: World) -> None:
    world.fill("q", count=2)
    reader = Reader(world, ttl="10s")
    calls = [
        lambda: reader.claim(1),
        lambda: reader.claim(1),
        lambda: reader.read(1),
        lambda: reader.record(1, [Complete(delivery) for delivery in reader.read(1)]),
        lambda: reader.choose(1, ["p"]),
        lambda: world.broker.consumers.heartbeat("etl", "q", reader.generation),
        lambda: reader.register(),
    ]
    for call in calls:
        world.clock.advance(ms=9000)
        call()
        assert world.broker.consumers.show("etl", "q").seen_at == world.clock.now_ms()
    world.clock.advance(ms=9000)
    assert world.broker.consumers.show("etl", "q").open == 1


def test_a_heartbeat_rewrites_no_lease(world: World) -> None:
    world.fill("q", count=5)
    reader = Reader(world)
    reader.claim(1)
    kinds: list[type] = []
    world.store.on_step = lambda step: kinds.extend(step.words)
    world.broker.consumers.heartbeat("etl", "q", reader.generation)
    assert kinds == ["save consumer"]
