"""Staged writes: nobody sees them until they are published, and then they are there, all of them, in order,
once.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fairlead import Complete, NewMessage, Settings
from fairlead.errors import (
    FairleadError,
    InvalidRequest,
    LimitReached,
    QueueFull,
    QueueNotFound,
    StagedChunkMissing,
    StagedQueueGone,
    StoreFull,
    TooManyLanes,
)
from fairlead.model.limits import MAX_KEY_BYTES, MAX_PAYLOAD_BYTES
from fairlead.testing import CommitStep, Storage, laws
from fairlead.testing.between import between_steps
from fairlead.testing.engine import rows_in, waiting_claims
from fairlead.testing.sizes import size
from fairlead.testing.steps import ignore
from fairlead.testing.stored import stored_count
from tests.integration.world import Background, World, wait_until

DAY = 86_400_000
STEP = 4


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size("publish_step_messages"), STEP)
    monkeypatch.setattr(size("staged_part_messages"), 1)


def texts(prefix: str, count: int, **options: Any) -> list[NewMessage]:
    return [NewMessage(f"{prefix}{n}".encode(), **options) for n in range(count)]


def stage(world: World, token: str, chunk: str, count: int = 1, queue: str = "q", **options: Any) -> None:
    world.broker.staging.stage(token, chunk, queue, texts(chunk, count, **options))


def taken(world: World, queue: str = "q") -> list[str]:
    deliveries = world.broker.claim(queue, limit=1000, max_per_stream=1000)
    world.broker.settle([Complete(delivery) for delivery in deliveries])
    return [delivery.payload.decode() for delivery in deliveries]


class Killed(BaseException):
    """What a kill is to a test within one process: nothing of the broker runs any more."""


def killed_at(world: World, commit: int) -> None:
    """The broker dies before its n-th commit from here on."""
    left = iter(range(commit - 1))

    def on_step(step: CommitStep) -> None:
        if next(left, None) is None:
            raise Killed

    world.store.on_step = on_step


def commits(world: World) -> list[CommitStep]:
    seen: list[CommitStep] = []
    world.store.on_step = seen.append
    return seen


def test_what_is_staged_is_seen_by_nobody(world: World) -> None:
    stage(world, "t", "a", 3, stream="s", dedup_key="once")
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.claim("q") == []
    assert world.broker.twin("q", "once") is None
    assert world.broker.browse("q") == []


def test_published_chunks_become_messages_in_the_order_given(world: World) -> None:
    for name in "abc":
        stage(world, "t", name, 3)
    result = world.broker.staging.publish("t", "q", ["c", "a", "b"])
    assert (result.outcome, result.count) == ("published", 9)
    assert taken(world) == ["c0", "c1", "c2", "a0", "a1", "a2", "b0", "b1", "b2"]


def test_streams_keep_the_order_of_chunks_across_steps(world: World) -> None:
    for name in "ab":
        stage(world, "t", name, 2 * STEP + 1, stream="s")
    world.broker.staging.publish("t", "q", ["b", "a"])
    assert taken(world) == [f"b{n}" for n in range(2 * STEP + 1)] + [f"a{n}" for n in range(2 * STEP + 1)]


def test_no_step_makes_more_than_its_share_and_several_small_chunks_share_one(world: World) -> None:
    for name, count in (("a", 1), ("b", 2), ("c", 2 * STEP), ("d", 1)):
        stage(world, "t", name, count)
    seen = commits(world)
    world.broker.staging.publish("t", "q", [*"abcd"])
    steps = [step.count("enqueue") for step in seen]
    assert steps == [STEP, STEP, STEP], "the first comes with the decision"
    assert ["end publish" in step for step in seen] == [False, False, True]


def test_a_chunk_staged_again_replaces_the_first(world: World) -> None:
    stage(world, "t", "a", 5)
    world.broker.staging.stage("t", "a", "q", [NewMessage(b"new")])
    (write,) = world.broker.staging.list()
    assert (write.chunks, write.messages) == (1, 1)
    assert world.broker.staging.publish("t", "q", ["a"]).count == 1
    assert taken(world) == ["new"]


def test_chunks_that_are_not_listed_are_dropped(world: World) -> None:
    for name in "abc":
        stage(world, "t", name)
    world.broker.staging.publish("t", "q", ["b"])
    assert taken(world) == ["b0"]
    assert stored_count(world.store, "staged chunks") == 0
    (write,) = world.broker.staging.list()
    assert (write.published, write.chunks, write.messages) == (True, 1, 1)


def test_a_write_of_no_chunks_is_published_and_remembered(world: World) -> None:
    stage(world, "t", "left over")
    assert world.broker.staging.publish("t", "q", []).count == 0
    assert stored_count(world.store, "staged chunks") == 0
    stage(world, "t", "a")
    assert world.broker.staging.publish("t", "q", ["a"]).outcome == "already"
    assert taken(world) == []


def test_an_empty_chunk_is_a_chunk(world: World) -> None:
    world.broker.staging.stage("t", "empty", "q", [])
    stage(world, "t", "a")
    assert world.broker.staging.publish("t", "q", ["empty", "a"]).count == 1
    assert taken(world) == ["a0"]


def test_publishing_twice_is_once_also_after_a_restart(world: World) -> None:
    stage(world, "t", "a", 3)
    world.broker.staging.publish("t", "q", ["a"])
    world.restart()
    for chunks in (["a"], ["other"], []):
        again = world.broker.staging.publish("t", "q", chunks)
        assert (again.outcome, again.count) == ("already", 3)
    assert taken(world) == ["a0", "a1", "a2"]


def test_a_published_token_is_remembered_for_seven_days(world: World) -> None:
    stage(world, "t", "a")
    world.broker.staging.publish("t", "q", ["a"])
    world.clock.advance(ms=7 * DAY - 1)
    assert world.broker.staging.publish("t", "q", ["a"]).outcome == "already"
    world.restart(away_ms=1)
    world.broker.run_due()
    assert world.broker.staging.list() == []
    stage(world, "t", "a")
    assert world.broker.staging.publish("t", "q", ["a"]).outcome == "published"


def test_what_is_staged_for_a_published_token_is_checked_and_not_kept(world: World) -> None:
    stage(world, "t", "a")
    world.broker.staging.publish("t", "q", ["a"])
    assert world.broker.staging.stage("t", "b", "q", texts("b", 2)).count == 2
    with pytest.raises(InvalidRequest):
        world.broker.staging.stage("t", "b", "q", [NewMessage("text")])  # type: ignore[arg-type]
    assert stored_count(world.store, "staged chunks") == 0


def test_a_missing_chunk_is_told_and_changes_nothing(world: World) -> None:
    stage(world, "t", "a")
    before = world.store.last_commit
    with pytest.raises(StagedChunkMissing) as refused:
        world.broker.staging.publish("t", "q", ["a", "b"])
    assert (refused.value.token, refused.value.chunk) == ("t", "b")
    with pytest.raises(StagedChunkMissing):
        world.broker.staging.publish("unknown", "q", ["a"])
    assert world.store.last_commit == before
    stage(world, "t", "b")
    world.broker.staging.publish("t", "q", ["a", "b"])
    assert taken(world) == ["a0", "b0"]


def test_the_same_token_for_another_queue_is_another_write(world: World) -> None:
    world.broker.create_queue("r")
    for name, queue in (("a", "q"), ("a", "r"), ("b", "q")):
        stage(world, "t", name, 2, queue)
    assert [(write.queue, write.token, write.chunks) for write in world.broker.staging.list()] == [
        ("q", "t", 2),
        ("r", "t", 1),
    ]
    world.broker.staging.publish("t", "q", ["a", "b"])
    with pytest.raises(StagedChunkMissing):
        world.broker.staging.publish("t", "r", ["b"])
    assert (taken(world, "q"), taken(world, "r")) == (["a0", "a1", "b0", "b1"], [])
    assert world.broker.staging.publish("t", "r", ["a"]).outcome == "published"
    assert world.broker.staging.discard("t", "r") == 0
    assert taken(world, "r") == ["a0", "a1"]
    assert [world.broker.staging.publish("t", queue, ["a"]).count for queue in ("q", "r")] == [4, 2]


def test_delays_and_lives_are_counted_from_the_publish(world: World) -> None:
    stage(world, "t", "a", delay="10s")
    stage(world, "t", "b", ttl="20s")
    world.clock.advance(ms=60_000)
    world.broker.staging.publish("t", "q", ["a", "b"])
    assert world.counts("q") == (1, 1, 0, 0)
    world.clock.advance(ms=9_999)
    assert world.counts("q") == (1, 1, 0, 0)
    world.clock.advance(ms=1)
    assert world.counts("q") == (2, 0, 0, 0)
    world.clock.advance(ms=10_000)
    assert taken(world) == ["a0"]


def test_delays_are_counted_from_the_publish_also_when_a_crash_puts_off_its_steps(world: World) -> None:
    stage(world, "t", "a", STEP + 1, delay="10s")
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "q", ["a"])
    world.kill(away_ms=8_000)
    world.broker.run_due()
    assert world.counts("q") == (0, STEP + 1, 0, 0)
    world.clock.advance(ms=2_000)
    assert len(taken(world)) == STEP + 1


def test_dedup_keys_hold_within_a_write_across_steps_and_against_the_queue(world: World) -> None:
    world.broker.enqueue("q", b"first", dedup_key="known")
    world.broker.staging.stage(
        "t",
        "a",
        "q",
        [NewMessage(b"again", dedup_key="known"), *texts("a", STEP), NewMessage(b"x", dedup_key="own")],
    )
    world.broker.staging.stage("t", "b", "q", [NewMessage(b"y", dedup_key="own")])
    assert world.broker.staging.publish("t", "q", ["a", "b"]).count == STEP + 3
    assert taken(world) == ["first", *[f"a{n}" for n in range(STEP)], "x"]


def test_the_hook_is_asked_when_a_chunk_is_staged_and_what_it_says_stands(world: World) -> None:
    world.broker.update_queue(
        "q", on_enqueue="function on_enqueue(msg) return { fairness_key = 'hooked', weight = 3 } end"
    )
    stage(world, "t", "a")
    world.broker.update_queue("q", on_enqueue=None)
    world.broker.staging.publish("t", "q", ["a"])
    (delivery,) = world.broker.claim("q")
    assert (delivery.fairness_key, delivery.weight) == ("hooked", 3)


def test_a_waiting_claim_is_woken_by_a_publish(world: World) -> None:
    stage(world, "t", "a")
    waiting = Background(lambda: world.broker.claim("q", wait="1h"))
    while not waiting_claims(world.broker, "q"):
        threading.Event().wait(0.001)
    world.broker.staging.publish("t", "q", ["a"])
    assert [delivery.payload for delivery in waiting.result()] == [b"a0"]


# What is wrong with messages is found when they are staged


@pytest.mark.parametrize(
    "bad",
    [
        NewMessage(b"x" * (MAX_PAYLOAD_BYTES + 1)),
        NewMessage(b"", fairness_key="k" * (MAX_KEY_BYTES + 1)),
        NewMessage(b"", headers={"n": 1}),  # type: ignore[dict-item]
        NewMessage(b"", delay="soon"),
        NewMessage(None),  # type: ignore[arg-type]
    ],
)
def test_a_bad_message_refuses_its_chunk_or_is_left_out_and_named(
    memory_world: World, bad: NewMessage
) -> None:
    world = memory_world
    messages = [NewMessage(b"good"), bad, NewMessage(b"also good")]
    with pytest.raises(InvalidRequest) as refused:
        world.broker.staging.stage("t", "a", "q", messages)
    assert "messages[1]" in refused.value.message
    assert world.broker.staging.list() == []
    result = world.broker.staging.stage("t", "a", "q", messages, skip_invalid=True)
    assert (result.count, result.bytes) == (2, 13)
    assert [refusal.row for refusal in result.refused] == [1]
    assert result.refused[0].error.startswith("expected ")
    world.broker.staging.publish("t", "q", ["a"])
    assert taken(world) == ["good", "also good"]


def test_a_queue_that_is_not_there_or_holds_dead_letters_is_refused_when_staging(world: World) -> None:
    with pytest.raises(QueueNotFound):
        stage(world, "t", "a", queue="nowhere")
    with pytest.raises(InvalidRequest):
        stage(world, "t", "a", queue="q.dlq")
    assert world.broker.staging.list() == []


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda staging: staging.stage("", "a", "q", []), "token"),
        (lambda staging: staging.stage("t" * 513, "a", "q", []), "token"),
        (lambda staging: staging.stage("t", "", "q", []), "chunk"),
        (lambda staging: staging.stage("t", "a", "q", [], ttl="0s"), "ttl"),
        (lambda staging: staging.stage("t", "a", "q", [], ttl=5), "ttl"),
        (lambda staging: staging.stage("t", "a", "q", [], skip_invalid="yes"), "skip_invalid"),
        (lambda staging: staging.stage("t", "a", "q", "text", skip_invalid=True), "messages"),
        (lambda staging: staging.publish("t", "q", "ab"), "chunks"),
        (lambda staging: staging.publish("t", "q", [1]), "chunks"),
        (lambda staging: staging.publish("t", "q", ["a", "a"]), "chunks"),
        (lambda staging: staging.publish("t", "q", [str(n) for n in range(10_001)]), "chunks"),
        (lambda staging: staging.publish(None, "q", []), "token"),
        (lambda staging: staging.discard(7, "q"), "token"),
        (lambda staging: staging.stage("t", "a", "q", [NewMessage(b"")], dead="bad"), "dead"),
        (lambda staging: staging.stage("t", "a", "q", [NewMessage(b"")], dead=("nonsense", "e")), "dead"),
        (lambda staging: staging.stage("t", "a", "q", [NewMessage(b"")], dead=("unknown", 5)), "dead"),
        (
            lambda staging: staging.stage("t", "a", "q", [NewMessage(b"")] * 3, dead=[("unknown", "e")] * 2),
            "dead",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_by_name(
    memory_world: World, call: Any, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        call(memory_world.broker.staging)
    assert refused.value.field == field


# Bounds


def test_staged_bytes_are_bounded_and_those_of_a_replaced_chunk_do_not_count(quick_path: Any) -> None:
    world = World("memory", quick_path, Settings(max_staged_bytes=3000))
    world.broker.create_queue("q")
    for _ in range(3):
        world.broker.staging.stage("t", "a", "q", [NewMessage(b"x" * 2000)])
    with pytest.raises(LimitReached) as refused:
        world.broker.staging.stage("t", "b", "q", [NewMessage(b"x" * 2000)])
    assert (refused.value.what, refused.value.limit) == ("staged bytes", 3000)
    world.broker.staging.discard("t", "q")
    world.broker.staging.stage("t", "b", "q", [NewMessage(b"x" * 2000)])
    assert 2000 < world.broker.measures().staged_bytes < 2100
    world.restart()
    assert 2000 < world.broker.measures().staged_bytes < 2100
    world.broker.staging.publish("t", "q", ["b"])
    assert world.broker.measures().staged_bytes == 0
    world.close()


def test_chunks_are_bounded_in_a_write_and_in_all(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = memory_world
    monkeypatch.setattr(size("chunks_per_write"), 2)
    monkeypatch.setattr(size("staged_chunks"), 3)
    for name in "aba":
        stage(world, "t", name)
    with pytest.raises(LimitReached):
        stage(world, "t", "c")
    stage(world, "u", "a")
    with pytest.raises(LimitReached):
        stage(world, "v", "a")


def test_a_full_queue_refuses_to_stage_and_to_publish_and_is_never_overfull(world: World) -> None:
    world.broker.update_queue("q", max_messages=10)
    with pytest.raises(QueueFull):
        stage(world, "t", "x", 11)
    stage(world, "t", "a", 6)
    stage(world, "t", "b", 6)
    with pytest.raises(QueueFull):
        world.broker.staging.publish("t", "q", ["a", "b"])
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.staging.publish("t", "q", ["a"]).count == 6


def test_room_for_a_write_under_way_is_kept_from_others(world: World) -> None:
    world.broker.update_queue("q", max_messages=STEP + 3, max_bytes=1000)
    stage(world, "t", "a", STEP + 2)
    told: list[FairleadError | None] = []

    def others() -> None:
        told.append(_refusal(lambda: world.fill("q", count=2)))

    with between_steps(world.broker, others):
        world.broker.staging.publish("t", "q", ["a"])
    assert [error and error.code for error in told] == ["queue_full"] * len(told)
    assert len(told) >= 2, "after each of the two steps"
    assert world.counts("q") == (STEP + 2, 0, 0, 0)
    world.fill("q", count=1)


def test_a_message_for_which_there_is_room_beside_a_write_under_way_is_taken(world: World) -> None:
    world.broker.update_queue("q", max_messages=STEP + 3)
    stage(world, "t", "a", STEP + 2)
    told: list[FairleadError | None] = []
    with between_steps(world.broker, lambda: told.append(_refusal(lambda: world.fill("q", count=1)))):
        world.broker.staging.publish("t", "q", ["a"])
    assert told[0] is None
    assert [error and error.code for error in told[1:]] == ["queue_full"] * len(told[1:])
    assert world.counts("q") == (STEP + 3, 0, 0, 0)


def _refusal(call: Any) -> FairleadError | None:
    try:
        call()
    except FairleadError as error:
        return error
    return None


def test_too_many_lanes_refuse_a_publish_before_it_begins(quick_path: Any) -> None:
    world = World("memory", quick_path, Settings(lanes_per_queue=3))
    world.broker.create_queue("q")
    world.broker.enqueue("q", b"", fairness_key="0")
    world.broker.staging.stage("t", "a", "q", [NewMessage(b"", fairness_key=str(n)) for n in range(4)])
    world.broker.staging.stage("t", "b", "q", [NewMessage(b"", fairness_key=str(n)) for n in range(3)])
    with pytest.raises(TooManyLanes):
        world.broker.staging.publish("t", "q", ["a"])
    assert world.broker.staging.publish("t", "q", ["b"]).count == 3
    world.close()


# Time, discarding, queues that go


def test_a_write_nobody_publishes_goes_with_its_youngest_chunk(world: World) -> None:
    world.broker.staging.stage("t", "a", "q", texts("a", 1), ttl="1h")
    world.clock.advance(ms=1_800_000)
    world.broker.staging.stage("t", "b", "q", texts("b", 1), ttl="1h")
    assert world.broker.staging.list()[0].expires_at == world.clock.now_ms() + 3_600_000
    world.clock.advance(ms=3_599_999)
    assert world.broker.staging.list()[0].chunks == 2
    world.clock.advance(ms=1)
    assert world.broker.staging.list() == []
    assert stored_count(world.store, "staged chunks") == 0
    with pytest.raises(StagedChunkMissing):
        world.broker.staging.publish("t", "q", ["a"])


def test_a_write_whose_time_is_over_while_the_broker_is_away_goes_at_the_first_chance(world: World) -> None:
    stage(world, "t", "a")
    stage(world, "u", "a")
    world.restart(away_ms=DAY)
    world.broker.run_due()
    assert world.broker.staging.list() == []


def test_discarding_drops_what_is_staged_and_nothing_that_is_published(world: World) -> None:
    for name in "abc":
        stage(world, "t", name)
    stage(world, "u", "a")
    assert world.broker.staging.discard("t", "q") == 3
    assert world.broker.staging.discard("t", "q") == 0
    world.broker.staging.publish("u", "q", ["a"])
    assert world.broker.staging.discard("u", "q") == 0
    assert world.broker.staging.publish("u", "q", ["a"]).outcome == "already"
    assert taken(world) == ["a0"]


def test_a_queue_deleted_since_refuses_the_publish_also_when_another_of_its_name_is_there(
    world: World,
) -> None:
    world.broker.create_queue("r")
    stage(world, "t", "a", queue="r")
    world.broker.delete_queue("r")
    world.broker.create_queue("r")
    stage(world, "t", "b", queue="r")
    with pytest.raises(StagedQueueGone) as refused:
        world.broker.staging.publish("t", "r", ["b", "a"])
    assert (refused.value.chunk, refused.value.queue) == ("a", "r")
    assert world.counts("r") == (0, 0, 0, 0)
    stage(world, "t", "a", queue="r")
    assert world.broker.staging.publish("t", "r", ["b", "a"]).outcome == "published"


def test_a_queue_deleted_amid_the_steps_takes_the_rest_with_it_and_one_made_since_gets_none(
    world: World,
) -> None:
    world.broker.create_queue("r")
    stage(world, "t", "a", 2 * STEP, queue="r")
    stage(world, "t", "b", 2, queue="r")
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "r", ["a", "b"])
    world.kill()
    assert world.counts("r") == (STEP, 0, 0, 0)
    world.broker.delete_queue("r")
    world.broker.create_queue("r")
    world.broker.run_due()
    assert world.counts("r") == (0, 0, 0, 0)
    assert world.broker.staging.publish("t", "r", ["a", "b"]).outcome == "already"
    assert stored_count(world.store, "staged chunks") == 0


# Interruptions


@pytest.mark.parametrize("commit", [1, 2, 3])
def test_a_publish_killed_before_any_of_its_commits_is_whole_or_not_at_all(world: World, commit: int) -> None:
    for name in "ab":
        stage(world, "t", name, STEP + 1, stream="s")
    killed_at(world, commit)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "q", ["b", "a"])
    assert laws(world.store) == []
    world.kill()
    world.broker.run_due()
    whole = [f"{name}{n}" for name in "ba" for n in range(STEP + 1)]
    assert taken(world) == ([] if commit == 1 else whole)
    assert world.broker.staging.publish("t", "q", ["b", "a"]).outcome == (
        "published" if commit == 1 else "already"
    )
    assert taken(world) == (whole if commit == 1 else [])


def test_whoever_publishes_what_a_crash_left_gets_the_answer_when_all_is_there(world: World) -> None:
    stage(world, "t", "a", 3 * STEP)
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "q", ["a"])
    world.kill()
    assert world.counts("q") == (STEP, 0, 0, 0)
    again = world.broker.staging.publish("t", "q", ["a"])
    assert (again.outcome, again.count) == ("already", 3 * STEP)
    assert world.counts("q") == (3 * STEP, 0, 0, 0)


def test_what_is_staged_or_discarded_amid_a_publish_changes_nothing(world: World) -> None:
    stage(world, "t", "a", 2 * STEP)
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "q", ["a"])
    world.kill()
    stage(world, "t", "a", 1)
    assert world.broker.staging.discard("t", "q") == 0
    assert [write.published for write in world.broker.staging.list()] == [True]
    world.broker.run_due()
    assert taken(world) == [f"a{n}" for n in range(2 * STEP)]


def test_a_publish_outlives_the_time_to_live_of_its_chunks(world: World) -> None:
    stage(world, "nobody's", "a")
    stage(world, "t", "a", 5 * STEP)
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "q", ["a"])
    world.kill(away_ms=2 * DAY)
    world.broker.run_due()
    assert len(taken(world)) == 5 * STEP
    assert [write.token for write in world.broker.staging.list()] == ["t"]


def test_a_full_disk_amid_the_steps_is_told_and_the_rest_follows(world: World) -> None:
    stage(world, "t", "a", 3 * STEP)
    full = [True]

    def count_first(step: CommitStep) -> None:
        if "enqueue" in step:
            world.store.on_step = refuse

    def refuse(step: CommitStep) -> None:
        if full[0]:
            raise StoreFull("here", 0, 1)

    world.store.on_step = count_first
    with pytest.raises(StoreFull):
        world.broker.staging.publish("t", "q", ["a"])
    assert world.counts("q") == (STEP, 0, 0, 0)
    full[0] = False
    world.broker.run_due()
    assert taken(world) == [f"a{n}" for n in range(3 * STEP)]
    assert world.broker.staging.publish("t", "q", ["a"]).outcome == "already"


def test_the_timer_goes_on_with_a_publish_whose_caller_was_told_of_a_full_disk(quick_path: Any) -> None:
    world = World("memory", quick_path)
    world.broker.close()
    world.store = Storage()
    refusals = [StoreFull("here", 0, 1) for _ in range(3)]

    def refuse_some(step: CommitStep) -> None:
        """The first step comes with the decision."""
        if refusals and "enqueue" in step and "publish" in step and seen:
            raise refusals.pop()
        seen.append(step)

    seen: list[CommitStep] = []

    with world.store.open_broker(durability="os") as broker:
        broker.create_queue("q")
        broker.staging.stage("t", "a", "q", texts("a", 3 * STEP))
        world.store.on_step = refuse_some
        with pytest.raises(StoreFull):
            broker.staging.publish("t", "q", ["a"])
        wait_until(lambda: broker.stats("q").ready == 3 * STEP)
    assert refusals == []


def test_a_disk_that_is_full_before_the_decision_changes_nothing(world: World) -> None:
    stage(world, "t", "a")

    def refuse(step: CommitStep) -> None:
        assert step.words[0] == "publish"
        raise StoreFull("here", 0, 1)

    world.store.on_step = refuse
    with pytest.raises(StoreFull):
        world.broker.staging.publish("t", "q", ["a"])
    world.store.on_step = ignore
    world.broker.run_due()
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.staging.publish("t", "q", ["a"]).outcome == "published"


def test_two_who_publish_at_once_make_it_once_and_both_wait_until_all_is_there(world: World) -> None:
    stage(world, "t", "a", 5 * STEP)
    held, go = threading.Event(), threading.Event()

    def hold_the_first_step(step: CommitStep) -> None:
        if "enqueue" in step:
            held.set()
            assert go.wait(20)

    world.store.on_step = hold_the_first_step
    callers = [
        Background(lambda: (world.broker.staging.publish("t", "q", ["a"]), world.broker.stats("q").ready))
        for _ in range(2)
    ]
    assert held.wait(20)
    go.set()
    results = [caller.result() for caller in callers]
    assert sorted(result.outcome for result, _ in results) == ["already", "published"]
    assert [seen for _, seen in results] == [5 * STEP, 5 * STEP]
    assert taken(world) == [f"a{n}" for n in range(5 * STEP)]


@pytest.mark.parametrize("others", ["another caller", "the timer"])
def test_steps_that_another_made_meanwhile_are_not_made_again(world: World, others: str) -> None:
    stage(world, "t", "a", STEP)
    stage(world, "t", "b", STEP)
    outcomes: list[str] = []

    def go_on() -> None:
        if others == "the timer":
            world.broker.run_due()
        else:
            outcomes.append(world.broker.staging.publish("t", "q", ["a", "b"]).outcome)

    with between_steps(world.broker, go_on):
        assert world.broker.staging.publish("t", "q", ["a", "b"]).outcome == "published"
    assert set(outcomes) <= {"already"}
    assert taken(world) == [f"{name}{n}" for name in "ab" for n in range(STEP)]


def test_the_lock_is_let_go_between_steps(world: World) -> None:
    """Others have messages enqueued between those of a write: only its own order is promised."""
    stage(world, "t", "a", 3 * STEP)
    seen = commits(world)
    made: list[int] = []
    with between_steps(world.broker, lambda: made.append(len(seen))):
        world.broker.staging.publish("t", "q", ["a"])
    assert {1, 2, 3} <= set(made)


# Dead letters


def test_a_dead_chunk_becomes_dead_letters_with_the_others(world: World) -> None:
    world.broker.staging.stage(
        "t",
        "bad",
        "q",
        [NewMessage(b"x"), NewMessage(b"y", headers={"h": "1"})],
        dead=("validation_failure", "no price"),
    )
    stage(world, "t", "good", 2)
    assert world.counts("q") == (0, 0, 0, 0)
    assert world.broker.staging.publish("t", "q", ["bad", "good"]).count == 4
    assert world.counts("q") == (2, 0, 0, 2)
    letters = world.broker.browse("q", view="dead")
    assert [(letter.payload, letter.rule, letter.failures[0].error) for letter in letters] == [
        (b"x", "quarantine", "no price"),
        (b"y", "quarantine", "no price"),
    ]
    assert world.broker.redrive("q.dlq").moved == 2
    assert taken(world) == ["good0", "good1", "x", "y"]


def test_each_message_of_a_dead_chunk_may_have_its_own_reason_also_when_some_are_left_out(
    world: World,
) -> None:
    messages = [NewMessage(b"0"), NewMessage(None), *texts("", STEP + 1)]  # type: ignore[arg-type]
    deaths = [("handler_exception", f"error {n}") for n in range(len(messages))]
    result = world.broker.staging.stage("t", "bad", "q", messages, skip_invalid=True, dead=deaths)
    assert [refusal.row for refusal in result.refused] == [1]
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "q", ["bad"])
    world.kill()
    world.broker.run_due()
    errors = [letter.failures[0].error for letter in world.broker.browse("q", view="dead")]
    assert errors == [f"error {n}" for n in range(len(messages)) if n != 1]


def test_dead_chunks_take_no_room_in_a_full_queue_and_ask_no_hook(world: World) -> None:
    world.broker.update_queue(
        "q", max_messages=1, on_enqueue="function on_enqueue(msg) return { fairness_key = 'hooked' } end"
    )
    world.broker.enqueue("q", b"full")
    world.broker.staging.stage("t", "bad", "q", texts("x", 3), dead=(7, "poison"))
    world.broker.staging.publish("t", "q", ["bad"])
    assert {letter.fairness_key for letter in world.broker.browse("q", view="dead")} == {"default"}
    assert world.counts("q") == (1, 0, 0, 3)


def test_dead_chunks_under_way_keep_no_room_from_others(world: World) -> None:
    world.broker.update_queue("q", max_messages=1)
    world.broker.staging.stage("t", "bad", "q", texts("x", 2 * STEP), dead=(7, "poison"))
    killed_at(world, 2)
    with pytest.raises(Killed):
        world.broker.staging.publish("t", "q", ["bad"])
    world.kill()
    world.broker.enqueue("q", b"fits")
    world.broker.run_due()
    assert world.counts("q") == (1, 0, 0, 2 * STEP)


def test_nothing_of_a_dropped_chunk_is_left_on_disk(disk_world: World) -> None:
    world = disk_world
    for token in "tuv":
        stage(world, token, "a", 3)
    world.broker.staging.publish("t", "q", ["a"])
    world.broker.staging.discard("u", "q")
    seen = commits(world)
    world.clock.advance(ms=DAY)
    assert [change.chunks for step in seen for change in step.changes("drop chunks")] == [("q", "v", ["a"])]
    assert (rows_in(world.broker, "staged"), rows_in(world.broker, "staged_parts")) == ({}, {})


def test_a_publish_is_synced_whatever_the_durability_and_staging_is_not(disk_world: World) -> None:
    store, synced = disk_world.store, list[int]()
    store.on_sync = lambda: synced.append(store.last_commit)
    stage(disk_world, "t", "a", 2 * STEP)
    assert synced == []
    disk_world.broker.staging.publish("t", "q", ["a"])
    assert synced == [store.last_commit]
