"""Repair by id and by filter. What each verb does to a message is the engine's; this is who is asked, told
and refused.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from fairlead import Fail, NewMessage
from fairlead.cli import confirm, operators
from fairlead.testing.sizes import size
from tests.cli.conftest import Commands, Opener, Orders

VERBS = {
    "retry": "dead",
    "drop": "pending",
    "done": "active",
    "bury": "pending",
    "hold": "pending",
    "unhold": "held",
    "fail": "active",
}


def status(cli: Commands, message_id: str) -> str | None:
    ran = cli("queue", "inspect", "orders", message_id, "-o", "json")
    return ran.json()["status"] if ran.code == 0 else None


@pytest.mark.parametrize(("verb", "before"), VERBS.items())
def test_each_verb_takes_a_short_id(cli: Commands, orders: Orders, verb: str, before: str) -> None:
    message_id = getattr(orders, before)
    result = cli.json("queue", verb, "orders", message_id[-8:], "--yes")
    assert result == {"changed": [message_id], "skipped": [], "more": False}
    after = {
        "retry": "pending",
        "drop": None,
        "done": None,
        "bury": "dead",
        "hold": "held",
        "unhold": "pending",
        "fail": "failed",
    }
    assert status(cli, message_id) == after[verb]


def test_a_reset_gives_a_message_its_attempts_again_and_leaves_it_where_it_is(
    cli: Commands, orders: Orders
) -> None:
    before = cli.json("queue", "inspect", "orders", orders.failed)
    assert cli.json("queue", "reset", "orders", orders.failed[-8:])["changed"] == [orders.failed]
    after = cli.json("queue", "inspect", "orders", orders.failed)
    assert (before["attempts"], after["attempts"], after["status"]) == (1, 0, "delayed")
    ran = cli("queue", "reset", "orders", orders.failed[-8:])
    assert "its count is 0" in ran.err
    assert ran.code == cli("queue", "unhold", "orders", orders.pending).code != 0


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_can_be_tried_without_effect(cli: Commands, orders: Orders, verb: str) -> None:
    message_id = getattr(orders, VERBS[verb])
    ran = cli.ok("queue", verb, "orders", message_id[-8:], "--dry-run")
    assert "would be" in ran.out
    assert status(cli, message_id) == VERBS[verb]


@pytest.mark.parametrize(
    ("verb", "asks"),
    [("retry", False), ("drop", True), ("done", True), ("bury", False), ("hold", False), ("fail", False)],
)
def test_by_id_only_what_cannot_be_undone_asks(cli: Commands, orders: Orders, verb: str, asks: bool) -> None:
    message_id = getattr(orders, VERBS[verb])
    ran = cli("queue", verb, "orders", message_id[-8:])
    assert ran.code == (2 if asks else 0)
    if asks:
        act = {"done": "complete"}.get(verb, verb)
        assert f"would {act} message {message_id[-8:]} ({VERBS[verb]}) of queue 'orders' for good" in ran.err


def test_a_refused_retry_names_the_command_that_resets_the_count(cli: Commands, orders: Orders) -> None:
    ran = cli("queue", "retry", "orders", orders.pending[-8:])
    assert f"fairlead queue reset orders {orders.pending[-8:]}" in ran.err


def test_ids_and_options_that_select_are_refused_together(cli: Commands, orders: Orders) -> None:
    assert "got both" in cli("queue", "hold", "orders", orders.pending, "--reason", "unknown").err
    assert "got neither" in cli("queue", "hold", "orders").err


def test_the_help_of_hold_names_the_options_that_record(cli: Commands) -> None:
    assert "With --as, such as" in " ".join(cli.ok("queue", "hold", "--help").out.split())


def test_retry_of_one_message_that_is_neither_dead_nor_failed_is_an_error(
    cli: Commands, orders: Orders
) -> None:
    for word in ("pending", "active", "delayed", "held"):
        ran = cli("queue", "retry", "orders", getattr(orders, word)[-8:], "-o", "json")
        assert ran.code == 3
        assert ran.error()["code"] == "invalid_request"
        assert ran.error()["message"].endswith(f"to be dead or failed, got '{word}'")
    assert cli("queue", "retry", "orders", "ffff0000").code == 4


def test_retry_of_many_skips_what_is_neither_with_a_line_for_each(cli: Commands, orders: Orders) -> None:
    ran = cli.ok("queue", "retry", "orders", orders.dead, orders.failed[-8:], orders.pending[-8:], "ffff0000")
    assert ran.lines == [
        f"{orders.dead[-8:]}  retried",
        f"{orders.failed[-8:]}  retried",
        f"{orders.pending[-8:]}  skipped: neither dead nor waiting after a failure",
        "ffff0000  skipped: not found in this queue",
        "2 messages of queue 'orders' retried",
    ]
    assert status(cli, orders.dead) == status(cli, orders.failed) == "pending"


def test_a_message_of_another_queue_is_not_found(cli: Commands, orders: Orders) -> None:
    cli.ok("queue", "create", "other")
    assert cli("queue", "drop", "other", orders.dead, "-y").code == 4
    assert status(cli, orders.dead) == "dead"


@pytest.mark.parametrize("args", [["--all-dead"], ["--status", "dead"]])
def test_all_dead_are_retried_and_failed_ones_keep_their_cooldown(
    cli: Commands, orders: Orders, args: list[str]
) -> None:
    result = cli.json("queue", "retry", "orders", *args, "-y")
    assert result["changed"] == [orders.dead]
    assert status(cli, orders.failed) == "failed"


def test_all_failed_are_retried_and_dead_ones_stay_dead(cli: Commands, orders: Orders) -> None:
    result = cli.json("queue", "retry", "orders", "--status", "failed", "-y")
    assert result["changed"] == [orders.failed]
    assert status(cli, orders.dead) == "dead"


def test_a_retry_without_either_is_both(cli: Commands, orders: Orders) -> None:
    assert set(cli.json("queue", "retry", "orders", "--min-attempts", "1", "-y")["changed"]) == {
        orders.failed,
        orders.dead,
    }


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--status", "pending"],
        ["--status", "dead", "abcd1234"],
        ["--all-dead", "--status", "failed"],
        ["abcd1234", "--key", "k"],
    ],
)
def test_retry_needs_exactly_one_way_to_say_which(cli: Commands, orders: Orders, args: list[str]) -> None:
    assert cli("queue", "retry", "orders", *args).code == 2


def test_nothing_to_retry_is_a_success_that_says_so(cli: Commands, orders: Orders) -> None:
    assert cli.ok("queue", "retry", "orders", "--error", "nowhere").lines == ["nothing to do"]


def test_an_unknown_queue_is_an_error_also_when_many_are_given(cli: Commands, orders: Orders) -> None:
    assert cli("queue", "retry", "ordres", "aaaaaaaa", "bbbbbbbb").code == 4
    assert cli("queue", "retry", "ordres", "--all-dead", "-y").code == 4


@pytest.fixture
def mails(broker: Opener) -> list[str]:
    """Three dead mails: acme 421, acme 550, globex 421."""
    with broker() as opened:
        opened.create_queue("mails", retry="none")
        messages = [
            NewMessage(b"m", fairness_key=key, headers={"shop": key}) for key in ("acme", "acme", "globex")
        ]
        ids = opened.enqueue_many("mails", messages)
        errors = dict(zip(ids, ("SMTP 421", "SMTP 550", "SMTP 421"), strict=True))
        reasons = dict(
            zip(ids, ("transport_unavailable", "validation_failure", "transport_unavailable"), strict=True)
        )
        opened.settle(
            [Fail(d, error=errors[d.id], reason=reasons[d.id]) for d in opened.claim("mails", limit=3)]
        )
    return ids


@pytest.mark.parametrize(
    ("args", "picks"),
    [
        (["--reason", "validation_failure"], [1]),
        (["--error", "421"], [0, 2]),
        (["--error-regex", "4.1$"], [0, 2]),
        (["--key", "acme"], [0, 1]),
        (["--header", "shop=globex"], [2]),
        (["--key", "acme", "--error", "421"], [0]),
        (["--older-than", "1h"], []),
        (["--newer-than", "1h"], [0, 1, 2]),
        (["--min-attempts", "2"], []),
        (["--max-attempts", "1"], [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("verb", ["retry", "drop"])
def test_a_filter_picks_what_it_says_and_the_exact_number_is_shown_first(
    cli: Commands, mails: list[str], verb: str, args: list[str], picks: list[int]
) -> None:
    refused = cli("queue", verb, "mails", *args)
    if not picks:
        assert (refused.code, refused.out) == (0, "nothing to do\n")
        return
    assert refused.code == 2
    assert f"would {verb} {len(picks)} message{'s' if len(picks) > 1 else ''} of queue 'mails'" in refused.err
    assert sorted(cli.json("queue", verb, "mails", *args, "-y")["changed"]) == sorted(
        mails[pick] for pick in picks
    )


def test_what_came_up_or_changed_while_someone_thought_about_it_is_left_alone(
    cli: Commands, broker: Opener, mails: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker() as opened:

        def think(what: str, *, yes: bool) -> None:
            assert what == "drop 2 messages of queue 'mails' for good"
            opened.retry("mails", [mails[0]])
            opened.quarantine("mails", [NewMessage(b"new")], reason="transport_unavailable")

        monkeypatch.setattr(operators, "open_target", lambda: nullcontext(opened))
        monkeypatch.setattr(operators, "confirm", think)
        assert cli.json("queue", "drop", "mails", "--reason", "transport_unavailable")["changed"] == [
            mails[2]
        ]
        assert (opened.stats("mails").ready, opened.stats("mails").dead) == (1, 2)


def test_bury_and_fail_record_what_the_operator_says(cli: Commands, orders: Orders) -> None:
    cli.ok(
        "queue", "bury", "orders", orders.pending, "--because", "no such shop", "--as", "validation_failure"
    )
    cli.ok("queue", "fail", "orders", orders.active, "--because", "stuck", "--as", "timeout_exceeded")
    for message_id, reason, text in (
        (orders.pending, "validation_failure", "no such shop"),
        (orders.active, "timeout_exceeded", "stuck"),
    ):
        last = cli.json("queue", "inspect", "orders", message_id)["failures"][-1]
        assert (last["reason"], last["error"]) == (reason, text)


def test_prune_wants_an_age_or_all_and_shows_the_number(cli: Commands, mails: list[str]) -> None:
    assert cli("queue", "prune", "mails").code == 2
    assert cli("queue", "prune", "mails", "--all", "--older-than", "1h").code == 2
    assert cli.ok("queue", "prune", "mails", "--older-than", "1h", "-y").lines == ["nothing to do"]
    assert len(cli.json("queue", "prune", "mails", "--all", "--dry-run")["changed"]) == 3
    assert "drop 3 messages of queue 'mails' for good" in cli("queue", "prune", "mails", "--all").err
    assert sorted(cli.json("queue", "prune", "mails", "--all", "-y")["changed"]) == mails


def test_more_than_one_call_may_touch_is_said(
    cli: Commands, broker: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size("operator_step_messages"), 5)
    with broker() as opened:
        opened.create_queue("many")
        opened.quarantine("many", [NewMessage(b"x") for _ in range(8)], error="e")
    assert (
        "drop 5 messages, the first of more than that, of queue 'many'"
        in cli("queue", "drop", "many", "--error", "e").err
    )
    ran = cli.ok("queue", "drop", "many", "--error", "e", "-y")
    assert ran.lines[-1] == "more messages match; run the command again to continue"
    assert cli.json("queue", "drop", "many", "--error", "e", "-y")["more"] is False


def test_a_stream_is_let_past_the_message_at_its_head(cli: Commands, broker: Opener) -> None:
    with broker() as opened:
        opened.create_queue("q")
        first, second = opened.enqueue_many("q", [NewMessage(b"1", stream="s"), NewMessage(b"2", stream="s")])
        opened.hold("q", [first])
    assert cli.json("queue", "release-stream", "q", "s") == {"queue": "q", "stream": "s", "released": True}
    with broker() as opened:
        assert [delivery.id for delivery in opened.claim("q", limit=5)] == [second]
    assert cli.ok("explain", "q", "stream:s").lines[0] == f"message {first}: held"
    cli.ok("queue", "drop", "q", first, "--yes")
    assert cli.ok("queue", "release-stream", "q", "s").lines == ["no message blocks stream 's'"]
    refused = cli("queue", "release-stream", "q", "nothing")
    assert (refused.code, refused.err) == (
        3,
        "error: expected stream to be a stream of queue 'q' with live messages, got 'nothing'\n",
    )


def test_at_a_terminal_a_filter_asks_once(
    cli: Commands, mails: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "at_terminal", lambda: True)
    ran = cli("queue", "drop", "mails", "--key", "acme", input="y\n")
    assert ran.code == 0
    assert ran.err.startswith("This will drop 2 messages of queue 'mails' for good.")
    assert ran.lines[-1] == "2 messages of queue 'mails' dropped"
