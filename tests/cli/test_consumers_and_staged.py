from __future__ import annotations

import pytest

from fairlead import NewMessage
from fairlead.errors import ConsumerNotFound
from tests.cli.conftest import Commands, Opener


@pytest.fixture
def etl(broker: Opener) -> str:
    """A consumer with claim 2 in hand, and a staged write."""
    with broker() as opened:
        opened.create_queue("orders")
        opened.enqueue_many("orders", [NewMessage(b"12345", stream="s")] * 5)
        generation = opened.consumers.register("etl", "orders", ttl="3d").generation
        opened.consumers.claim("etl", "orders", generation, 1, limit=1)
        opened.consumers.close("etl", "orders", generation, 1)
        opened.consumers.claim("etl", "orders", generation, 2, limit=3)
        opened.staging.stage("query/7", "a", "orders", [NewMessage(b"x" * 10)] * 2)
    return "etl"


def test_consumers_are_listed_with_what_they_hold(cli: Commands, etl: str) -> None:
    header, line = cli.ok("consumer", "list").lines
    assert header.split() == [
        "consumer",
        "queue",
        "closed",
        "open",
        "messages",
        "bytes",
        "default_outcome",
        "last",
        "heard",
        "of",
        "expires",
    ]
    assert line.split()[:7] == ["etl", "orders", "1", "2", "3", "15", "complete"]
    (info,) = cli.json("consumer", "list")
    assert (info["name"], info["open"], info["messages"], info["ttl_ms"]) == ("etl", 2, 3, 3 * 86_400_000)


def test_one_is_shown_with_when_it_is_given_up(cli: Commands, etl: str) -> None:
    shown = cli.ok("consumer", "show", "orders", etl).out
    assert "claim 2: 3 messages, 15 bytes" in shown
    assert "claims up to 1" in shown
    assert "after 3d of silence" in shown
    assert "complete: a message without an outcome is completed" in shown
    known = cli.json("consumer", "show", "orders", etl)
    assert (known["last_closed"], known["default_outcome"]) == (1, "complete")


def test_one_whose_messages_without_an_outcome_go_back_says_so(
    cli: Commands, broker: Opener, etl: str
) -> None:
    with broker() as opened:
        opened.consumers.register("worker:orders", "orders", default_outcome="release")
    assert (
        "release: a message without an outcome returns"
        in cli.ok("consumer", "show", "orders", "worker:orders").out
    )


def test_a_release_asks_and_puts_messages_back(cli: Commands, etl: str) -> None:
    refused = cli("consumer", "release", "orders", etl)
    assert refused.code == 2
    assert "return 3 messages of claim 2 of consumer 'etl' to orders" in refused.err
    assert cli.json("stats", "orders")["queues"][0]["leased"] == 3
    assert cli.ok("consumer", "release", "orders", etl, "--yes").lines == [
        "released 3 messages of consumer 'etl' of orders"
    ]
    assert cli.json("stats", "orders")["queues"][0]["leased"] == 0
    assert "claim 2: it was released" in cli.ok("consumer", "show", "orders", etl).out


def test_a_dropped_consumer_is_forgotten(cli: Commands, etl: str) -> None:
    refused = cli("consumer", "drop", "orders", etl)
    assert refused.code == 2
    assert (
        "return 3 messages of claim 2 to orders, and forget consumer 'etl' with its 1 finished claim"
        in refused.err
    )
    assert cli.json("consumer", "drop", "orders", etl, "-y") == {
        "queue": "orders",
        "consumer": "etl",
        "dropped": True,
    }
    assert cli.ok("consumer", "list").lines == ["there are no durable consumers"]


def test_a_slip_in_a_name_is_told_the_nearest(cli: Commands, etl: str) -> None:
    for command in (("show",), ("release", "-y"), ("drop", "-y")):
        ran = cli("consumer", command[0], "orders", "elt", *command[1:])
        assert ran.code == 4
        assert "did you mean 'etl'?" in ran.err
    ran = cli("consumer", "show", "orders", "something-else", "-o", "json")
    assert ran.error()["code"] == ConsumerNotFound.code
    assert "fairlead consumer list" in cli("consumer", "show", "orders", "something-else").err


def test_staged_writes_are_listed_and_discarded(cli: Commands, etl: str) -> None:
    header, line = cli.ok("staged", "list").lines
    assert header.split() == ["token", "queue", "state", "chunks", "messages", "bytes", "since", "expires"]
    assert line.split()[:6] == ["query/7", "orders", "staged", "1", "2", "20"]
    assert cli("staged", "discard", "orders", "query/7").code == 2
    assert cli.ok("staged", "discard", "orders", "query/7", "--yes").lines == [
        "dropped 1 chunk of staged write 'query/7' of orders"
    ]
    assert cli.ok("staged", "list").lines == ["there are no staged writes"]
    assert cli.json("staged", "discard", "orders", "query/7", "--yes") == {
        "queue": "orders",
        "token": "query/7",
        "chunks": 0,
    }


def test_a_published_write_is_listed_and_stays(cli: Commands, broker: Opener, etl: str) -> None:
    with broker() as opened:
        opened.staging.publish("query/7", "orders", ["a"])
    assert cli.ok("staged", "list").lines[1].split()[:3] == ["query/7", "orders", "published"]
    assert cli.json("staged", "discard", "orders", "query/7", "-y")["chunks"] == 0
    assert len(cli.json("staged", "list")) == 1
