from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import confirm
from fairlead.model.queue import QUEUE_OPTIONS, QueueConfig, read_queue_options
from tests.cli.conftest import Commands, Opener, Orders

ON_ENQUEUE = "function on_enqueue(msg)\n  return { fairness_key = 'k' }\nend\n"
ON_FAILURE = "function on_failure(msg) return { action = 'dlq' } end"

#: option -> (what is typed, what create_queue takes)
FLAGS: dict[str, tuple[list[str], Any]] = {
    "visibility_timeout": (["--visibility-timeout", "45000"], "45s"),
    "retry": (
        ["--retry", "exponential,base=10s,factor=3,attempts=4,jitter=full"],
        {
            "policy": "exponential",
            "base": "10s",
            "factor": 3,
            "attempts": 4,
            "jitter": "full",
        },
    ),
    "retry_in_stream": (["--retry-in-stream", '{"policy": "fixed", "cooldown": "1m"}'], {"cooldown": "1m"}),
    "retry_on": (
        ["--retry-on", "validation_failure=none", "--retry-on", "timeout_exceeded=fixed,cooldown=9s"],
        {
            "validation_failure": "none",
            "timeout_exceeded": {"cooldown": "9s"},
        },
    ),
    "failure_breaker": (
        ["--failure-breaker", "failures=50,within=1m,pause=5m"],
        {"failures": 50, "within": "1m", "pause": "5m"},
    ),
    "on_enqueue": (["--on-enqueue", "{script}"], ON_ENQUEUE),
    "on_failure": (["--on-failure", ON_FAILURE], ON_FAILURE),
    "max_attempts": (["--max-attempts", "7"], 7),
    "max_deliveries": (["--max-deliveries", "8"], 8),
    "max_messages": (["--max-messages", "9"], 9),
    "max_bytes": (["--max-bytes", "10000"], 10_000),
    "max_unsettled_per_consumer": (["--max-unsettled-per-consumer", "11"], 11),
    "max_unsettled_per_key": (["--max-unsettled-per-key", "12"], 12),
    "poison_after": (["--poison-after", "13"], 13),
    "quantum": (["--quantum", "14"], 14),
    "ttl": (["--ttl", "1h30m"], "90m"),
    "dead_retention": (["--dead-retention", "7d"], "7d"),
    "retain_completed": (["--retain-completed", "12h"], "12h"),
    "dedup": (["--dedup", "kept"], "kept"),
    "expired_to_dead": (["--expired-to-dead"], True),
    "ordering": (["--ordering", "strict"], "strict"),
}


def test_every_option_of_a_queue_has_a_flag_that_sets_it(
    cli: Commands, broker: Opener, tmp_path: Path
) -> None:
    assert set(FLAGS) == set(QUEUE_OPTIONS)
    script = tmp_path / "assign.lua"
    script.write_text(ON_ENQUEUE)
    cli.ok(
        "queue",
        "create",
        "full",
        *(arg.replace("{script}", str(script)) for typed, _ in FLAGS.values() for arg in typed),
    )
    with broker() as opened:
        (info, _) = opened.queues("full")
    assert info.config == read_queue_options(
        {option: meant for option, (_, meant) in FLAGS.items()}, QueueConfig()
    )


@pytest.mark.parametrize("option", QUEUE_OPTIONS)
def test_an_update_changes_one_option_and_keeps_the_others(
    cli: Commands, broker: Opener, tmp_path: Path, option: str
) -> None:
    (tmp_path / "assign.lua").write_text(ON_ENQUEUE)
    cli.ok("queue", "create", "one", "--max-messages", "100", "--max-deliveries", "3")
    typed, meant = FLAGS[option]
    cli.ok(
        "queue", "update", "one", *(arg.replace("{script}", str(tmp_path / "assign.lua")) for arg in typed)
    )
    with broker() as opened:
        (info, _) = opened.queues("one")
    before = {"max_messages": 100, "max_deliveries": 3, "retry_in_stream": {"policy": "exponential"}}
    assert info.config == read_queue_options({**before, option: meant}, QueueConfig())


def test_off_takes_an_option_back(cli: Commands, broker: Opener) -> None:
    cli.ok(
        "queue",
        "create",
        "q",
        *(
            arg
            for option in (
                "retry_in_stream",
                "retry_on",
                "failure_breaker",
                "on_failure",
                "ttl",
                "dead_retention",
                "retain_completed",
            )
            for arg in FLAGS[option][0]
        ),
    )
    cli.ok(
        "queue",
        "update",
        "q",
        "--retry-in-stream",
        "off",
        "--retry-on",
        "off",
        "--failure-breaker",
        "off",
        "--on-failure",
        "off",
        "--ttl",
        "off",
        "--dead-retention",
        "off",
        "--retain-completed",
        "off",
    )
    with broker() as opened:
        (info, _) = opened.queues("q")
    assert info.config == QueueConfig()


def test_what_an_option_shows_can_be_typed_again(cli: Commands) -> None:
    breaker = "failures=3,within=1h1m1s,pause=2h2m2s"
    made = cli.ok(
        "queue",
        "create",
        "a",
        *FLAGS["retry"][0],
        "--failure-breaker",
        breaker,
        "--ttl",
        "1d1h1m1s1ms",
        "--dedup",
        "3d2h1m",
    )
    shown = dict(line.strip().split(": ", 1) for line in made.lines[1:])
    assert (shown["failure-breaker"], shown["ttl"], shown["dedup"]) == (breaker, "1d1h1m1s1ms", "3d2h1m")
    again = [
        flag for name in ("retry", "failure-breaker", "ttl", "dedup") for flag in (f"--{name}", shown[name])
    ]
    cli.ok("queue", "create", "b", *again)
    first, second = cli.json("queue", "list")
    assert first["config"] == second["config"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--retry", "sometimes"], 3, "one of none, immediate, fixed, exponential"),
        (["--retry", "fixed,attempts"], 2, "name=value"),
        (["--retry", '{"policy"'], 2, "JSON"),
        (["--ttl", "30"], 3, "duration"),
        (["--visibility-timeout", "5"], 3, "between 100ms and 7d"),
        (["--ordering", "loose"], 3, "strict"),
        (["--on-enqueue", "missing.lua"], 2, "no file"),
        (["--retry-on", "late"], 2, "REASON=POLICY"),
        (["--max-attempts", "-1"], 2, "--max-attempts"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(
    cli: Commands, args: list[str], code: int, said: str
) -> None:
    ran = cli("queue", "create", "q", *args)
    assert ran.code == code
    assert said in ran.err
    assert not cli.data.exists() or cli.json("queue", "list") == []


def test_an_update_without_options_is_wrong_usage(cli: Commands, orders: Orders) -> None:
    assert cli("queue", "update", "orders").code == 2


def test_list_shows_counts_and_hides_dead_letter_queues_unless_asked(cli: Commands, orders: Orders) -> None:
    header, line = cli.ok("queue", "list").lines
    assert header.split() == ["queue", "ready", "waiting", "leased", "dead", "consumers", "state"]
    assert line.split() == ["orders", "1", "3", "1", "1", "1", "open"]
    assert [queue["name"] for queue in cli.json("queue", "list", "--all")] == ["orders", "orders.dlq"]
    (queue,) = cli.json("queue", "list", "ord")
    assert (queue["dead_letter_queue"], queue["stats"]["waiting"], queue["config"]["retry"]["base_ms"]) == (
        "orders.dlq",
        3,
        3_600_000,
    )
    assert cli.json("queue", "list", "zzz") == []


def test_a_paused_queue_says_so_until_it_is_resumed(cli: Commands, orders: Orders) -> None:
    cli.ok("queue", "pause", "orders")
    assert cli.ok("queue", "list").lines[1].split()[-1] == "paused"
    assert cli.json("queue", "resume", "orders") == {"queue": "orders", "paused": False}
    assert cli.ok("queue", "list").lines[1].split()[-1] == "open"


def test_inspect_shows_options_counts_and_keys(cli: Commands, orders: Orders) -> None:
    text = cli.ok("queue", "inspect", "orders").out
    assert "fixed,cooldown=1h,attempts=5" in text
    assert "1 ready, 3 waiting, 1 leased, 1 dead" in text
    assert "globex" in text
    found = cli.json("queue", "inspect", "orders")
    assert [key["key"] for key in found["stats"]["keys"]] == ["globex"]


def test_purge_says_what_it_will_drop_and_leaves_what_is_leased(cli: Commands, orders: Orders) -> None:
    refused = cli("queue", "purge", "orders")
    assert refused.code == 2
    assert (
        "drop 4 messages of queue 'orders' (1 ready, 3 waiting) for good; leased messages stay (1)"
        in refused.err
    )
    assert cli.json("queue", "purge", "orders", "--yes") == {"queue": "orders", "dropped": 4}
    assert cli.json("queue", "list")[0]["stats"]["leased"] == 1


def test_delete_says_what_goes_with_the_queue(cli: Commands, orders: Orders) -> None:
    refused = cli("queue", "delete", "orders")
    assert refused.code == 2
    assert (
        "delete queue 'orders' with 5 messages (1 ready, 3 waiting, 1 leased) and 1 dead letter for good"
        in refused.err
    )
    assert "--yes" in refused.err
    cli.ok("queue", "delete", "orders", "-y")
    assert cli.json("queue", "list", "-a") == []


def test_at_a_terminal_only_a_yes_goes_on(
    cli: Commands, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirm, "at_terminal", lambda: True)
    for answer in ("n\n", "\n", "", "yess\n"):
        ran = cli("queue", "delete", "orders", input=answer)
        assert (ran.code, ran.out) == (1, "")
        assert "Nothing was changed" in ran.err
        assert len(cli.json("queue", "list")) == 1
    asked = cli("queue", "delete", "orders", input="y\n")
    assert (asked.code, asked.out) == (0, "deleted queue 'orders'\n")
