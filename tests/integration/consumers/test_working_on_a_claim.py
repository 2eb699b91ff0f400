"""A claim that is worked on message by message: what was begun, how far it came, what is left, and who took
it up.
"""

from __future__ import annotations

import pytest

from fairlead import Complete, Extend, Fail, NewMessage, Release, Start
from fairlead.errors import ClaimClosed, InvalidRequest, StaleConsumer, StaleSlice, StoreFull
from fairlead.model.failure import FailureReason
from fairlead.model.limits import MAX_CARRY_BYTES
from fairlead.testing import CommitStep
from fairlead.testing.sizes import size
from fairlead.testing.steps import ignore
from fairlead.testing.stored import stored_count
from tests.integration.consumers.scene import Reader, payloads
from tests.integration.world import World


def worker(world: World, count: int = 4, stream: str | None = None, **options: str) -> Reader:
    """A consumer that gives back what it does not speak of, and so many messages: b"0", b"1", ..."""
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream=stream) for n in range(count)])
    return Reader(world, default_outcome="release", **options)


# What nobody speaks of


def test_what_nobody_spoke_of_goes_back_to_its_place(world: World) -> None:
    reader = worker(world, 4)
    a, _, _, d = reader.take(1)
    reader.record(1, [Complete(a), Fail(d, dead=True)])
    world.broker.enqueue("q", b"later")
    world.restart()
    assert reader.close(1).settled == {"completed": 1, "released": 2, "dead": 1}
    back = world.broker.claim("q", limit=10)
    assert [(one.payload, one.attempts, one.deliveries) for one in back] == [
        (b"1", 0, 1),
        (b"2", 0, 1),
        (b"later", 0, 1),
    ]


def test_a_stream_goes_on_behind_what_failed_in_its_order(world: World) -> None:
    reader = worker(world, 4, stream="s")
    taken = reader.take(1)
    reader.record(1, [Complete(taken[0]), Fail(taken[1], retry_in="1m")])
    assert reader.close(1).settled == {"completed": 1, "retry": 1, "released": 2}
    assert world.broker.claim("q", limit=10, max_per_stream=10) == []
    world.clock.advance(ms=60_000)
    assert payloads(world.broker.claim("q", limit=10, max_per_stream=10)) == [b"1", b"2", b"3"]


def test_what_becomes_of_the_unspoken_is_shown_and_stays_as_it_is_while_a_claim_is_open(world: World) -> None:
    reader = worker(world, 3)
    consumers = world.broker.consumers
    assert (consumers.show("etl", "q").default_outcome, consumers.register("audit", "q").default_outcome) == (
        "release",
        "complete",
    )
    reader.claim(1, limit=1)
    with pytest.raises(InvalidRequest, match="'release' while claim 1 is open: close it, or let go of it"):
        consumers.register("etl", "q")
    with pytest.raises(InvalidRequest, match="'complete' or 'release'"):
        consumers.register("etl", "q", default_outcome="fail")  # type: ignore[arg-type]
    reader.register()
    reader.close(1)
    reader.options = {}
    reader.register()
    reader.claim(2)
    assert reader.close(2).settled == {"completed": 3}


def test_what_goes_back_does_so_in_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("release_step_messages"), 3)
    reader = worker(world, 10)
    taken = reader.take(1)
    reader.record(1, [Complete(taken[5])])
    steps: list[int] = []
    world.store.on_step = lambda step: steps.append(step.count("move"))
    assert reader.close(1).settled == {"released": 9, "completed": 1}
    assert steps == [3, 3, 3]


def test_a_queue_that_keeps_what_is_completed_keeps_the_progress_told_with_it(world: World) -> None:
    world.broker.update_queue("q", retain_completed="1h")
    reader = worker(world, 3)
    a, b, _ = reader.take(1)
    reader.record(1, [Extend(b, progress=1), Complete(a, progress=4), Complete(b, progress=2)])
    assert reader.close(1).settled == {"completed": 2, "released": 1}
    kept = [world.broker.find(one.id) for one in (a, b)]
    assert [(one.where, int(one.progress)) for one in kept] == [("done", 4), ("done", 3)]


def test_a_release_that_asks_to_pass_is_let_by_one_that_failed_and_needs_no_leave_where_all_before_it_is_done(
    world: World,
) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s" if n < 3 else "t") for n in range(5)])
    reader = Reader(world, default_outcome="release")
    s0, s1, s2, t0, t1 = sorted(reader.take(1), key=lambda one: one.payload)
    reader.record(1, [Fail(s0, retry_in="1m"), Complete(s1), Release(s2), Complete(t0), Release(t1)])
    assert reader.close(1).settled == {"completed": 2, "retry": 1, "released": 2}
    assert sorted(payloads(world.broker.claim("q", limit=10))) == [b"2", b"4"]


def test_only_what_had_begun_counts_as_handed_out_when_it_goes_back_unspoken(world: World) -> None:
    world.broker.update_queue("q", max_deliveries=2)
    reader = worker(world, 2)
    for number in (1, 2):
        first, second = reader.take(number)
        assert (first.deliveries, second.deliveries) == (number, 1)
        reader.record(number, [Start(first)])
        world.restart()
        assert reader.close(number).settled == (
            {"released": 2} if number == 1 else {"dead": 1, "released": 1}
        )
    reader.claim(3)
    assert reader.close(3).settled == {"released": 1}


# What is left to do


def test_what_has_an_outcome_is_left_out(world: World) -> None:
    reader = worker(world, 5)
    taken = reader.take(1)
    reader.record(1, [Complete(taken[0]), Fail(taken[1]), Release(taken[3]), Start(taken[2])])
    assert payloads(reader.read(1, unsettled=True)) == [b"2", b"4"]
    assert payloads(reader.read(1)) == [b"0", b"1", b"2", b"3", b"4"]
    world.restart()
    assert payloads(reader.read(1, unsettled=True)) == [b"2", b"4"]


@pytest.mark.parametrize("stop", [Fail, Release])
def test_what_is_behind_a_failure_or_a_release_in_its_stream_is_left_out(
    world: World, stop: type[Fail | Release]
) -> None:
    world.broker.enqueue_many(
        "q",
        [NewMessage(b"%d" % n, stream=stream) for n, stream in enumerate(["s", "t", "s", None, "t", "s"])],
    )
    reader = Reader(world, default_outcome="release")
    reader.claim(1)
    by_payload = {one.payload: one for one in reader.read(1)}
    reader.record(1, [stop(by_payload[b"2"])])
    assert sorted(payloads(reader.read(1, unsettled=True))) == [b"0", b"1", b"3", b"4"]
    reader.record(1, [Complete(by_payload[b"2"])])
    assert sorted(payloads(reader.read(1, unsettled=True))) == [b"0", b"1", b"3", b"4", b"5"]


def test_what_gets_its_outcome_while_a_reader_is_on_its_way_is_not_read_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("read_page_messages"), 2)
    reader = worker(world, 7, stream="s")
    taken = reader.take(1)
    reader.record(1, [Complete(one) for one in taken[:4]])
    pages = world.broker.consumers.read_pages("etl", "q", reader.generation, 1, unsettled=True)
    assert payloads(next(pages)) == [b"4", b"5"]
    reader.record(1, [Fail(taken[4])])
    assert list(pages) == []


def test_a_reader_that_begins_behind_a_message_gets_what_is_left_behind_it(world: World) -> None:
    reader = worker(world, 6)
    taken = reader.take(1)
    reader.record(1, [Complete(taken[0]), Complete(taken[2]), Complete(taken[4])])
    for at, left in ((2, [b"3", b"5"]), (3, [b"5"])):
        pages = world.broker.consumers.read_pages(
            "etl", "q", reader.generation, 1, unsettled=True, after=taken[at].message.id
        )
        assert [payloads(page) for page in pages] == [left]
    with pytest.raises(InvalidRequest, match="a message of claim 1"):
        world.broker.consumers.read_pages("etl", "q", reader.generation, 1, after=b"?" * 16)


def test_only_those_who_give_back_what_they_do_not_speak_of_may_leave_out_what_is_settled(
    world: World,
) -> None:
    world.fill("q", count=1)
    reader = Reader(world)
    reader.claim(1)
    with pytest.raises(InvalidRequest, match="registered with default_outcome='release'"):
        reader.read(1, unsettled=True)


def test_what_is_said_under_a_part_is_left_to_do_until_the_part_is_chosen(world: World) -> None:
    reader = worker(world, 3)
    a, b, _ = reader.take(1)
    reader.choose(1, ["p"])
    assert len(reader.read(1, unsettled=True)) == 3
    reader.record(1, [Complete(a)], "p")
    reader.record(1, [Complete(b)], "q")
    assert payloads(reader.read(1, unsettled=True)) == [b"1", b"2"]
    reader.choose(1, ["q"])
    assert payloads(reader.read(1, unsettled=True)) == [b"0", b"2"]


# What was begun


def test_what_was_begun_and_left_has_failed_when_its_slice_is_begun_again(world: World) -> None:
    reader = worker(world, 4)
    a, b, c, _ = reader.take(1)
    assert reader.begin_slice(1) == (False, 0)
    reader.record(1, [Start(a), Start(b), Start(c), Complete(b)])
    world.restart()
    reader.register()
    assert reader.begin_slice(1) == (True, 2)
    assert payloads(reader.read(1, unsettled=True)) == [b"3"]
    assert reader.begin_slice(1) == (True, 0)
    assert reader.close(1).settled == {"completed": 1, "retry": 2, "released": 1}
    back, *failed = world.broker.claim("q", limit=10)
    assert (back.payload, back.attempts) == (b"3", 0)
    for one in failed:
        assert (one.attempts, FailureReason(one.failures[-1].reason)) == (1, FailureReason.TIMEOUT_EXCEEDED)
        assert one.failures[-1].error == "the process that ran it ended before it said how it went"


def test_a_start_is_no_outcome_and_replaces_none(world: World) -> None:
    reader = worker(world, 3)
    a, b, _ = reader.take(1)
    reader.record(1, [Complete(a), Start(a), Start(b)])
    reader.record(1, [Start(a)])
    assert payloads(reader.read(1, unsettled=True)) == [b"1", b"2"]
    assert reader.close(1).settled == {"completed": 1, "released": 2}


def test_what_was_begun_counts_as_unspoken_where_that_means_done(world: World) -> None:
    world.fill("q", count=2)
    reader = Reader(world)
    reader.record(1, [Start(reader.take(1)[0])])
    assert reader.close(1).settled == {"completed": 2}


def test_one_thought_dead_that_speaks_up_has_the_last_word(world: World) -> None:
    reader = worker(world, 2)
    a, b = reader.take(1)
    reader.record(1, [Start(a), Start(b)])
    assert reader.begin_slice(1) == (False, 2)
    reader.record(1, [Complete(a), Start(b)])
    assert reader.begin_slice(1) == (True, 0)
    assert reader.close(1).settled == {"completed": 1, "retry": 1}


def test_only_what_is_in_the_slice_fails_and_another_cut_overlaps_all_before(world: World) -> None:
    reader = worker(world, 40)
    reader.claim(1)
    slices = [reader.read(1, slice=at, slices=4) for at in range(4)]
    assert all(slices)
    assert [reader.begin_slice(1, slice=at, slices=4) for at in (0, 1)] == [(False, 0), (False, 0)]
    reader.record(1, [Start(taken[0]) for taken in slices])
    assert reader.begin_slice(1, slice=1, slices=4) == (True, 1)
    assert reader.begin_slice(1, slice=3, slices=4) == (False, 1)
    world.restart()
    assert reader.begin_slice(1, slice=3, slices=4) == (True, 0)
    assert reader.begin_slice(1, slice=0, slices=1) == (True, 2)
    assert [reader.begin_slice(1, slice=at, slices=3) for at in (2, 1, 0)] == [(True, 0)] * 3
    reader.close(1)
    reader.claim(2)
    assert reader.begin_slice(2, slice=1, slices=4) == (False, 0)


def test_slices_are_begun_of_an_open_claim_by_its_consumer(world: World) -> None:
    reader = worker(world, 1)
    reader.claim(1)
    with pytest.raises(InvalidRequest, match="less than slices"):
        reader.begin_slice(1, slice=2, slices=2)
    old, reader.generation = reader.generation, reader.register()
    with pytest.raises(StaleConsumer):
        world.broker.consumers.begin_slice("etl", "q", old, 1)
    reader.close(1)
    with pytest.raises(ClaimClosed):
        reader.begin_slice(1)


# How far it came


def test_progress_counts_at_once_and_outlives_the_claim(world: World) -> None:
    reader = worker(world, 3)
    a, b, c = reader.take(1)
    reader.record(1, [Extend(a, progress=1 << 20, carry=b"first"), Extend(b, carry=b"b"), Fail(a), Start(c)])
    reader.record(1, [Extend(a, progress=3 << 20, carry=b"second")])
    world.restart()
    again = reader.read(1)
    assert [(int(one.progress), one.carry, one.attempts, one.deliveries) for one in again] == [
        (3 << 20, b"second", 0, 1),
        (0, b"b", 0, 1),
        (0, b"", 0, 1),
    ]
    assert reader.close(1).settled == {"retry": 1, "released": 2}
    kept = {
        one.payload: (int(one.progress) >> 20, one.carry, one.attempts)
        for one in world.broker.claim("q", limit=10)
    }
    assert kept == {b"0": (3, b"second", 1), b"1": (0, b"b", 0), b"2": (0, b"", 0)}


def test_several_words_about_one_message_in_one_call_add_up(world: World) -> None:
    reader = worker(world, 1)
    (a,) = reader.take(1)
    reader.record(
        1,
        [
            Start(a),
            Extend(a, progress=1, carry=b"x"),
            Extend(a, progress=3, carry=b"y"),
            Extend(a, progress=7),
            Extend(a),
        ],
    )
    (again,) = reader.read(1, unsettled=True)
    assert (int(again.progress), again.carry) == (7, b"y")
    reader.record(1, [Extend(a, progress=15, carry=b"z"), Extend(a, progress=7, carry=b"y")])
    assert reader.read(1)[0].carry == b"z"
    assert reader.begin_slice(1) == (False, 1)


def test_one_who_lags_behind_does_not_bring_back_what_was_carried_before(world: World) -> None:
    """Two work on one slice because the first was thought dead; it has come less far."""
    reader = worker(world, 1)
    (a,) = reader.take(1)
    reader.record(1, [Extend(a, progress=1, carry=b"first")])
    reader.record(1, [Extend(a, progress=3, carry=b"second")])
    world.restart()
    reader.record(1, [Extend(a, progress=1, carry=b"first again")])
    (again,) = reader.read(1)
    assert (int(again.progress), again.carry) == (3, b"second")
    reader.record(1, [Extend(a, carry=b"third")])
    assert reader.read(1)[0].carry == b"third"


def test_progress_of_an_earlier_life_makes_nobody_lag_behind(world: World) -> None:
    """A pipeline that was edited since then may have other steps."""
    reader = worker(world, 1)
    reader.record(1, [Extend(reader.take(1)[0], progress=7, carry=b"old")])
    reader.close(1)
    (a,) = reader.take(2)
    reader.record(2, [Extend(a, progress=1, carry=b"new")])
    (again,) = reader.read(2)
    assert (int(again.progress), again.carry) == (7, b"new")


def test_an_outcome_stands_whatever_progress_is_told_after_it(world: World) -> None:
    reader = worker(world, 1)
    (a,) = reader.take(1)
    reader.record(1, [Fail(a, dead=True)])
    reader.record(1, [Extend(a, progress=2)])
    assert reader.read(1, unsettled=True) == []
    assert reader.close(1).settled == {"dead": 1}
    assert int(world.broker.peek("q.dlq")[0].progress) & 2


def test_an_extension_that_says_nothing_writes_nothing(world: World) -> None:
    reader = worker(world, 1)
    (a,) = reader.take(1)
    before = world.store.last_commit
    reader.record(1, [Extend(a)])
    assert world.store.last_commit == before


def test_words_that_are_wrong_spoil_the_call(world: World) -> None:
    reader = worker(world, 2)
    a, b = reader.take(1)
    for items, part, why in (
        ([Complete(a), Start(b)], "p", "said without a part"),
        ([Complete(a), Extend(b, progress=1)], "p", "said without a part"),
        ([Complete(a), Extend(b, "30s", progress=1)], "", "lasts until it is closed"),
        ([Complete(a), Extend(b, carry=b"x" * (MAX_CARRY_BYTES + 1))], "", "carry"),
        ([Complete(a), Extend(b, progress=-1)], "", "progress"),
        ([Complete(a), "done"], "", "Complete, Fail, Release, Start or Extend"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            reader.record(1, items, part)  # type: ignore[arg-type]
    assert payloads(reader.read(1, unsettled=True)) == [b"0", b"1"]
    assert stored_count(world.store, "outcomes") == 0


def test_a_commit_that_fails_changes_nothing_of_what_is_known(world: World) -> None:
    reader = worker(world, 2)
    a, b = reader.take(1)
    reader.begin_slice(1)
    reader.record(1, [Start(a)])

    def full(step: CommitStep) -> None:
        if "save consumer" in step:  # type: ignore[attr-defined]
            raise StoreFull("here", 0, 1)

    world.store.on_step = full
    for call in (
        lambda: reader.record(1, [Complete(b), Extend(a, progress=1, carry=b"x")]),
        lambda: reader.begin_slice(1),
    ):
        with pytest.raises(StoreFull):
            call()
    world.store.on_step = ignore
    left = reader.read(1, unsettled=True)
    assert [(one.payload, int(one.progress), one.carry) for one in left] == [(b"0", 0, b""), (b"1", 0, b"")]
    assert reader.begin_slice(1) == (True, 1)
    assert reader.close(1).settled == {"retry": 1, "released": 1}


# Turns


def test_a_task_whose_slice_was_begun_again_can_record_nothing_more(world: World) -> None:
    reader = worker(world, 4)
    reader.claim(1)
    first = reader.turn_of(1, slice=0, slices=2)
    a, b = reader.read(1, slice=0, slices=2)
    reader.record(1, [Start(a), Complete(b)], slice=0, turn=first)
    second = reader.turn_of(1, slice=0, slices=2)
    for items in ([Complete(a)], []):
        with pytest.raises(StaleSlice) as refused:
            reader.record(1, items, slice=0, turn=first)
        assert (refused.value.slice, refused.value.turn, refused.value.current) == (0, first, second)
    reader.record(1, [], slice=0, turn=second)
    assert reader.close(1).settled == {"completed": 1, "retry": 1, "released": 2}


def test_turns_survive_a_restart_and_end_with_their_claim(world: World) -> None:
    reader = worker(world, 4)
    (one, *_) = reader.take(1)
    turn = reader.turn_of(1)
    world.restart()
    reader.record(1, [Complete(one)], turn=turn)
    reader.close(1)
    (one, *_) = reader.take(2)
    assert reader.turn_of(2) == 1
    with pytest.raises(ClaimClosed):
        reader.record(1, [Complete(one)], turn=turn)


def test_another_cut_ends_the_turns_of_all_slices(world: World) -> None:
    reader = worker(world, 8)
    reader.claim(1)
    turns = {at: reader.turn_of(1, slice=at, slices=4) for at in range(4)}
    reader.turn_of(1, slice=1, slices=2)
    reader.turn_of(1, slice=2, slices=4)
    for at, turn in turns.items():
        with pytest.raises(StaleSlice):
            reader.record(1, [], slice=at, turn=turn)


def test_without_a_turn_outcomes_of_an_earlier_task_still_count(world: World) -> None:
    reader = worker(world, 1)
    (one,) = reader.take(1)
    reader.turn_of(1)
    reader.turn_of(1)
    reader.record(1, [Complete(one)])
    assert reader.close(1).settled == {"completed": 1}
