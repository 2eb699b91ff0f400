"""Staged writes on every store, in the life that committed them and in later ones; and what `verify` says
when they are damaged.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead.errors import BrokenInvariant
from fairlead.model.checks import CheckedMessage
from fairlead.model.facts import ChunksDropped, ChunkStaged, PublishEnded, PublishesForgotten, PublishSaved
from fairlead.model.lane import pack_lane
from fairlead.model.names import Scoped
from fairlead.model.staging import ChunkBody, Death, Published, Publishing, StagedChunk, pack_chunk
from fairlead.store.laws import check_laws
from fairlead.store.memory import MemoryStore, _Data
from fairlead.store.rocks.codec import V1, encode
from fairlead.store.rocks.layout import chunk_key, published_end_key
from fairlead.store.verify import verify
from tests.conformance.scene import NOW, OTHER, WORK, MemoryFactory, RocksFactory, Scene
from tests.conformance.test_damage import write_raw

DAY = 86_400_000


@pytest.fixture(params=["at once", "reopened", "crashed"])
def look_again(request: pytest.FixtureRequest, scene: Scene) -> Callable[[], None]:
    return {"at once": lambda: None, "reopened": scene.reopen, "crashed": scene.crash}[request.param]


def to(token: str) -> Scoped:
    return Scoped("work", token)


def staged(
    token: str, chunk: str, payloads: list[bytes], *, queue_id: int = WORK, dead: bool = False
) -> ChunkStaged:
    messages = [CheckedMessage(pack_lane("k"), 1, b"", payload, 0, -1, "", "") for payload in payloads]
    body = pack_chunk(ChunkBody(messages, [Death(3, "bad")] if dead else []))
    return ChunkStaged(
        StagedChunk(
            token,
            chunk,
            queue_id,
            "work",
            len(messages),
            sum(map(len, payloads)),
            len(body),
            1,
            NOW,
            NOW + DAY,
            dead,
        ),
        body,
    )


def publishing(token: str, chunks: tuple[str, ...], offset: int = 0) -> PublishSaved:
    return PublishSaved(Publishing(token, chunks, NOW, NOW, len(chunks), 3, 9, "work", offset))


def published(token: str, until_ms: int) -> Published:
    return Published(token, 1, 3, 9, "work", NOW, NOW, until_ms)


def test_a_staged_chunk_is_kept_with_its_messages_and_counts_for_no_queue(
    scene: Scene, look_again: Callable[[], None]
) -> None:
    first, second, foreign = (
        staged("t", "a", [b"1", b"22"]),
        staged("t", "b", [b"3"], dead=True),
        staged("ü/1", "a", [], queue_id=OTHER),
    )
    for fact in (second, foreign, first):
        scene.store.commit([fact])
    look_again()
    assert scene.store.staged_chunks() == [first.chunk, second.chunk, foreign.chunk]
    assert [
        scene.store.staged_body(to(token), chunk)
        for token, chunk in (("t", "a"), ("t", "b"), ("ü/1", "a"), ("t", "c"), ("u", "a"))
    ] == [
        first.body,
        second.body,
        foreign.body,
        None,
        None,
    ]
    assert scene.store.counters(WORK).messages == 0
    assert scene.store.ids_between(b"\0" * 16, b"\xff" * 16, 10) == []


def test_tokens_and_chunks_whose_names_run_together_are_told_apart(
    scene: Scene, look_again: Callable[[], None]
) -> None:
    one, other = staged("ab", "c", [b"1"]), staged("a", "bc", [b"2"])
    scene.store.commit([one, other])
    look_again()
    assert scene.store.staged_body(to("ab"), "c") == one.body
    assert scene.store.staged_body(to("a"), "bc") == other.body


def test_a_chunk_staged_again_takes_the_place_of_the_first(
    scene: Scene, look_again: Callable[[], None]
) -> None:
    scene.store.commit([staged("t", "a", [b"old", b"older"])])
    again = staged("t", "a", [b"new"])
    scene.store.commit([again])
    look_again()
    assert scene.store.staged_chunks() == [again.chunk]
    assert scene.store.staged_body(to("t"), "a") == again.body


def test_dropped_chunks_are_gone_and_the_others_stay(scene: Scene, look_again: Callable[[], None]) -> None:
    scene.store.commit([staged("t", name, [name.encode()]) for name in "abc"])
    scene.store.commit([ChunksDropped(to("t"), ["a", "c"])])
    look_again()
    assert [chunk.chunk for chunk in scene.store.staged_chunks()] == ["b"]
    assert [scene.store.staged_body(to("t"), name) is not None for name in "abc"] == [False, True, False]


def test_a_publish_is_known_with_how_far_it_has_come(scene: Scene, look_again: Callable[[], None]) -> None:
    scene.store.commit([staged("t", name, [b"1", b"2"]) for name in "ab"])
    scene.store.commit([publishing("t", ("b", "a"))])
    further = publishing("t", ("a",), 1)
    scene.store.commit([ChunksDropped(to("t"), ["b"]), further])
    look_again()
    assert scene.store.publishing() == [further.record]
    assert scene.store.published(to("t")) is None


def test_a_publish_that_has_ended_is_remembered_until_it_is_forgotten(
    scene: Scene, look_again: Callable[[], None]
) -> None:
    for token, until_ms in (("late", NOW + 30), ("soon", NOW + 10), ("ü", NOW + 20)):
        scene.store.commit([publishing(token, ())])
        scene.store.commit([PublishEnded(published(token, until_ms))])
    look_again()
    store = scene.store
    assert store.publishing() == []
    assert store.published(to("ü")) == published("ü", NOW + 20)
    assert store.published(to("never")) is None
    assert [record.token for record in store.last_published(2)] == ["late", "ü"]
    assert [record.token for record in store.last_published(10)] == ["late", "ü", "soon"]
    assert [record.token for record in store.last_published(1, (NOW + 30, to("late")))] == ["ü"]
    assert store.last_published(10, (NOW + 10, to("soon"))) == []
    assert store.next_published_end() == NOW + 10
    assert store.published_over(NOW + 9, 10) == []
    assert store.published_over(NOW + 20, 1) == [(NOW + 10, to("soon"))]
    store.commit([PublishesForgotten(store.published_over(NOW + 20, 10))])
    look_again()
    store = scene.store
    assert [store.published(to(token)) is None for token in ("soon", "ü", "late")] == [True, True, False]
    assert store.next_published_end() == NOW + 30
    assert store.last_published(10) == [published("late", NOW + 30)]
    store.commit([PublishesForgotten([(NOW + 30, to("late"))])])
    assert store.next_published_end() is None
    assert store.published_over(NOW + DAY, 10) == []


def test_a_publish_ended_after_an_earlier_one_was_forgotten_is_found(scene: Scene) -> None:
    """Where rows begin is remembered, and must go down again when an earlier end is written."""
    scene.store.commit([publishing("a", ()), PublishEnded(published("a", NOW + 50))])
    assert scene.store.published_over(NOW + 60, 10) == [(NOW + 50, to("a"))]
    scene.store.commit([publishing("b", ()), PublishEnded(published("b", NOW + 5))])
    assert scene.store.next_published_end() == NOW + 5
    assert [write.name for _, write in scene.store.published_over(NOW + 60, 10)] == ["b", "a"]


def test_a_memory_store_refuses_to_drop_a_chunk_that_is_not_there() -> None:
    scene = Scene(MemoryFactory())
    with pytest.raises(BrokenInvariant):
        scene.store.commit([ChunksDropped(to("t"), ["a"])])


def test_messages_of_a_queue_are_read_in_order_of_ids_whatever_place_they_have(
    scene: Scene, look_again: Callable[[], None]
) -> None:
    mine = [
        *scene.enqueue(2),
        *scene.enqueue(1, queue_id=OTHER),
        *scene.enqueue(2, due_ms=NOW + 5),
        *scene.enqueue(1, key="z"),
    ]
    scene.lease([mine[0]])
    look_again()
    wanted = [message for message in mine if message.queue_id == WORK]
    low, high = b"\0" * 16, b"\xff" * 16
    assert scene.store.messages_from(WORK, low, high, 10, 1 << 30) == (wanted, high)
    page, start = scene.store.messages_from(WORK, low, high, 2, 1 << 30)
    assert page == wanted[:2]
    assert scene.store.messages_from(WORK, start, high, 10, 1 << 30) == (wanted[2:], high)
    assert scene.store.messages_from(WORK, wanted[1].id, wanted[3].id, 10, 1 << 30) == (
        wanted[1:3],
        wanted[3].id,
    )
    assert len(scene.store.messages_from(WORK, low, high, 10, 1)[0]) == 1


# The laws


def lively() -> Scene:
    scene = Scene(MemoryFactory())
    scene.make_queues()
    scene.store.commit([staged("t", name, [b"1", b"2"]) for name in "ab"])
    scene.store.commit([publishing("t", ("a", "b"), 1), staged("u", "d", [b"x"], dead=True)])
    scene.store.commit([publishing("v", ()), PublishEnded(published("v", NOW + 5))])
    assert check_laws(scene.store) == []
    return scene


def put(table: str, key: object, value: object) -> Callable[[_Data], None]:
    return lambda data: getattr(data, table)._set(key, value)


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (
            lambda data: (data.staged.discard((to("t"), "b")), data.staged_chunks.discard((to("t"), "b"))),
            "chunk 'b' that is still to come is not there",
        ),
        (
            lambda data: data.staged.discard((to("t"), "b")),
            "chunk 'b' of write 't' to 'work' has no messages",
        ),
        (put("staged", (to("t"), "b"), b"\xc1"), "chunk 'b' of write 't' to 'work' does not decode"),
        (
            put("staged", (to("t"), "b"), staged("t", "b", [b"1"]).body),
            "says (messages, bytes, bytes stored)",
        ),
        (
            put("staged_chunks", (to("u"), "d"), staged("u", "d", [b"x"]).chunk),
            "reasons why its 1 messages are dead",
        ),
        (
            put("publishing", to("t"), publishing("t", ("a", "a", "b")).record),
            "chunk 'a' still to come 2 times",
        ),
        (
            put("publishing", to("t"), publishing("t", ("a", "b"), 2).record),
            "goes on at message 2 of a chunk that has no such message",
        ),
        (
            put("publishing", to("v"), publishing("v", ()).record),
            "write 'v' to 'work' is done and still to be done",
        ),
        (
            put("staged_chunks", (to("v"), "a"), staged("v", "a", []).chunk),
            "write 'v' to 'work' is done, and still has staged chunks",
        ),
        (put("published", to("v"), published("v", NOW + 6)), "to be forgotten at"),
    ],
)
def test_each_way_in_which_a_staged_write_can_be_unsound_is_told(
    break_it: Callable[[_Data], None], told: str
) -> None:
    scene = lively()
    assert isinstance(scene.store, MemoryStore)
    break_it(scene.store._data)
    assert any(told in problem for problem in check_laws(scene.store)), check_laws(scene.store)


def test_verify_tells_of_rows_of_staged_writes_that_stand_alone(rocks: RocksFactory) -> None:
    scene = Scene(rocks)
    scene.make_queues()
    scene.store.commit([staged("t", "a", [b"1"]), publishing("v", ()), PublishEnded(published("v", NOW + 5))])
    scene.store.close()
    assert verify(rocks.path).ok
    write_raw(rocks.path, "staged", chunk_key(to("lost"), "b"), V1 + staged("lost", "b", []).body)
    write_raw(rocks.path, "published_end", published_end_key(NOW, to("w")), V1)
    write_raw(rocks.path, "published", b"x", V1 + encode(published("x", NOW)))
    write_raw(rocks.path, "publishing", b"y", b"\x07")
    problems = verify(rocks.path).problems
    assert len(problems) == 4
    assert any(problem.endswith("has no row in staged_chunks") for problem in problems)
    assert any(problem.endswith("has no row in published") for problem in problems)
    assert any(problem.endswith("has no row in published_end") for problem in problems)
    assert any("publishing 79 is corrupt" in problem for problem in problems)
