from __future__ import annotations

import pytest

from fairlead import NewMessage
from fairlead.cli import confirm
from tests.cli.conftest import Commands, Opener, Orders


@pytest.fixture
def dead(broker: Opener) -> list[str]:
    """Twelve dead letters, every third of them of another reason."""
    with broker() as opened:
        opened.create_queue("bulk")
        return [
            opened.quarantine(
                "bulk",
                [NewMessage(b"x")],
                reason="validation_failure" if n % 3 == 0 else "timeout_exceeded",
                error=f"no {n}",
            )[0]
            for n in range(12)
        ]


def test_a_dry_run_counts_exactly_and_moves_nothing(cli: Commands, dead: list[str]) -> None:
    assert cli.json("redrive", "bulk", "--dry-run") == {"matched": 12, "moved": 0, "intent_id": None}
    assert (
        cli.json("redrive", "bulk", "--reason", "validation_failure", "--count", "3", "--dry-run")["matched"]
        == 3
    )
    assert cli.ok("redrive", "bulk.dlq", "--dry-run").lines == [
        "12 dead letters of queue 'bulk.dlq' would return"
    ]
    assert cli.json("queue", "list")[0]["stats"]["dead"] == 12


def test_a_redrive_by_filter_shows_the_number_asks_and_brings_back(cli: Commands, dead: list[str]) -> None:
    refused = cli("redrive", "bulk", "--reason", "validation_failure")
    assert refused.code == 2
    assert "return 4 dead letters of queue 'bulk'" in refused.err
    assert cli.json("redrive", "bulk", "--reason", "validation_failure", "-y") == {
        "matched": 4,
        "moved": 4,
        "intent_id": None,
    }
    stats = cli.json("queue", "list")[0]["stats"]
    assert (stats["ready"], stats["dead"]) == (4, 8)


def test_a_count_takes_the_longest_dead_first(cli: Commands, dead: list[str]) -> None:
    cli.ok("redrive", "bulk", "--count", "2", "-y")
    assert [info["id"] for info in cli.json("queue", "peek", "bulk")] == dead[:2]


def test_ids_go_at_once_without_a_question(cli: Commands, dead: list[str]) -> None:
    ran = cli("redrive", "bulk", dead[5][-8:], dead[7], "ffff0000")
    assert (ran.code, ran.out) == (0, "returned 2 dead letters to queue 'bulk'\n")
    assert "ffff0000  skipped: not found in this queue" in ran.err
    assert cli("redrive", "bulk", "ffff0000").code == 4
    assert cli("redrive", "bulk", dead[1], "--rate", "5").code == 2


def test_nothing_dead_is_a_success_that_says_so(cli: Commands, orders: Orders) -> None:
    assert cli.ok("redrive", "orders", "--error", "nowhere").lines == ["nothing to do"]


def test_a_redrive_at_a_rate_is_followed_to_its_end(cli: Commands, dead: list[str]) -> None:
    result = cli.json("redrive", "bulk", "--rate", "1000", "-y")
    assert (result["matched"], result["moved"]) == (12, 12)
    assert result["intent_id"] is not None
    assert cli.json("queue", "list")[0]["stats"]["dead"] == 0
    assert cli.json("intent", "list") == []


def test_a_program_that_is_interrupted_while_it_watches_learns_which_redrive_goes_on(
    cli: Commands, dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fairlead.cli.redrive.sleep", interrupted)
    ran = cli("redrive", "bulk", "--rate", "0.01", "-y", "-o", "json")
    (intent,) = cli.json("intent", "list")
    assert (ran.code, ran.err, ran.json()["matched"], ran.json()["intent_id"]) == (
        130,
        "",
        12,
        intent["intent_id"],
    )


def test_a_detached_redrive_is_listed_and_can_be_stopped(cli: Commands, dead: list[str]) -> None:
    assert cli("redrive", "bulk", "--detach").code == 2
    result = cli.json("redrive", "bulk", "--rate", "0.01", "--detach", "-y")
    (intent,) = cli.json("intent", "list")
    assert (intent["intent_id"], intent["kind"], intent["rate"]) == (result["intent_id"], "redrive", 0.01)
    assert "redrive" in cli.ok("intent", "list").out
    assert cli.ok("intent", "cancel", str(result["intent_id"])).lines == [
        f"stopped redrive {result['intent_id']}"
    ]
    assert cli("intent", "cancel", str(result["intent_id"])).code == 2
    assert cli.ok("intent", "list").lines == ["no operation is in progress"]


def test_without_a_terminal_a_redrive_says_that_it_needs_yes(cli: Commands, dead: list[str]) -> None:
    refused = cli("redrive", "bulk")
    assert refused.code == 2
    assert "would return 12 dead letters of queue 'bulk'" in refused.err
    assert "there is no terminal to ask at: confirm with --yes" in refused.err
    assert cli.json("queue", "list")[0]["stats"]["dead"] == 12


def test_at_a_terminal_a_no_leaves_the_dead_where_they_are(
    cli: Commands, dead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "at_terminal", lambda: True)
    assert cli("redrive", "bulk", input="n\n").code == 1
    assert cli.json("queue", "list")[0]["stats"]["dead"] == 12


def test_a_value_may_be_a_negative_number(cli: Commands) -> None:
    assert cli.json("config", "set", "offset", "-1") == {"key": "offset", "value": "-1"}
    assert cli.ok("config", "get", "offset").lines == ["-1"]


def test_configuration_is_set_shown_listed_and_unset(cli: Commands, broker: Opener) -> None:
    assert cli.json("config", "set", "throttle:mail:rate", "5") == {"key": "throttle:mail:rate", "value": "5"}
    cli.ok("config", "set", "mine", "a b")
    assert cli.ok("config", "get", "mine").lines == ["a b"]
    assert cli.json("config", "get", "mine") == {"key": "mine", "value": "a b"}
    assert cli.json("config", "list") == {"mine": "a b", "throttle:mail:rate": "5"}
    assert cli.json("config", "list", "throttle:") == {"throttle:mail:rate": "5"}
    assert cli.json("config", "list", "--prefix", "throttle:") == {"throttle:mail:rate": "5"}
    assert cli("config", "list", "mine", "--prefix", "mine").code == 2
    assert [line.split(maxsplit=1) for line in cli.ok("config", "list").lines[1:]] == [
        ["mine", "a b"],
        ["throttle:mail:rate", "5"],
    ]
    with broker() as opened:
        opened.create_queue("q")
        assert [throttle.rate for throttle in opened.stats("q").throttles] == [5.0]
    cli.ok("config", "unset", "throttle:mail:rate")
    assert cli.json("config", "list") == {"mine": "a b"}
    assert cli("config", "unset", "throttle:mail:rate").code == 4
    assert cli("config", "set", "throttle:mail:rate", "fast").code == 3


def test_explain_takes_a_queue_a_message_of_a_queue_or_an_id(
    cli: Commands, broker: Opener, orders: Orders
) -> None:
    with broker() as opened:
        expected = str(opened.explain(orders.held))
    for args in ([orders.held], ["orders", orders.held[-8:]], [orders.held[:-6]]):
        assert cli.ok("explain", *args).out == expected + "\n"
    found = cli.json("explain", "orders", orders.active[-8:])
    assert (found["summary"], found["reasons"][0]["code"]) == ("in the hands of a consumer", "leased")
    cli.ok("queue", "pause", "orders")
    assert "paused" in cli.ok("explain", "orders").out


def test_explain_of_nothing_known_suggests_a_queue(cli: Commands, orders: Orders) -> None:
    ran = cli("explain", "odrers")
    assert ran.code == 4
    assert "did you mean 'orders'" in ran.err
    assert cli("explain", "ffff0000").code == 4
