"""The facts of durable consumers, on every store: in the life that committed them, in the next, and after a
crash.
"""

from __future__ import annotations

import msgspec
import pytest

from fairlead.errors import BrokenInvariant
from fairlead.model.consumer import ConsumerRecord, Recorded
from fairlead.model.facts import (
    ConsumerDropped,
    ConsumerSaved,
    Enqueued,
    Leased,
    MembersPinned,
    NumberedClaimForgotten,
    OutcomesRecorded,
    PartsChosen,
    StreamJoined,
    StreamSaved,
)
from fairlead.model.lane import Flag, move_row
from fairlead.model.lease import NEVER_EXPIRES_MS, Claim
from fairlead.model.message import Message
from fairlead.model.names import Scoped
from fairlead.model.stream import StreamRecord, StreamRow
from fairlead.store.laws import check_laws
from fairlead.store.rocks.records import check_records
from fairlead.store.verify import verify
from tests.conformance.scene import NOW, WORK, RocksFactory, Scene, leased, row


@pytest.fixture(params=["at once", "reopened", "crashed"])
def life(request: pytest.FixtureRequest, scene: Scene) -> object:
    return {"at once": lambda: None, "reopened": scene.reopen, "crashed": scene.crash}[request.param]


def of(name: str) -> Scoped:
    return Scoped("work", name)


def consumer(name: str = "etl", **fields: object) -> ConsumerRecord:
    return ConsumerRecord(name, WORK, "work", 3, 60_000, NOW, **fields)  # type: ignore[arg-type]


def in_hand(scene: Scene, messages: list[Message], name: str = "etl", number: int = 1) -> ConsumerRecord:
    """A claim over these messages, as the engine writes it."""
    claim = Claim(scene.claim().claim_id, name, "", NOW, NEVER_EXPIRES_MS)
    leases = [leased(message, claim, NEVER_EXPIRES_MS) for message in messages]
    record = consumer(
        name, phase="open", number=number, claim_id=claim.claim_id, messages=len(leases), pages=1
    )
    ids = b"".join(message.id for message in messages)
    scene.store.commit(
        [ConsumerSaved(record), Leased(claim, leases), MembersPinned(of(name), number, 0, ids)]
    )
    return record


def test_consumers_are_remembered_with_every_field_in_the_order_of_their_names(
    scene: Scene, life: object
) -> None:
    full = consumer(
        last_closed=4, lost=3, lost_why="ü", settled={"completed": 7}, dropping=False, unspoken="release"
    )
    scene.store.commit(
        [
            ConsumerSaved(consumer("z")),
            ConsumerSaved(consumer()),
            ConsumerSaved(full),
            ConsumerSaved(consumer("a\0b")),
        ]
    )
    life()  # type: ignore[operator]
    assert scene.store.consumers() == [consumer("a\0b"), full, consumer("z")]
    scene.store.commit([ConsumerDropped(of("z"))])
    life()  # type: ignore[operator]
    assert [record.name for record in scene.store.consumers()] == ["a\0b", "etl"]


def test_members_are_told_in_their_order_page_behind_page(scene: Scene, life: object) -> None:
    messages = scene.enqueue(5)
    in_hand(scene, messages[3:1:-1])
    record = scene.store.consumers()[0]
    claim = Claim(record.claim_id, "etl", "", NOW, NEVER_EXPIRES_MS)
    more = msgspec.structs.replace(record, messages=3, pages=2)
    scene.store.commit(
        [
            ConsumerSaved(more),
            Leased(claim, [leased(messages[0], claim, NEVER_EXPIRES_MS)]),
            MembersPinned(of("etl"), 1, 1, messages[0].id),
        ]
    )
    life()  # type: ignore[operator]
    assert scene.store.claim_members(of("etl"), 1) == [messages[3].id, messages[2].id, messages[0].id]
    assert scene.store.claim_members(of("etl"), 2) == scene.store.claim_members(of("et"), 1) == []
    assert scene.store.counters(WORK).leased == 3
    assert {lease.expires_ms for lease in scene.store.leases()} == {NEVER_EXPIRES_MS}
    assert check_laws(scene.store) == []


def test_a_piece_may_have_followers_only(scene: Scene) -> None:
    first, second = scene.messages(2)
    first, second = (
        Message(m.id, m.queue_id, m.lane, 1, b"", b"", NOW, m.place, stream="s", seq=m.place)
        for m in (first, second)
    )
    claim = Claim(1, "etl", "", NOW, NEVER_EXPIRES_MS)
    rows = [StreamRow(m.lane, row(m)) for m in (first, second)]
    scene.store.commit(
        [
            Enqueued(WORK, [first, second], frozenset([second.id])),
            StreamSaved(WORK, "s", StreamRecord("k", 2, rows[0], rows[0].seq)),
            StreamJoined(WORK, "s", rows[1]),
        ]
    )
    record = consumer(phase="filling", number=1, claim_id=1, messages=1, pages=1)
    scene.store.commit(
        [
            ConsumerSaved(record),
            Leased(claim, [leased(first, claim, NEVER_EXPIRES_MS)]),
            MembersPinned(of("etl"), 1, 0, first.id),
        ]
    )
    record = consumer(phase="open", number=1, claim_id=1, messages=2, pages=2)
    behind = Leased(claim, [], [leased(second, claim, NEVER_EXPIRES_MS)])
    scene.store.commit([ConsumerSaved(record), behind, MembersPinned(of("etl"), 1, 1, second.id)])
    scene.reopen()
    assert scene.store.counters(WORK).leased == 2
    assert check_laws(scene.store) == []


def test_outcomes_are_told_in_the_order_of_the_calls_with_their_parts(scene: Scene, life: object) -> None:
    for at, part in enumerate(("", "b", "a")):
        scene.store.commit([OutcomesRecorded(of("etl"), 1, at, part, b"said-%d" % at)])
    scene.store.commit(
        [OutcomesRecorded(of("etl"), 2, 0, "", b"other"), OutcomesRecorded(of("etl2"), 1, 0, "", b"other")]
    )
    life()  # type: ignore[operator]
    assert scene.store.claim_outcomes(of("etl"), 1, 0, 10) == [
        ("", b"said-0"),
        ("b", b"said-1"),
        ("a", b"said-2"),
    ]
    assert scene.store.claim_outcomes(of("etl"), 1, 1, 1) == [("b", b"said-1")]
    assert scene.store.claim_outcomes(of("etl"), 3, 0, 10) == []


def test_the_last_choice_counts(scene: Scene, life: object) -> None:
    scene.store.commit([PartsChosen(of("etl"), 1, ("a", "b"))])
    scene.store.commit([PartsChosen(of("etl"), 1, ("ü",)), PartsChosen(of("etl"), 2, ("x",))])
    life()  # type: ignore[operator]
    assert scene.store.claim_choice(of("etl"), 1) == ("ü",)
    assert scene.store.claim_choice(of("etl"), 3) == ()


@pytest.mark.parametrize("calls", [1, 1500])
def test_a_forgotten_claim_takes_its_rows_and_no_others(scene: Scene, life: object, calls: int) -> None:
    for name, number in (("etl", 1), ("etl", 2), ("etl", 256), ("et", 1)):
        scene.store.commit(
            [
                MembersPinned(of(name), number, 0, b"x" * 16),
                OutcomesRecorded(of(name), number, 0, "", b"y"),
                PartsChosen(of(name), number, ("z",)),
            ]
        )
    scene.store.commit(
        [
            MembersPinned(of("etl"), 1, 1, b"x" * 16),
            *[OutcomesRecorded(of("etl"), 1, at, "", b"y") for at in range(1, calls)],
        ]
    )
    scene.store.commit([NumberedClaimForgotten(of("etl"), 1, 2, calls)])
    life()  # type: ignore[operator]
    store = scene.store
    assert (
        store.claim_members(of("etl"), 1),
        store.claim_outcomes(of("etl"), 1, 0, 9),
        store.claim_choice(of("etl"), 1),
    ) == ([], [], ())
    for name, number in (("etl", 2), ("etl", 256), ("et", 1)):
        assert (store.claim_members(of(name), number), store.claim_outcomes(of(name), number, 0, 9)) == (
            [b"x" * 16],
            [("", b"y")],
        )
        assert store.claim_choice(of(name), number) == ("z",)


def test_a_refused_commit_changes_nothing_of_a_consumer(scene: Scene) -> None:
    scene.store.commit([ConsumerSaved(consumer())])
    lost = leased(scene.messages()[0], scene.claim(), NEVER_EXPIRES_MS)
    lost.queue_id = 77
    with pytest.raises(BrokenInvariant):
        scene.store.commit(
            [
                ConsumerSaved(consumer(last_closed=9)),
                MembersPinned(of("etl"), 1, 0, b"x" * 16),
                OutcomesRecorded(of("etl"), 1, 0, "", b""),
                PartsChosen(of("etl"), 1, ("a",)),
                Leased(scene.claim(), [lost]),
            ]
        )
    assert scene.store.consumers() == [consumer()]
    assert scene.store.claim_members(of("etl"), 1) == scene.store.claim_outcomes(of("etl"), 1, 0, 9) == []
    assert scene.store.claim_choice(of("etl"), 1) == ()


# The laws

BROKEN = {
    "a member that is not leased": (
        lambda scene, record: [MembersPinned(of("etl"), 1, 1, b"x" * 16)],
        "but not leased to it",
    ),
    "a lease that no claim has": (
        lambda scene, record: [NumberedClaimForgotten(of("etl"), 1, 1, 0), ConsumerSaved(consumer())],
        "that does not have it",
    ),
    "a lease of another claim": (
        lambda scene, record: [
            ConsumerSaved(consumer(phase="open", number=1, claim_id=99, messages=2, pages=1))
        ],
        "but not leased to it",
    ),
    "a member that was handled and is still leased": (
        lambda scene, record: [
            ConsumerSaved(
                consumer(phase="closing", number=1, claim_id=record.claim_id, messages=2, pages=1, handled=1)
            )
        ],
        "that does not have it",
    ),
    "a count of members": (
        lambda scene, record: [ConsumerSaved(msgspec.structs.replace(record, messages=3))],
        "its record says 3 and 0",
    ),
    "a count of outcomes": (
        lambda scene, record: [OutcomesRecorded(of("etl"), 1, 0, "", b"")],
        "and 1 outcomes",
    ),
    "words that cannot be read": (
        lambda scene, record: [OutcomesRecorded(of("etl"), 1, 0, "", b"")],
        "cannot be read in what call 0 said",
    ),
    "words about a stranger": (
        lambda scene, record: [
            OutcomesRecorded(of("etl"), 1, 0, "", msgspec.msgpack.encode([Recorded(b"x" * 16, "start")]))
        ],
        "which is not in it",
    ),
    "slices that nobody can tell apart": (
        lambda scene, record: [ConsumerSaved(msgspec.structs.replace(record, slices=9, taken=b"\1"))],
        "cut into 9 slices, with 1 bytes",
    ),
    "an idle consumer with slices": (
        lambda scene, record: [ConsumerSaved(consumer("b", slices=1, taken=b"\1"))],
        "cut into 1 slices",
    ),
    "a member twice": (
        lambda scene, record: [MembersPinned(of("etl"), 1, 1, scene.store.claim_members(of("etl"), 1)[0])],
        "has a member twice",
    ),
    "an idle consumer with a claim": (
        lambda scene, record: [ConsumerSaved(consumer("b", number=3, claim_id=7))],
        "is idle, with claim id 7",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_the_laws_notice_what_must_not_be(rocks_scene: Scene, what: str) -> None:
    record = in_hand(rocks_scene, rocks_scene.enqueue(2))
    assert check_laws(rocks_scene.store) == []
    facts, sentence = BROKEN[what]
    rocks_scene.store.commit(facts(rocks_scene, record))
    assert any(sentence in problem for problem in check_laws(rocks_scene.store))


def test_rows_of_a_claim_that_is_over_are_found(rocks_scene: Scene) -> None:
    in_hand(rocks_scene, rocks_scene.enqueue(2))
    rocks_scene.store.commit([ConsumerSaved(consumer("b"))])
    assert check_records(rocks_scene.store) == []  # type: ignore[arg-type]
    rocks_scene.store.commit(
        [
            MembersPinned(of("etl"), 2, 0, b"x" * 16),
            PartsChosen(of("b"), 0, ()),
            OutcomesRecorded(of("gone"), 1, 0, "", b""),
        ]
    )
    problems = check_records(rocks_scene.store)  # type: ignore[arg-type]
    assert len([problem for problem in problems if "belongs to a claim that is over" in problem]) == 3


def test_verify_reads_the_records_of_consumers(rocks: RocksFactory) -> None:
    scene = Scene(rocks)
    scene.make_queues()
    in_hand(scene, scene.enqueue(2))
    scene.store.close()
    assert verify(rocks.path).problems == []
    scene.store = rocks.open()
    scene.store._family("consumers").put(b"etl", b"\1nonsense")  # type: ignore[attr-defined]
    scene.store.close()
    assert any("consumers" in problem for problem in verify(rocks.path).problems)


def test_a_row_moved_to_its_claim_keeps_its_flags(scene: Scene) -> None:
    """The rows of pinned leases are where a release returns them to, as any lease's are."""
    (message,) = scene.enqueue(1)
    in_hand(scene, [message])
    (lease,) = scene.store.leases()
    assert lease.row == move_row(row(message), message.place, message.flags & ~Flag.STATE)
    assert lease.pinned
