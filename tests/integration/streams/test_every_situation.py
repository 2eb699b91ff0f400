"""Every situation of a stream looks the same after a restart, and from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead import Complete, Fail, NewMessage, Release
from tests.integration.streams.steps import claim, fill, run, settle
from tests.integration.world import World

SITUATIONS: dict[str, tuple[Callable[[World], Any], list[str]]] = {
    "ready": (lambda world: fill(world, "a", "b"), ["a", "b"]),
    "a delayed head": (
        lambda world: (world.broker.enqueue("q", b"a", stream="s", delay="1m"), fill(world, "b")),
        [],
    ),
    "a head that is leased": (lambda world: (fill(world, "a", "b"), claim(world)), []),
    "a run that is leased": (lambda world: (run(world, "a", "b"), fill(world, "c")), []),
    "a head that waits": (lambda world: (fill(world, "a", "b"), settle(world, Fail(claim(world)["a"]))), []),
    "a head that is held": (lambda world: world.broker.hold("q", fill(world, "a", "b")[:1]), []),
    "a middle that is held": (lambda world: world.broker.hold("q", fill(world, "a", "b", "c")[1:2]), ["a"]),
    "a head let go": (
        lambda world: [
            world.broker.hold("q", ids := fill(world, "a", "b")[:1]),
            world.broker.unhold("q", ids),
        ],
        ["a", "b"],
    ),
    "a head that is gone": (
        lambda world: (fill(world, "a", "b"), settle(world, Complete(claim(world)["a"]))),
        ["b"],
    ),
    "a head that is dead": (lambda world: world.broker.bury("q", fill(world, "a", "b")[:1]), ["b"]),
    "a middle that is dropped": (
        lambda world: world.broker.drop("q", fill(world, "a", "b", "c")[1:2]),
        ["a", "c"],
    ),
    "one let by": (
        lambda world: (lambda a, b, c: settle(world, Fail(a), Release(b, keep_order=True), Release(c)))(
            *run(world, "a", "b", "c")
        ),
        ["c"],
    ),
    "all let by": (
        lambda world: (
            fill(world, "a", "b", "c"),
            settle(world, Fail(claim(world)["a"])),
            world.broker.release_stream("q", "s"),
        ),
        ["b", "c"],
    ),
    "a head that was retried": (
        lambda world: (fill(world, "a", "b"), settle(world, Fail(claim(world)["a"], retry_in="0s"))),
        ["a", "b"],
    ),
    "a head that came back": (
        lambda world: (
            fill(world, "a", "b"),
            settle(world, Fail(claim(world)["a"], dead=True)),
            world.broker.redrive("q"),
        ),
        ["b", "a"],
    ),
    "a head that was released": (
        lambda world: (fill(world, "a", "b"), settle(world, Release(claim(world)["a"]))),
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("restart", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize(("arrange", "expected"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_every_situation_is_the_same_after_a_restart(
    world: World, arrange: Callable[[World], Any], expected: list[str], restart: bool
) -> None:
    arrange(world)
    counts = world.counts("q")
    if restart:
        world.restart()
    assert world.counts("q") == counts
    assert list(claim(world, per_stream=9)) == expected


def test_what_is_blocked_is_explained_with_the_blocker(world: World) -> None:
    a, b = run(world, "a", "b")
    settle(world, Fail(a), Release(b, keep_order=True))
    (reason, *_) = world.broker.explain(b.id).reasons
    assert (reason.code, reason.until_ms) == ("behind_in_stream", world.clock.now_ms() + 60_000)
    assert a.id in reason.text


def test_a_peek_shows_what_is_behind_the_front_too_page_by_page(world: World) -> None:
    world.broker.enqueue_many("q", [NewMessage(b"%d" % n, stream="s") for n in range(5)])
    world.broker.enqueue("q", b"free")
    assert sorted(message.payload for message in world.broker.peek("q")) == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
        b"free",
    ]
    seen: list[bytes] = []
    after: str | None = None
    while page := world.broker.peek("q", limit=2, after=after):
        seen += [message.payload for message in page]
        after = page[-1].id
    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4", b"free"]
    assert [payload for payload in seen if payload != b"free"] == [b"0", b"1", b"2", b"3", b"4"]
