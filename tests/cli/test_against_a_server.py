"""The same commands on a data directory and against a server, and the same answers."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.server.resp.door import RespDoor
from tests.cli.conftest import Commands

SCRIPT = """
queue create orders --retry fixed,cooldown=1h,attempts=5 --on-failure 'function on_failure(m) return {action="retry"} end'
queue create orders
queue push orders 'hello ann' --key acme --header shop=acme --stream s
queue push orders 'hello bob' --key globex
queue push orders 'later' --delay 1h
queue update orders --max-attempts 9 --retry-on validation_failure=none
queue list -o json
queue inspect orders -o json
queue show orders
queue peek orders -o json
queue pause orders
explain orders
queue resume orders
queue bury orders --key globex --because gone --as dependency_failure --yes -o json
queue show orders -s dead
queue retry orders --reason dependency_failure --dry-run -o json
queue retry orders --all-dead -y
queue hold orders --key acme -y
queue release-stream orders s -o json
queue unhold orders --key acme -y
queue fail orders ffff0000 ffff0001
queue drop orders --key globex
queue drop orders --key globex -y -o json
redrive orders --dry-run -o json
redrive orders --older-than nonsense
queue prune orders --all
config set throttle:api:rate 5
config set weight:orders:acme many
config list -o json
config get throttle:api:rates -o json
config unset throttle:api:rate
intent list
intent cancel 7
queue pause ordres -o json
explain ffff0000
queue drain orders -y -o json
queue purge orders -y -o json
queue delete orders -y
queue list
"""


@pytest.fixture
def address(data: Path) -> Iterator[str]:
    with fairlead.open(data.parent / "served", durability="os") as broker:
        door = RespDoor(broker, "127.0.0.1:0")
        door.start()
        yield door.address
        door.stop()


def alike(text: str) -> str:
    """Ids, times and padding differ from run to run, and so does whether a hook host had started.

    Totals count from when a broker was opened, which over a directory is with each command. Places count
    commits, and each close of a directory is one.
    """
    text = re.sub(r'"(place|seq)": \d+', r'"\1": PLACE', text)
    text = re.sub(r'"totals": \{[^}]*\}', "TOTALS", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\b[0-9a-f]{8}\b", "SHORT", text)
    text = re.sub(r"\b1[789]\d{11}\b", "MS", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"\b(\d+(ms|s|m|h))+\b", "AGE", text)
    return re.sub(r"[ ]+", " ", text)


def test_a_server_gives_the_same_answers_as_a_directory(cli: Commands, address: str) -> None:
    for line in SCRIPT.strip().splitlines():
        here = cli(*shlex.split(line))
        there = cli(*shlex.split(line), env={"FAIRLEAD_DATA": None, "FAIRLEAD_ADDR": address})
        assert (there.code, alike(there.out), alike(there.err)) == (
            here.code,
            alike(here.out),
            alike(here.err),
        ), line


def test_a_redrive_on_a_server_is_followed_and_left_to_it(cli: Commands, address: str) -> None:
    at = {"FAIRLEAD_DATA": None, "FAIRLEAD_ADDR": address}
    cli("queue", "create", "bulk", env=at)
    for n in range(3):
        cli("queue", "push", "bulk", str(n), env=at)
    cli("queue", "bury", "bulk", "--key", "default", "-y", env=at)
    detached = cli("redrive", "bulk", "--rate", "0.01", "--detach", "-y", env=at)
    assert "the redrive continues in the server" in detached.out
    number = re.search(r"cancel (\d+)", detached.out)
    assert number is not None
    assert cli("intent", "cancel", number[1], env=at).code == 0
    followed = cli("redrive", "bulk", "--rate", "1000", "-y", "-o", "json", env=at)
    assert followed.json()["moved"] == 2, "one was first, at once"


def test_a_server_that_is_not_there_is_an_error_with_a_way_out(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = cli("--addr", nobody, "--wait", "10ms", "queue", "list")
        assert ran.code == 7
        assert "fairlead serve" in ran.err
        assert "--data DIR" not in ran.err
        monkeypatch.setattr("fairlead.cli.global_options.DEFAULT_ADDR", nobody)
        assert "--data DIR" in cli("--wait", "10ms", "queue", "list", env={"FAIRLEAD_DATA": None}).err, (
            "nobody said where"
        )
