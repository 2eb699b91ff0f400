from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from fairlead import Broker, Fail
from tests.cli.conftest import Commands

Opener = Callable[[], AbstractContextManager[Broker]]


def test_an_operator_lists_opens_and_closes_throttle_keys(cli: Commands, broker: Opener) -> None:
    cli.ok("queue", "create", "prompts")
    assert cli.ok("throttle", "list").lines == ["no throttle key is closed"]
    with broker() as opened:
        opened.enqueue("prompts", b"x", throttle_keys=["api"])
        (delivery,) = opened.claim("prompts", consumer="w1")
        opened.settle([Fail(delivery, "429\x1b[2J", retry_after="10m", close="api")])
    (closed,) = cli.json("throttle", "list")
    assert (closed["key"], closed["by"], closed["queue"], closed["returns"]) == ("api", "w1", "prompts", 1)
    assert closed["until"] - closed["since"] == 600_000
    head, line = cli.ok("throttle", "list").lines
    assert head.split() == ["throttle", "closed", "until", "by", "returns", "probes", "why"]
    assert line.split()[0] == "api"
    assert "\x1b" not in line
    assert "closed throttles (of the whole broker)" in cli.ok("queue", "inspect", "prompts").out
    assert cli.json("stats", "prompts")["queues"][0]["closed_throttles"][0]["key"] == "api"
    assert cli.json("throttle", "open", "api") == {"key": "api", "was_closed": True}
    assert cli.ok("throttle", "open", "api").lines == ["throttle 'api' was not closed"]
    assert cli.ok("throttle", "close", "api", "2h", "--error", "maintenance").out.startswith(
        "throttle 'api' is closed until "
    )
    assert cli("throttle", "close", "api", "soon").code == 3
    assert cli("throttle", "close", "api").code == 2
