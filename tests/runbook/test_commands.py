"""`fairlead runbook` and `fairlead apply`."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import fairlead
from fairlead.cli import confirm
from fairlead.cli.plan_view import plan_page
from fairlead.model.queue import QueueConfig, read_queue_options
from fairlead.model.views import QueueInfo
from fairlead.runbook.check import check_text
from fairlead.runbook.plan import make_plan
from fairlead.server.resp.door import RespDoor
from tests.cli.conftest import Commands

RUNBOOK = """\
project = "shop"

[queue.orders]
vars = ["customer"]
retry = { attempts = 3, cooldown = "30s", jitter = "full" }
hooks.on_enqueue = '''
function on_enqueue(msg)
  return {}
end
'''

[pipeline.bill]
steps = [{ name = "mail", command = ["./mail.sh", "{customer}"] }]

[worker.billing]
queue = "orders"
pipeline = "bill"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "runbook.toml"
    path.write_text(RUNBOOK)
    return path


def test_check_says_what_there_is(cli: Commands, file: Path) -> None:
    assert (
        cli.ok("runbook", "check", file).out
        == "no mistakes in 1 queue, 1 pipeline, 1 worker of project shop\n"
    )
    assert cli.json("runbook", "check", file)["queues"] == ["orders"]


def test_check_tells_every_mistake_with_its_line_and_exit_code_9(cli: Commands, file: Path) -> None:
    file.write_text(RUNBOOK.replace("retry =", "retires =").replace('"orders"', '"order"'))
    ran = cli("runbook", "check", file)
    assert (ran.code, ran.out) == (9, "")
    assert f"{file}:5: queue.orders.retires: unknown key; did you mean retry?" in ran.err
    assert (
        f"{file}:16: worker.billing.queue: there is no queue 'order' in the runbook; did you mean orders?"
        in ran.err
    )
    error = cli("runbook", "check", file, "-o", "json").error()
    assert error["code"] == "runbook_invalid"
    assert [problem[1:3] for problem in error["fields"]["problems"]] == [
        [5, "queue.orders.retires"],
        [16, "worker.billing.queue"],
    ]


def test_a_warning_is_no_mistake(cli: Commands, file: Path) -> None:
    file.write_text(RUNBOOK.replace("attempts = 3, ", ""))
    ran = cli("runbook", "check", file)
    assert ran.code == 0
    assert f"warning: {file}:5: queue.orders.retry.attempts: missing, so it is 0" in ran.err
    assert cli.json("runbook", "check", file)["warnings"][0]["path"] == "queue.orders.retry.attempts"


def test_show_prints_toml_and_json_that_mean_the_same(cli: Commands, file: Path, tmp_path: Path) -> None:
    (tmp_path / "again.toml").write_text(cli.ok("runbook", "show", file).out)
    (tmp_path / "again.json").write_text(cli.ok("runbook", "show", file, "-o", "json").out)
    shown = cli.json("runbook", "show", file)
    assert cli.json("runbook", "show", tmp_path / "again.toml") == shown
    assert cli.json("runbook", "show", tmp_path / "again.json") == shown
    assert shown["queue"]["orders"]["hooks"]["on_enqueue"].startswith("function on_enqueue")


def test_show_without_a_file_shows_the_runbook_in_force(cli: Commands, file: Path) -> None:
    cli("apply", file, "-y")
    file.unlink()
    assert cli.json("runbook", "show", "--project", "shop")["worker"]["billing"]["queue"] == "orders"
    ran = cli("runbook", "show")
    assert (ran.code, "--project" in ran.err) == (2, True)


def test_schema_prints_a_json_schema(cli: Commands) -> None:
    assert cli.json("runbook", "schema")["$schema"].startswith("https://json-schema.org/")
    assert json.loads(cli.ok("runbook", "schema").out)["title"] == "fairlead runbook"


def test_a_dry_run_shows_the_plan_and_changes_nothing(cli: Commands, file: Path) -> None:
    ran = cli("apply", file, "--dry-run")
    assert ran.code == 0
    assert ran.lines[0] == "+ queue shop/orders"
    assert "      +function on_enqueue(msg)" in ran.lines
    assert ran.lines[-1] == "project shop: 3 to create"
    assert not cli.data.exists()
    cli("apply", file, "-y")
    file.write_text(RUNBOOK.replace("attempts = 3", "attempts = 9"))
    assert "    retry.attempts: 3 -> 9" in cli("apply", file, "--dry-run").lines
    assert cli("apply", file, "--dry-run").lines[-1] == "project shop: 1 to change, 2 left alone"


def test_a_dry_run_makes_no_store_in_a_directory_that_is_there(cli: Commands, file: Path) -> None:
    cli.data.mkdir()
    assert cli("apply", file, "--dry-run").code == 2
    assert list(cli.data.iterdir()) == []


def test_at_a_terminal_the_plan_is_a_coloured_diff() -> None:
    before = check_text(RUNBOOK, "toml").runbook
    after = check_text(
        RUNBOOK.replace("attempts = 3", "attempts = 9").replace("return {}", "return nil"), "toml"
    ).runbook
    has = QueueInfo(
        "shop/orders",
        read_queue_options(before.queues["orders"].options, QueueConfig()),
        0,
        False,
        None,
        None,
    )
    out = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    out.print(plan_page(make_plan(after, [has], before)))
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    assert "\x1b[33m~ queue shop/orders\x1b[0m" in shown
    assert "retry.attempts: \x1b[31m3\x1b[0m -> \x1b[32m9\x1b[0m" in shown
    assert "\x1b[31m      -  return {}\x1b[0m" in shown
    assert "\x1b[32m      +  return nil\x1b[0m" in shown


def test_apply_twice_has_nothing_to_do_the_second_time(cli: Commands, file: Path) -> None:
    first = cli("apply", file, "--yes")
    assert (first.code, first.err) == (0, "applied\n")
    second = cli("apply", file)
    assert second.code == 0
    assert second.lines == [
        "  left alone: queue shop/orders, pipeline bill, worker billing",
        "project shop: nothing to do",
    ]


def test_what_is_orphaned_is_named_with_the_command_that_removes_it(cli: Commands, file: Path) -> None:
    cli("apply", file, "-y")
    cli("queue", "create", "shop/old")
    ran = cli("apply", file)
    assert (
        "? queue shop/old: no longer defined; the queue stays with its messages; delete it with: fairlead queue delete shop/old"
        in ran.lines
    )
    assert ran.lines[-1] == "project shop: nothing to do, 1 queue no longer defined"
    assert [queue["name"] for queue in cli.json("queue", "list")] == ["shop/old", "shop/orders"]


def test_apply_asks_and_only_a_yes_goes_on(
    cli: Commands, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = cli("apply", file)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    monkeypatch.setattr(confirm, "at_terminal", lambda: True)
    asked = cli("apply", file, input="n\n")
    assert (asked.code, "Nothing was changed" in asked.err) == (1, True)
    assert cli.json("queue", "list") == []
    assert cli("apply", file, input="y\n").code == 0
    assert len(cli.json("queue", "list")) == 1


def test_the_plan_as_json_is_one_document(cli: Commands, file: Path) -> None:
    plan = cli.json("apply", file, "-y")
    assert (plan["project"], plan["applied"], plan["nothing_to_do"]) == ("shop", True, False)
    assert [(entry["kind"], entry["action"]) for entry in plan["entries"]] == [
        ("queue", "create"),
        ("pipeline", "create"),
        ("worker", "create"),
    ]
    file.write_text(RUNBOOK.replace("attempts = 3", "attempts = 9"))
    [queue, *_] = cli.json("apply", file, "--dry-run")["entries"]
    assert queue["changes"] == [{"field": "retry.attempts", "old": 3, "new": 9}]


def test_the_project_comes_from_the_flag_then_the_environment_then_the_file(
    cli: Commands, file: Path
) -> None:
    def project(*args: str, env: dict[str, str | None] | None = None) -> str:
        found: str = cli("apply", file, "--dry-run", "-o", "json", *args, env=env).json()["project"]
        return found

    assert project() == "shop"
    assert project(env={"FAIRLEAD_PROJECT": "staging"}) == "staging"
    assert project("--project", "flag", env={"FAIRLEAD_PROJECT": "staging"}) == "flag"
    assert project(env={"FAIRLEAD_PROJECT": ""}) == "shop"
    assert cli("apply", file, "--dry-run", "--project", "no/good").code == 9


def test_management_works_for_a_queue_whose_definition_is_gone(cli: Commands, file: Path) -> None:
    cli("apply", file, "-y")
    with fairlead.open(cli.data, durability="os") as broker:
        broker.enqueue("shop/orders", b"{}")
    file.write_text('project = "shop"\n')
    cli("apply", file, "-y")
    assert "drained 1 message" in cli("queue", "drain", "shop/orders", "-y").err
    assert cli.ok("queue", "delete", "shop/orders", "-y").code == 0


@pytest.fixture
def address(data: Path) -> Iterator[str]:
    with fairlead.open(data.parent / "served", durability="os") as broker:
        door = RespDoor(broker, "127.0.0.1:0")
        door.start()
        yield door.address
        door.stop()


def test_a_server_is_told_the_same_as_a_directory(cli: Commands, file: Path, address: str) -> None:
    at: dict[str, str | None] = {"FAIRLEAD_DATA": None, "FAIRLEAD_ADDR": address}
    for text in (
        RUNBOOK,
        RUNBOOK.replace("attempts = 3", "attempts = 9"),
        RUNBOOK.replace("billing", "bills"),
    ):
        file.write_text(text)
        here, there = cli("apply", file, "-y"), cli("apply", file, "-y", env=at)
        assert (there.code, there.out, there.err) == (here.code, here.out, here.err)
        assert (
            cli("runbook", "show", "--project", "shop", env=at).out
            == cli("runbook", "show", "--project", "shop").out
        )


def test_checking_a_runbook_opens_no_store_and_no_connection(file: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "FAIRLEAD_DATA": str(tmp_path / "none"), "FAIRLEAD_ADDR": ""}
    command = [sys.executable, "-m", "fairlead.cli", "runbook", "check", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not (tmp_path / "none").exists()
