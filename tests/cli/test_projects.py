"""`--project` and `FAIRLEAD_PROJECT`: a name without a project means that of the project, in every command
that names a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead import Fail, NewMessage, errors
from fairlead.wire.statuses import STATUSES
from tests.cli.conftest import Commands, Opener
from tests.cli.test_processes import complete

PROJECTS = ("", "shop/", "mill/")
NOT_FOUND = STATUSES[errors.QueueNotFound].exit_code


@pytest.fixture
def twins(broker: Opener) -> Opener:
    """`orders` in two projects and in none: one ready, one leased and one dead message in each, and a stream."""
    with broker() as opened:
        for project in PROJECTS:
            name = f"{project}orders"
            opened.create_queue(name, retry="none")
            opened.enqueue_many(
                name, [NewMessage(b"dead"), NewMessage(b"leased"), NewMessage(b"ready", stream="s")]
            )
            dead, _ = opened.claim(name, limit=2, consumer="ann")
            opened.settle([Fail(dead, error="no")])
            opened.config.set(f"weight:{name}:acme", "2")
    return broker


def counts(opened: object) -> dict[str, tuple[int, int, int, bool, int]]:
    found = {}
    for info in opened.queues():  # type: ignore[attr-defined]
        stats = opened.stats(info.name)  # type: ignore[attr-defined]
        found[info.name] = (
            stats.ready,
            stats.leased,
            stats.dead,
            stats.paused,
            info.config.max_messages or 0,
        )
    return found


@pytest.mark.parametrize(
    "args",
    [
        ["queue", "update", "orders", "--max-messages", "7"],
        ["queue", "pause", "orders"],
        ["queue", "purge", "orders", "-y"],
        ["queue", "delete", "orders", "-y"],
        ["queue", "push", "orders", "x"],
        ["queue", "drain", "orders", "-y"],
        ["queue", "retry", "orders", "--all-dead", "-y"],
        ["queue", "retry", "orders.dlq", "--error", "no", "-y"],
        ["queue", "drop", "orders", "--error", "no", "-y"],
        ["queue", "bury", "orders", "--key", "default", "-y"],
        ["queue", "hold", "orders", "--key", "default", "-y"],
        ["queue", "fail", "orders", "--key", "default", "-y"],
        ["queue", "prune", "orders", "--all", "-y"],
        ["queue", "create", "other"],
        ["redrive", "orders", "-y"],
    ],
)
def test_an_act_is_done_in_the_project_and_nowhere_else(
    cli: Commands, twins: Opener, args: list[str]
) -> None:
    with twins() as opened:
        before = counts(opened)
    ran = cli(*args, "--project", "shop")
    assert ran.code == 0, ran.err
    with twins() as opened:
        after = counts(opened)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed
    assert all(name.startswith("shop/") for name in changed)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["queue", "show", "orders"], lambda said: [said["queue"]]),
        (["queue", "list"], lambda said: [queue["name"] for queue in said]),
        (["queue", "list", "ord"], lambda said: [queue["name"] for queue in said]),
        (["stats"], lambda said: [queue["queue"] for queue in said["queues"]]),
        (["stats", "orders"], lambda said: [queue["queue"] for queue in said["queues"]]),
        (["failures", "orders"], lambda said: [said["queue"]]),
        (["explain", "orders"], lambda said: [said["subject"].split()[-1].strip("'")]),
        (["top", "--once", "--interval", "10ms"], lambda said: [queue["queue"] for queue in said["queues"]]),
        (["top", "orders", "--once", "--interval", "10ms"], lambda said: [said["selected"]]),
        (["config", "list", "weight:ord"], lambda said: [key.split(":")[1] for key in said]),
        (["config", "get", "weight:orders:acme"], lambda said: [said["key"].split(":")[1]]),
    ],
)
def test_a_look_is_at_the_project_and_nowhere_else(
    cli: Commands, twins: Opener, args: list[str], named: Callable[[object], list[str]]
) -> None:
    assert named(cli.json(*args, "--project", "shop")) == ["shop/orders"]
    assert named(cli.json("--project", "mill", *args)) == ["mill/orders"]


def test_a_message_is_looked_for_in_the_project(cli: Commands, twins: Opener) -> None:
    with twins() as opened:
        ids = {project: opened.peek(f"{project}orders")[0].id for project in PROJECTS}
    shown = cli.json("queue", "inspect", "orders", ids["shop/"][-8:], "--project", "shop")
    assert shown["id"] == ids["shop/"]
    for args in (["queue", "inspect"], ["explain"], ["queue", "drop", "-y"]):
        other = cli(*args, "orders", ids["mill/"][-8:], "--project", "shop")
        assert other.code == STATUSES[errors.MessageNotFound].exit_code, args
    assert ids["shop/"] in cli.ok("explain", ids["shop/"], "--project", "mill", "-o", "json").out


def test_a_flag_beats_the_environment_and_a_name_with_a_project_beats_both(
    cli: Commands, twins: Opener
) -> None:
    def pushed(*args: str, env: dict[str, str | None] | None = None) -> str:
        found: str = cli("queue", "push", *args, "x", "-o", "json", env=env).json()["queue"]
        return found

    shop: dict[str, str | None] = {"FAIRLEAD_PROJECT": "shop"}
    assert pushed("orders", env=shop) == "shop/orders"
    assert pushed("orders", "--project", "mill", env=shop) == "mill/orders"
    assert pushed("mill/orders", env=shop) == "mill/orders"
    assert pushed("orders", "--project", "", env=shop) == "orders"
    assert pushed("orders") == "orders"
    assert (
        cli("--project", "mill", "queue", "push", "orders", "x", "-o", "json", env=shop).json()["queue"]
        == "mill/orders"
    )


def test_a_weight_is_set_in_the_project_and_what_is_no_name_of_a_queue_stays(
    cli: Commands, twins: Opener
) -> None:
    cli.ok("config", "set", "weight:orders:a:b/c", "5", "--project", "shop")
    cli.ok("config", "set", "throttle:orders:rate", "5", "--project", "shop")
    with twins() as opened:
        assert opened.config.get("weight:shop/orders:a:b/c") == "5"
        assert opened.config.get("throttle:orders:rate") == "5"


def test_what_was_meant_is_looked_for_in_the_project(cli: Commands, twins: Opener) -> None:
    cli.ok("queue", "create", "mails")
    near = cli("queue", "pause", "ordres", "--project", "shop")
    assert (near.code, "'shop/orders'" in near.err, "mill" in near.err) == (NOT_FOUND, True, False)
    elsewhere = cli("queue", "pause", "mails", "--project", "shop")
    assert (elsewhere.code, "did you mean" in elsewhere.err, "fairlead queue list" in elsewhere.err) == (
        NOT_FOUND,
        False,
        True,
    )


def test_a_shell_completes_the_names_of_the_project(data: Path, twins: Opener) -> None:
    assert complete(data, ["queue", "show", "--project", "shop", "ord"]) == ["orders", "orders.dlq"]
    assert complete(data, ["--project", "shop", "queue", "show", "mi"]) == []
    assert complete(data, ["--project", "shop", "queue", "show", "mill/"]) == [
        "mill/orders",
        "mill/orders.dlq",
    ]
    assert complete(data, ["stats", "ord"], FAIRLEAD_PROJECT="mill") == ["orders", "orders.dlq"]
