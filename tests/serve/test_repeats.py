"""Lines that repeat: one line and a count, and nothing else is left out."""

from __future__ import annotations

import io
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairlead.config import LogSettings
from fairlead.errors import StoreFailed, StoreFull
from fairlead.server.logs import CountingHandler, Lines
from fairlead.server.repeats import Repeats
from fairlead.testing import run_server
from tests.client.scene import until

WINDOW_MS = 1000
FLOOD = 15


def record(
    text: str = "a connection was closed",
    *args: object,
    level: int = logging.INFO,
    error: Exception | None = None,
    name: str = "fairlead.sockets",
    **fields: object,
) -> logging.LogRecord:
    made = logging.LogRecord(
        name, level, __file__, 1, text, args, (type(error), error, error.__traceback__) if error else None
    )
    made.fields = fields
    return made


def raised(error: Exception, *, elsewhere: bool = False) -> Exception:
    try:
        if elsewhere:
            raise error
        raise error
    except Exception as caught:
        return caught


def test_a_line_is_written_once_in_a_window_and_then_counted() -> None:
    repeats = Repeats(WINDOW_MS)
    assert [repeats.is_repeat(record(peer=f"1.2.3.4:{n}"), now_ms=n) for n in range(100)] == [False] + [
        True
    ] * 99
    assert list(repeats.due(WINDOW_MS - 1)) == []
    (counted,) = repeats.due(WINDOW_MS)
    assert counted.fields == {"peer": "1.2.3.4:99", "repeats": 99}  # type: ignore[attr-defined]


def test_a_flood_that_goes_on_is_one_line_a_window() -> None:
    repeats = Repeats(WINDOW_MS)
    lines, counted = 0, 0
    for now_ms in range(10 * WINDOW_MS + 1):
        for count in repeats.due(now_ms):
            lines += 1
            counted += count.fields["repeats"]  # type: ignore[attr-defined]
        if not repeats.is_repeat(record(), now_ms):
            lines += 1
            counted += 1
    assert lines == 11
    assert counted == 10 * WINDOW_MS
    assert [count.fields["repeats"] for count in repeats.rest()] == [1]  # type: ignore[attr-defined]


def test_a_line_that_has_not_repeated_in_its_window_is_new_again() -> None:
    repeats = Repeats(WINDOW_MS)
    assert not repeats.is_repeat(record(), 0)
    assert list(repeats.due(WINDOW_MS)) == []
    assert not repeats.is_repeat(record(), WINDOW_MS)


DIFFERENT = [
    record(limit="idle"),
    record(limit="greeting"),
    record(limit="idle", door="grpc"),
    record(level=logging.WARNING, limit="idle"),
    record("another event", limit="idle"),
    record(limit="idle", name="fairlead.flight"),
    record("it failed", error=raised(ValueError("a"))),
    record("it failed", error=raised(KeyError("a"))),
    record("it failed", error=raised(ValueError("a"), elsewhere=True)),
    record("%d failed: %s", 3, StoreFull("/data", 1, 2)),
    record("%d failed: %s", 3, StoreFailed("no sync")),
    record("%s failed", "one step"),
    record("%s failed", "another step"),
]


def test_lines_that_say_something_else_are_not_repeats() -> None:
    repeats = Repeats(WINDOW_MS)
    assert [repeats.is_repeat(one, 0) for one in DIFFERENT] == [False] * len(DIFFERENT)
    assert [repeats.is_repeat(one, 0) for one in DIFFERENT] == [True] * len(DIFFERENT)


def test_the_same_fault_is_a_repeat_whoever_met_it_and_however_many_it_concerned() -> None:
    repeats = Repeats(WINDOW_MS)
    for pair in [
        (record(peer="a:1"), record(peer="b:2")),
        (
            record("%d failed: %s", 3, StoreFull("/data", 1, 2)),
            record("%d failed: %s", 4, StoreFull("/data", 1, 2)),
        ),
        (
            record("it failed", error=raised(ValueError("what one sent"))),
            record("it failed", error=raised(ValueError("what another sent"))),
        ),
    ]:
        assert [repeats.is_repeat(one, 0) for one in pair] == [False, True]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.CRITICAL])
def test_critical_and_debug_lines_always_pass(level: int) -> None:
    repeats = Repeats(WINDOW_MS)
    assert [repeats.is_repeat(record(level=level), 0) for _ in range(3)] == [False] * 3


def test_what_is_remembered_is_bounded_and_no_count_is_lost() -> None:
    repeats = Repeats(WINDOW_MS, max_remembered=10)
    counted = 0
    for n in range(1000):
        for _ in range(2):
            counted += sum(count.fields["repeats"] for count in repeats.due(0))  # type: ignore[attr-defined]
            repeats.is_repeat(record(page=f"/{n}"), 0)
        assert len(repeats._seen) <= 10
    counted += sum(count.fields["repeats"] for count in repeats.rest())  # type: ignore[attr-defined]
    assert counted == 1000


@pytest.fixture
def written() -> Iterator[tuple[CountingHandler, io.StringIO]]:
    stream = io.StringIO()
    handler = CountingHandler(stream, Repeats(window_ms=50))
    handler.setFormatter(Lines(LogSettings(format="json").format))
    yield handler, stream
    handler.close()


def test_a_count_is_written_although_no_other_line_follows(
    written: tuple[CountingHandler, io.StringIO],
) -> None:
    handler, stream = written
    for n in range(3):
        handler.handle(record(peer=f"1.2.3.4:{n}"))
    until(lambda: '"repeats"' in stream.getvalue(), "the count")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert 1 + sum(line.get("repeats", 0) for line in lines) == 3


def test_a_flood_of_connections_leaves_one_line_and_a_count(tmp_path: Path) -> None:
    """More connections than one address may have: each is closed, which is logged."""
    settings = {"durability": "os", "log.format": "json", "limits.max_connections_per_address": 1}
    with run_server(tmp_path / "data", grpc=True, settings=settings) as server:
        with ExitStack() as opened:
            for address in server.addresses.values():
                host, _, port = address.rpartition(":")
                sockets = [
                    opened.enter_context(socket.create_connection((host, int(port)))) for _ in range(FLOOD)
                ]
                for one in sockets[:-1]:
                    one.settimeout(60)
                    while one.recv(1 << 16):
                        pass
        # A stop would wait for connections that are open.
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.log.splitlines()]
    closed = [line for line in lines if line["event"] == "a connection was closed"]
    for door in server.addresses:
        first, *counts = [
            line for line in closed if line["door"] == door and line["limit"] == "connections_per_address"
        ]
        assert "repeats" not in first
        assert sum(line["repeats"] for line in counts) == FLOOD - 2
        assert len(counts) == 1
