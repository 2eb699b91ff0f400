"""`queue push` for queues that the runbook in force declares."""

from __future__ import annotations

import json

import pytest

from fairlead import Complete, Fail, errors
from fairlead.runbook.model import QueueSpec, Runbook, dump_runbook
from fairlead.wire.statuses import STATUSES
from tests.cli.conftest import Commands, Opener

QUEUES = {
    "orders": QueueSpec("orders", vars=("customer", "amount"), defaults={"amount": 1}),
    "twice": QueueSpec("twice", dedupe=False),
    "issues": QueueSpec("issues", "external", list=("list",), take=("take",)),
}


@pytest.fixture
def shop(cli: Commands, broker: Opener) -> Opener:
    """Queues of a project, as an apply leaves them, and one queue that no runbook knows."""
    cli.ok(
        "queue", "create", "shop/orders", "--dedup", "live", "--retry", "none", "--retain-completed", "12h"
    )
    with broker() as opened:
        opened.create_queue("shop/twice", dedup="live")
        opened.create_queue("shop/plain")
        opened.runbooks.save("shop", dump_runbook(Runbook("shop", QUEUES)))
    return broker


def test_an_item_is_the_payload_with_variables_and_defaults(cli: Commands, shop: Opener) -> None:
    first = cli.ok("queue", "push", "shop/orders", '{"customer": "ann"}', "--var", "amount=12").out.strip()
    second = cli.ok("queue", "push", "shop/orders", "--var", "customer=bob").out.strip()
    third = cli.ok("queue", "push", "shop/orders", "-", input=b'{"customer": "cy", "note": "n"}').out.strip()
    with shop() as opened:
        items = [json.loads(opened.find(message_id).payload) for message_id in (first, second, third)]
    assert items == [
        {"customer": "ann", "amount": 12},
        {"customer": "bob", "amount": 1},
        {"customer": "cy", "amount": 1, "note": "n"},
    ]


def test_equal_data_is_the_item_that_is_not_done_yet_and_says_so(cli: Commands, shop: Opener) -> None:
    first = cli.json("queue", "push", "shop/orders", '{"customer": "ann"}')
    again = cli.json("queue", "push", "shop/orders", '{"amount": 1}', "--var", "customer=ann")
    assert (again["id"], first["existing"], again["existing"]) == (first["id"], False, True)
    said = cli("queue", "push", "shop/orders", '{"customer": "ann"}')
    assert (said.out.strip(), "existing" in said.err) == (first["id"], True)
    assert cli.json("queue", "push", "shop/orders", '{"customer": "ann", "amount": 2}')["existing"] is False


@pytest.mark.parametrize("state", ["active", "completed", "dead"])
def test_a_twin_that_is_active_is_the_item_and_one_that_is_over_is_not(
    cli: Commands, shop: Opener, state: str
) -> None:
    first = cli.json("queue", "push", "shop/orders", '{"customer": "ann"}')
    with shop() as opened:
        (delivery,) = opened.claim("shop/orders")
        if state != "active":
            opened.settle([Complete(delivery) if state == "completed" else Fail(delivery, "no")])
    again = cli.json("queue", "push", "shop/orders", '{"customer": "ann"}')
    assert (again["id"] == first["id"], again["existing"]) == (state == "active", state == "active")


def test_a_queue_may_take_equal_data_twice(cli: Commands, shop: Opener) -> None:
    first, second = (
        cli.json("queue", "push", "shop/twice", "{}"),
        cli.json("queue", "push", "shop/twice", "{}"),
    )
    assert first["id"] != second["id"]


def test_what_is_missing_is_named_and_nothing_is_pushed(cli: Commands, shop: Opener) -> None:
    refused = cli("queue", "push", "shop/orders", '{"custmer": "ann"}')
    assert refused.code == STATUSES[errors.ItemInvalid].exit_code
    assert "'customer' is missing; is 'custmer' a mistake for it?" in refused.err
    assert cli("queue", "push", "shop/orders", "no json").code == refused.code
    assert cli("queue", "push", "shop/orders", '{"customer": "a"}', "--var", "nothing").code == refused.code
    with shop() as opened:
        assert opened.stats("shop/orders").ready == 0


def test_an_external_queue_takes_no_push(cli: Commands, shop: Opener) -> None:
    refused = cli("queue", "push", "shop/issues", "{}")
    assert refused.code == STATUSES[errors.ExternalQueue].exit_code
    assert "shop/issues.taken" in refused.err


@pytest.mark.parametrize(
    "verb",
    [
        ["retry", "shop/issues", "0123abcd"],
        ["show", "shop/issues"],
        ["drop", "shop/issues", "0123abcd", "-y"],
    ],
)
def test_management_of_an_external_queue_says_where_its_items_are(
    cli: Commands, shop: Opener, verb: list[str]
) -> None:
    refused = cli("queue", *verb)
    assert refused.code == STATUSES[errors.ExternalQueue].exit_code
    assert "shop/issues.taken" in refused.err


def test_a_queue_that_no_runbook_knows_takes_any_payload_and_no_variables(
    cli: Commands, shop: Opener
) -> None:
    pushed = cli.json("queue", "push", "shop/plain", "no json")
    assert set(pushed) == {"id", "queue"}
    assert cli("queue", "push", "shop/plain", "x", "--var", "a=1").code == 2
    assert cli("queue", "push", "shop/plain", "--var", "a=1").code == 2
    assert cli("queue", "push", "shop/nothing", "x").code == STATUSES[errors.QueueNotFound].exit_code


def test_a_project_may_be_said_beside_the_name(
    cli: Commands, shop: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cli.json("queue", "push", "orders", '{"customer": "ann"}', "--project", "shop")
    assert first["queue"] == "shop/orders"
    monkeypatch.setenv("FAIRLEAD_PROJECT", "shop")
    assert cli.json("queue", "push", "orders", '{"customer": "ann"}')["id"] == first["id"]
    assert (
        cli("queue", "push", "else/orders", '{"customer": "ann"}').code
        == STATUSES[errors.QueueNotFound].exit_code
    )
