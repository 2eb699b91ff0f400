from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.cli.plan_view import plan_record
from fairlead.runbook.apply import apply_plan, plan_for
from fairlead.runbook.check import read_runbook
from fairlead.testing import ServerProcess, open_in_memory, run_server
from tests.docs.pages import ROOT, SavedFile, Session, steps_in
from tests.docs.terminals import Terminals
from tests.examples.shop import EXAMPLE, QUEUE, Shop, Working, until

#: Long enough to be seen waiting, short enough to wait for.
COOLDOWN_MS = 300

FLAWED, MENDED = 'str(item["amount"])', 'str(item["amount"]).replace(",", ".")'


@pytest.fixture
def server(data: Path) -> Iterator[ServerProcess]:
    with run_server(data, settings={"durability": "os"}) as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Where opening RocksDB is quick, if the machine has such a place."""
    if not Path("/dev/shm").is_dir():
        yield tmp_path / "data"
        return
    with tempfile.TemporaryDirectory(prefix="fairlead-", dir="/dev/shm") as path:
        yield Path(path) / "data"


@pytest.fixture
def shop(tmp_path: Path, data: Path) -> Shop:
    """With no server, and nothing applied yet."""
    return Shop(tmp_path / "shop", "--data", str(data), cooldown=f"{COOLDOWN_MS}ms")


def with_a_flaw(shop: Shop) -> Shop:
    """As the tutorial has it first: no comma in amounts, and no word about it to the queue."""
    shop.edit("shop/steps.py", MENDED, FLAWED)
    shop.edit("shop/steps.py", "except ValueError", "except KeyError")
    return shop


def mend(shop: Shop) -> None:
    shop.edit("shop/steps.py", FLAWED, MENDED)
    shop.edit("shop/steps.py", "except KeyError", "except ValueError")


def test_the_three_runbooks_are_one_and_give_one_plan() -> None:
    first, *others = [
        read_runbook([EXAMPLE / f"runbook.{syntax}"]).runbook for syntax in ("toml", "hcl", "json")
    ]
    assert others == [first, first]
    assert set(first.workers) == {"billing", "returning"}
    with open_in_memory() as broker:
        before = [plan_record(plan_for(broker, book)) for book in (first, *others)]
        assert before[1:] == [before[0]] * 2
        assert {entry["action"] for entry in before[0]["entries"]} == {"create"}
        for _ in apply_plan(plan_for(broker, first), broker):
            pass
        assert all(plan_for(broker, book).nothing_to_do for book in (first, *others))


def test_a_failing_item_waits_dies_is_brought_back_and_is_done_with_a_server_a_worker_and_commands(
    tmp_path: Path, server: ServerProcess
) -> None:
    shop = with_a_flaw(Shop(tmp_path / "shop", "--addr", server.address, cooldown=f"{COOLDOWN_MS}ms"))
    shop.run("apply", "--yes", "runbook.toml")
    with fairlead.connect(server.address) as client:
        with Working(shop, "billing") as worker:
            good, bad = shop.push("ann", "12.50"), shop.push("bob", "7,95")
            until(lambda: client.stats(QUEUE).dead, "its death")
            until(lambda: client.stats(QUEUE).done, "the end of the good one")
            assert worker.stop()[0] == 0
        found = shop.messages()
        assert found[good]["status"] == "completed"
        letter = found[bad]
        assert letter["status"] == "dead"
        assert [failure["attempt"] for failure in letter["failures"]] == [1, 2, 3]
        for failure, following in zip(letter["failures"], letter["failures"][1:], strict=False):
            assert failure["due_ms"] == failure["at_ms"] + COOLDOWN_MS
            assert following["at_ms"] >= failure["due_ms"]
        assert "could not convert string to float: '7,95'" in letter["failures"][-1]["error"]
        assert 'steps.py", line' in letter["failures"][-1]["error"]

        mend(shop)
        with Working(shop, "billing") as worker:
            until(lambda: worker.has_said('"working"'), "the second worker")
            shop.run("queue", "retry", QUEUE, bad)
            until(lambda: client.stats(QUEUE).done == 2, "the end of the bad one")
            assert worker.stop()[0] == 0
    found = shop.messages()
    assert [(found[name]["status"], found[name]["attempts"]) for name in (good, bad)] == [
        ("completed", 0)
    ] * 2
    assert sorted(shop.paid()) == [["ann", 1250], ["bob", 795]]
    assert [mail.split(":")[0] for mail in shop.mails()] == ["to ann", "to bob"]
    shop.run("queue", "prune", QUEUE, "--all", "--yes")
    assert shop.messages() == {}


def test_the_same_in_a_directory_with_no_server(shop: Shop) -> None:
    with_a_flaw(shop)
    shop.run("apply", "--yes", "runbook.toml")
    bad, eve = shop.push("bob", "7,95"), shop.push("eve", "31.00", "--header", "channel=phone")
    assert shop.burst("billing")["failed"] == 2
    once = shop.messages()
    assert {message["status"] for message in once.values()} <= {"failed", "pending"}
    assert [failure["reason"] for failure in once[eve]["failures"]] == ["transport_unavailable"]
    assert once[eve]["fairness_key"] == "phone"
    until(lambda: shop.burst("billing")["dead"], "its death")
    dead = shop.messages()
    assert (dead[bad]["status"], dead[bad]["attempts"], len(dead[bad]["failures"])) == ("dead", 3, 3)
    assert dead[eve]["status"] == "completed"

    mend(shop)
    shop.run("queue", "retry", QUEUE, bad)
    assert "pending" in shop.run("queue", "retry", QUEUE, bad, code=3)
    garbage = shop.push("joe", "seven")
    last = shop.burst("billing")
    assert (last["completed"], last["failed"], last["dead"]) == (1, 0, 1), (
        "what is no amount is not tried again"
    )
    done = shop.messages()
    assert {name: done[name]["status"] for name in done} == {
        bad: "completed",
        eve: "completed",
        garbage: "dead",
    }
    assert done[bad]["attempts"] == 0
    assert shop.paid() == [["eve", 3100], ["bob", 795]]
    shop.run("queue", "prune", QUEUE, "--all", "--yes")
    assert shop.messages() == {}


def test_a_return_is_taken_out_of_its_folder_once_and_refunded(shop: Shop) -> None:
    shop.run("apply", "--yes", "runbook.toml")
    (shop.folder / "returns" / "inbox" / "r-18.json").write_text(
        json.dumps({"id": "r-18", "customer": "eve", "cents": 300})
    )
    (shop.folder / "returns" / "inbox" / "r-19.json").write_text(
        json.dumps({"id": "../mail", "customer": "mallory", "cents": 1})
    )
    assert shop.burst("returning")["completed"] == 2
    assert sorted(shop.paid()) == [["ann", -1250], ["eve", -300]]
    assert sorted(path.name for path in (shop.folder / "returns").rglob("*.json")) == [
        "r-17.json",
        "r-18.json",
        "r-19.json",
    ]
    assert sorted(path.name for path in (shop.folder / "returns" / "taken").iterdir()) == [
        "r-17.json",
        "r-18.json",
    ]
    assert shop.burst("returning")["completed"] == 0


def test_a_runbook_that_is_named_from_elsewhere_finds_its_steps_commands_and_hooks_beside_it_and_works_there(
    shop: Shop, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = str(shop.folder / "runbook.toml")
    shop.run("apply", "--yes", file, cwd=elsewhere)
    shop.push("ann", "12.50")
    shop.run("worker", "run", "billing", "--burst", "--file", file, cwd=elsewhere)
    assert shop.paid() == [["ann", 1250]]
    assert len(shop.mails()) == 1
    assert list(elsewhere.iterdir()) == []


def test_the_tutorial_ends_with_the_files_of_the_example() -> None:
    page = ROOT / "docs" / "tutorial-runbook.md"
    last = {step.name: step.code for step in steps_in(page) if isinstance(step, SavedFile)}
    for name in ("shop/bank.py", "mail.sh", "hooks/orders.lua"):
        assert last[name] == (EXAMPLE / name).read_text()
    assert set(last["shop/steps.py"].splitlines()) <= set(
        (EXAMPLE / "shop" / "steps.py").read_text().splitlines()
    )
    assert "left alone: queue shop/orders, pipeline bill, worker billing" in page.read_text()


def test_a_file_beside_the_runbook_may_be_named_like_a_module_of_python(shop: Shop) -> None:
    (shop.folder / "select.py").write_text("raise RuntimeError('not the module of that name')\n")
    shop.run("apply", "--yes", "runbook.toml")
    assert shop.burst("returning")["completed"] == 1


def test_its_readme_can_be_followed(shop: Shop) -> None:
    terminals = Terminals(shop.folder)
    (session,) = [step for step in steps_in(EXAMPLE / "README.md") if isinstance(step, Session)]
    terminals.follow(session)
    assert sorted(shop.paid()) == [["ann", -1250], ["ann", 1250]]
