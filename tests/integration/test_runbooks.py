"""The runbooks in force: kept, found again, and what the engine makes of them."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.model.limits import MAX_RUNBOOK_BYTES
from fairlead.runbook.model import QueueSpec, Runbook, dump_runbook
from fairlead.testing.engine import save_runbook
from tests.integration.world import World

SHOP = dump_runbook(
    Runbook(
        "shop",
        {"issues": QueueSpec("issues", "external", list=("a",), take=("b",)), "orders": QueueSpec("orders")},
    )
)
NOBODYS = dump_runbook(Runbook(None, {"tickets": QueueSpec("tickets", "external", list=("a",), take=("b",))}))


def test_a_saved_runbook_is_in_force_after_a_restart(world: World) -> None:
    world.broker.runbooks.save("shop", SHOP)
    world.broker.runbooks.save("", NOBODYS)
    world.restart()
    assert world.broker.runbooks.get("shop") == SHOP
    assert world.broker.runbooks.get("") == NOBODYS
    assert world.broker.runbooks.list() == {"": NOBODYS, "shop": SHOP}


def test_the_last_one_saved_is_in_force(world: World) -> None:
    world.broker.runbooks.save("shop", SHOP)
    after = dump_runbook(Runbook("shop"))
    world.broker.runbooks.save("shop", after)
    assert world.broker.runbooks.list() == {"shop": after}


def test_a_project_without_a_runbook_is_named(world: World) -> None:
    with pytest.raises(errors.RunbookNotFound) as missing:
        world.broker.runbooks.get("shop")
    assert missing.value.project == "shop"
    assert "fairlead apply" in missing.value.message


@pytest.mark.parametrize(
    ("project", "text"),
    [
        ("shop", ""),
        ("shop", "no runbook"),
        ("shop", '{"queues": 3}'),
        ("shop", None),
        ("shop", dump_runbook(Runbook("else"))),
        ("", SHOP),
        ("a/b", SHOP),
        (None, SHOP),
        ("shop", SHOP + " " * MAX_RUNBOOK_BYTES),
    ],
)
def test_what_is_no_runbook_of_the_project_is_refused_and_not_kept(
    world: World, project: str, text: str
) -> None:
    with pytest.raises(errors.InvalidRequest):
        world.broker.runbooks.save(project, text)
    assert world.broker.runbooks.list() == {}


def test_a_runbook_that_cannot_be_read_any_more_stands_in_nobodys_way(world: World) -> None:
    world.broker.runbooks.save("", NOBODYS)
    save_runbook(world.broker, "shop", '{"queues": "as a later version has them"}')
    world.restart()
    world.broker.enqueue("q", b"x")
    with pytest.raises(errors.ExternalQueue):
        world.broker.stats("tickets")
    assert list(world.broker.runbooks.list()) == ["", "shop"]


@pytest.mark.parametrize("restarted", [False, True])
def test_whoever_asks_for_an_external_queue_is_told_where_its_items_are(
    world: World, restarted: bool
) -> None:
    world.broker.runbooks.save("shop", SHOP)
    if restarted:
        world.restart()
    for verb in (
        lambda broker: broker.retry("shop/issues", ["01890000-0000-7000-8000-000000000000"]),
        lambda broker: broker.enqueue("shop/issues", b"x"),
        lambda broker: broker.claim("shop/issues"),
        lambda broker: broker.stats("shop/issues"),
    ):
        with pytest.raises(errors.ExternalQueue) as refused:
            verb(world.broker)
        assert (refused.value.queue, refused.value.taken) == ("shop/issues", "shop/issues.taken")
    for other in ("issues", "shop/orders", "else/issues"):
        with pytest.raises(errors.QueueNotFound):
            world.broker.stats(other)


def test_a_queue_that_is_no_longer_external_is_only_unknown(world: World) -> None:
    world.broker.runbooks.save("shop", SHOP)
    world.broker.runbooks.save("shop", dump_runbook(Runbook("shop")))
    with pytest.raises(errors.QueueNotFound):
        world.broker.stats("shop/issues")
