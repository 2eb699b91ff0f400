from __future__ import annotations

import json
from pathlib import Path

import fairlead
from tests.cli_views.conftest import Run


def documents(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_stats_shows_every_queue_but_dead_letters(run: Run, data: Path) -> None:
    header, emails, orders = run("--data", data, "stats").stdout.splitlines()
    assert header.split() == ["queue", "ready", "waiting", "leased", "dead", "bytes", "consumers", "state"]
    assert emails.split() == ["emails", "32", "4", "2", "1", "1.9", "KiB", "1"]
    assert orders.split()[:5] == ["orders", "2", "1", "0", "0"]


def test_a_dead_letter_queue_is_shown_when_it_is_named(run: Run, data: Path) -> None:
    found = run("--data", data, "stats", "emails.dlq", "orders").stdout.splitlines()
    assert [line.split()[0] for line in found[1:]] == ["emails.dlq", "orders"]
    # Each dead letter is counted once.
    assert found[1].split()[1:5] == ["-", "-", "0", "1"]


def test_a_paused_queue_says_so(run: Run, data: Path) -> None:
    with fairlead.open(data, durability="os") as broker:
        broker.pause("orders")
    assert run("--data", data, "stats", "orders").stdout.splitlines()[1].split()[-1] == "paused"


def test_an_unknown_queue_is_an_error_with_a_suggestion(run: Run, data: Path) -> None:
    assert "emails" in run("--data", data, "stats", "emials", code=4).stderr


def test_keys_are_shown_with_what_their_weights_give_them(run: Run, data: Path) -> None:
    text = run("--data", data, "stats", "emails", "--keys").stdout
    acme = next(line for line in text.splitlines() if line.startswith("acme"))
    assert acme.split()[:5] == ["acme", "3", "75.0%", "–", "–"]
    assert acme.split()[-1] == "14"


def test_stats_as_json_is_one_document(run: Run, data: Path) -> None:
    (found,) = documents(run("--data", data, "stats", "-o", "json", "--keys").stdout)
    emails, orders = found["queues"]  # type: ignore[misc]
    assert (
        emails["queue"],
        emails["ready"],
        emails["waiting"],
        emails["leased"],
        emails["dead"],
        emails["rates"],
    ) == ("emails", 32, 4, 2, 1, None)
    assert {share["key"]: share["fair"] for share in emails["shares"]} == {"acme": 0.75, "globex": 0.25}
    assert emails["throttles"][0]["key"] == "smtp"
    assert orders["queue"] == "orders"


def test_watching_as_json_gives_a_document_a_line_with_rates_from_the_second_on(run: Run, data: Path) -> None:
    first, second, third = documents(
        run(
            "--data", data, "stats", "orders", "--watch", "--interval", "10ms", "--looks", 3, "-o", "json"
        ).stdout
    )
    assert first["queues"][0]["rates"] is None  # type: ignore[index]
    for document in (second, third):
        assert document["queues"][0]["rates"]["ready_change"] == 0  # type: ignore[index]


def test_watching_without_a_terminal_prints_table_after_table(run: Run, data: Path) -> None:
    text = run("--data", data, "stats", "orders", "--watch", "--interval", "10ms", "--looks", 2).stdout
    first, second = text.strip().split("\n\n")
    assert first.splitlines()[0].split()[-4:] == ["out/s", "done/s", "fail/s", "state"]
    assert first.splitlines()[1].split()[-3:] == ["–", "–", "–"]
    assert second.splitlines()[1].split()[-3:] == ["·", "·", "·"]


def test_an_interval_needs_a_unit_and_some_length(run: Run, data: Path) -> None:
    assert "duration" in run("--data", data, "stats", "--watch", "--interval", "5", code=3).stderr
    assert "10ms" in run("--data", data, "stats", "--watch", "--interval", "0s", code=3).stderr


def test_a_broker_without_queues_says_how_to_make_one(run: Run, place: Path) -> None:
    fairlead.open(place / "empty", durability="os").close()
    assert "fairlead queue create" in run("--data", place / "empty", "stats").stdout
    assert documents(run("--data", place / "empty", "stats", "-o", "json").stdout) == [{"queues": []}]


def test_failures_shows_reasons_backlog_and_blocked_streams(run: Run, data: Path) -> None:
    emails = run("--data", data, "failures", "emails").stdout
    assert "4 failed and alive · 1 dead · 4 retries scheduled, next in 1h5" in emails
    assert "transport_unavailable" in emails
    orders = run("--data", data, "failures", "orders").stdout
    assert "poison candidates" in orders
    assert orders.splitlines()[-1].split()[:2] == ["order-7", "2"]


def test_failures_as_json_has_all_of_them(run: Run, data: Path) -> None:
    (found,) = documents(run("--data", data, "failures", "orders", "-o", "json").stdout)
    assert (found["by_attempts"], found["by_reason"], found["scheduled"], found["dead"]) == (
        {"1": 1},
        {"dependency_failure": 1},
        1,
        0,
    )
    (candidate,) = found["poison_candidates"]  # type: ignore[misc]
    assert candidate["id"] == found["blocked_streams"][0]["blocker"]  # type: ignore[index]
    assert (candidate["attempts"], candidate["reason"]) == (1, "dependency_failure")
    assert "error" in candidate
    assert found["complete"] is True


def test_failures_of_an_unknown_queue_is_an_error(run: Run, data: Path) -> None:
    assert "there is no queue 'nothing'" in run("--data", data, "failures", "nothing", code=4).stderr
