"""`fairlead do`: a command for every verb, from the table alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
import typer
from msgspec import Meta

from fairlead.cli.app import app
from fairlead.cli.do import VerbGroup
from fairlead.request import VERBS, Request, verb
from fairlead.testing.verbs import given_work
from tests.cli.conftest import Commands, Opener, Orders


@pytest.fixture
def echo() -> Iterator[None]:
    @verb("test.echo")
    class Echo(Request[list[str]], frozen=True):
        """Say words as often as `times` tells."""

        words: Annotated[list[str], Meta(description="The words.")]
        times: Annotated[int, Meta(description="How often.", ge=1)] = 1

        def run(self, tx: object) -> list[str]:
            return self.words * self.times

    with given_work(Echo, lambda request: request.run(None)):
        yield
    del VERBS["test.echo"]


def test_a_verb_that_is_new_in_the_table_has_its_command_and_its_help(
    cli: Commands, orders: Orders, echo: None
) -> None:
    assert "test.echo  Say words as often as --times tells." in cli.ok("do", "--help").out
    assert cli.ok("do", "test.echo", "a", "b", "--times", "2").lines == ["a", "b", "a", "b"]
    assert "greater than or equal to 1" in cli("do", "test.echo", "a", "--times", "0").err


def test_no_command_is_made_before_its_verb_is_asked_for(cli: Commands) -> None:
    group = typer.main.get_command(app).commands["do"]
    assert isinstance(group, VerbGroup)
    fresh = VerbGroup(name="do", help=group.help)
    assert set(fresh.list_commands(None)) == set(VERBS)
    assert fresh.commands._made == {}  # type: ignore[attr-defined]


def test_messages_are_claimed_and_settled_by_what_the_claim_printed(cli: Commands, orders: Orders) -> None:
    (delivery,) = cli.json("do", "claim", "orders")
    assert (delivery["id"], delivery["payload"], delivery["headers"]) == (
        orders.pending,
        "pending",
        {"shop": "globex"},
    )
    items = json.dumps([{"action": "fail", "delivery": delivery, "error": "boom", "dead": True}])
    (result,) = cli.json("do", "settle", items)
    assert (result["id"], result["outcome"]) == (orders.pending, "dead")
    assert cli.ok("do", "settle", items).lines[0].split()[:3] == ["id", "ok", "outcome"]


def test_an_exchange_is_a_list_of_requests_by_their_verbs(cli: Commands, orders: Orders) -> None:
    requests = [
        {"verb": "enqueue", "queue": "orders", "payload": {"base64": "/wA="}, "fairness_key": "acme"},
        {"verb": "claim", "queue": ["orders"], "limit": 5},
    ]
    made, claimed = cli.json("do", "exchange", json.dumps(requests))
    assert {one["id"]: one["payload"] for one in claimed} == {
        orders.pending: "pending",
        made: {"base64": "/wA="},
    }


def test_json_and_payloads_come_from_files_and_standard_input(
    cli: Commands, orders: Orders, broker: Opener, tmp_path: Path
) -> None:
    file = tmp_path / "messages.json"
    file.write_text('[{"payload": "one"}, {"payload": "two"}]')
    ids = cli.ok("do", "enqueue_many", "orders", f"@{file}").lines
    ids += cli.ok("do", "enqueue", "orders", "-", input=b"\xffpiped").lines
    with broker() as opened:
        assert [opened.find(message_id).payload for message_id in ids] == [b"one", b"two", b"\xffpiped"]


def test_a_list_of_texts_is_given_text_by_text_or_as_json(cli: Commands, orders: Orders) -> None:
    ids = [orders.pending, orders.held]
    assert cli.json("do", "drop", "orders", "--ids", ids[0], "--ids", ids[1], "--dry-run")["changed"] == ids
    assert cli.json("do", "drop", "orders", "--ids", json.dumps(ids), "--dry-run")["changed"] == ids


def test_a_queue_is_of_the_project_but_names_in_json_are_taken_as_they_are(
    cli: Commands, orders: Orders
) -> None:
    cli.ok("queue", "create", "shop/orders")
    assert cli.json("do", "stats", "orders", "--project", "shop")["queue"] == "shop/orders"
    assert cli.json("do", "claim", "orders", "--project", "shop") == []
    (delivery,) = cli.json("do", "claim", '["orders"]', "--project", "shop")
    assert delivery["id"] == orders.pending


def test_a_filter_is_json_with_the_names_of_its_fields(cli: Commands, orders: Orders) -> None:
    by_header = '{"header": ["shop", "globex"]}'
    found = cli.json("do", "drop", "orders", "--filter", by_header, "--dry-run")
    assert found["changed"] == [orders.pending]


def test_an_answer_is_shown_by_what_it_is(cli: Commands, orders: Orders) -> None:
    assert cli.ok("do", "pause", "orders").lines == ["done"]
    assert cli.ok("do", "twin", "orders", "nobody has it").lines == ["none"]
    assert cli.ok("do", "claim", "orders").lines == ["nothing"]
    assert ["ready", "1"] in [line.split() for line in cli.ok("do", "stats", "orders").lines]
    heads, *rows = cli.ok("do", "peek", "orders.dlq").lines
    assert heads.split()[:3] == ["status", "id", "queue"]
    assert [row.split()[:3] for row in rows] == [["dead", orders.dead, "orders.dlq"]]


@pytest.mark.parametrize(
    ("words", "field", "expected", "got"),
    [
        (["settle", "nonsense"], "items", "JSON", "nonsense"),
        (["settle", '{"a": 1}'], "items", "a list", "<class 'dict'>"),
        (["settle", "[1]"], "items[0]", "a JSON object", 1),
        (["settle", '[{"action": "finish"}]'], "items[0].action", "one of complete, fail", "finish"),
        (["settle", '[{"action": "complete"}]'], "items[0]", "at least delivery", []),
        (
            ["settle", '[{"action": "start", "delivery": {"id": "a"}}]'],
            "items[0].delivery",
            "at least id, lease",
            ["id"],
        ),
        (["exchange", '[{"verb": "enqueu"}]'], "requests[0].verb", "a verb of fairlead do --help", "enqueu"),
        (["enqueue_many", "orders", '[{"paylod": "x"}]'], "messages[0]", "payload, headers", ["paylod"]),
        (["enqueue_many", "orders", '[{"payload": 3}]'], "messages[0].payload", "text or", 3),
        (["enqueue_many", "orders", '[{"payload": "x", "weight": "y"}]'], "weight", "a whole number", "y"),
        (["drop", "orders", "--filter", '{"cause": "x"}'], "filter", "reason, error", ["cause"]),
    ],
)
def test_a_wrong_value_in_json_is_named_with_what_was_expected(
    cli: Commands, orders: Orders, words: list[str], field: str, expected: str, got: object
) -> None:
    refused = cli("-o", "json", "do", *words)
    assert (refused.code, refused.error()["code"]) == (3, "invalid_request")
    fields = refused.error()["fields"]
    assert (fields["field"], fields["got"]) == (field, got)
    assert expected in fields["expected"]
