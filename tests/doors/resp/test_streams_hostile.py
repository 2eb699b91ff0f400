"""The commands of Redis Streams with keys, and with words that make no sense."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest
from redis import ResponseError

from fairlead import Broker, NewMessage
from fairlead.middleware.stack import Layers
from fairlead.server.resp.door import RespDoor
from fairlead.server.resp.streams import pending
from fairlead.server.resp.streams.commands import COMMANDS, REFUSED
from fairlead.testing import open_in_memory
from tests.doors.resp.conftest import opened
from tests.doors.resp.streams_program import StreamClient
from tests.doors.resp.wire import Wire


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Broker, RespDoor]]:
    broker = open_in_memory()
    with opened(broker, layers=Layers(broker, keys=True), asks_for_keys=True) as door:
        yield broker, door


def _client(guarded: tuple[Broker, RespDoor], *grants: str) -> StreamClient:
    broker, door = guarded
    secret = broker.keys.create("test", grants).secret
    return StreamClient(int(door.address.rpartition(":")[2]), 2, is_async=False, key=secret)


def test_each_command_takes_the_rights_of_its_verbs(guarded: tuple[Broker, RespDoor]) -> None:
    producer = _client(guarded, "produce:q")
    consumer = _client(guarded, "consume:q")
    reader = _client(guarded, "consume:q", "read-payload:q")
    admin = _client(guarded, "admin:q")
    with pytest.raises(ResponseError, match=r"^FORBIDDEN .*admin"):
        producer.xadd("q", {"n": 1})
    with pytest.raises(ResponseError, match=r"^FORBIDDEN "):
        consumer.xgroup_create("q", "g", mkstream=True)
    guarded[0].create_queue("q")
    assert consumer.xgroup_create("q", "g")
    ids = [producer.xadd("q", {"n": n, "payload": "secret"}) for n in range(3)]
    with pytest.raises(ResponseError, match=r"^FORBIDDEN "):
        consumer.xadd("q", {"n": 1})
    for nobody in (producer, admin):
        with pytest.raises(ResponseError, match=r"^FORBIDDEN "):
            nobody.read("g", "c", {"q": ">"})

    assert len(consumer.read("g", "ann", {"q": ">"}, count=2)["q"]) == 2
    assert consumer.xpending("q", "g")["consumers"] == [{"name": "ann", "pending": 2}]
    assert consumer.xclaim("q", "g", "ann", 0, ids[:1], justid=True) == ids[:1]
    # Who may not read what it holds by looking is told so, and not shown empty bodies.
    for look in (
        lambda: consumer.read("g", "ann", {"q": "0"}),
        lambda: consumer.xclaim("q", "g", "ann", 0, ids[:1]),
        lambda: consumer.xrange("q"),
        lambda: consumer.xinfo_stream("q"),
    ):
        with pytest.raises(ResponseError, match=r"^FORBIDDEN .*read-payload"):
            look()
    with pytest.raises(ResponseError, match=r"^FORBIDDEN .*admin"):
        consumer.xdel("q", ids[2])
    with pytest.raises(ResponseError, match=r"^FORBIDDEN .*admin"):
        consumer.xgroup_destroy("q", "g")

    # The same name under another key is another consumer.
    assert reader.read("g", "ann", {"q": ">"})["q"][0][0] == ids[2]
    assert [entry_id for entry_id, _ in reader.read("g", "ann", {"q": "0"})["q"]] == ids[2:]
    assert reader.xclaim("q", "g", "ann", 0, ids, justid=True) == ids[2:]
    assert {one["name"].partition("/")[2] or one["name"] for one in reader.xinfo_consumers("q", "g")} == {
        "ann"
    }
    assert consumer.xack("q", "g", *ids[:2]) == 2
    with pytest.raises(ResponseError, match=r"^FORBIDDEN "):
        producer.xack("q", "g", ids[2])
    assert admin.xdel("q", ids[2]) == 1
    for one in (producer, consumer, reader, admin):
        one.close()


def test_a_stranger_learns_nothing(guarded: tuple[Broker, RespDoor]) -> None:
    wire = Wire(guarded[1].address)
    for name in [*COMMANDS]:
        reply = wire.ask(name.decode(), "q", "g", "1-1")
        assert str(reply).startswith("UNAUTHENTICATED ")
    wire.close()


def test_words_that_make_no_sense_are_refused_and_the_connection_goes_on(door: RespDoor) -> None:
    """Words in a random order, mostly such as the commands know, on a stream with a group and entries."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    wire = Wire(door.address)
    wire.ask("XGROUP", "CREATE", "hostile", "g", "0", "MKSTREAM")
    words: list[str | bytes] = [*_WORDS.decode().split(), b"", b"\xff", b"\x00", b"x" * 600]
    for _ in range(2000):
        command = chance.choice([*COMMANDS, *REFUSED])
        rest = [chance.choice(words) for _ in range(chance.randrange(9))]
        reply = wire.ask(command, *rest)
        if isinstance(reply, hiredis.ReplyError):
            code = str(reply).partition(" ")[0]
            assert code in _CODES, f"seed {seed}: {command!r} {rest}: {reply}"
    assert wire.ask("PING") == b"PONG"
    wire.close()


_CODES = {"INVALID_REQUEST", "NOGROUP", "BUSYGROUP", "ERR", "QUEUE_NOT_FOUND", "LIMIT_REACHED"}

#: Without BLOCK, which may mean to wait.
_WORDS = b"""
hostile g c hostile g c 0 1 - + > * $ 1-1 (1-1 0-0 COUNT NOACK STREAMS GROUP GROUPS CONSUMERS STREAM JUSTID IDS FAIL SILENT
FATAL IDLE MAXLEN MINID ~ = LIMIT IDMP IDMPAUTO NOMKSTREAM MKSTREAM CREATE DESTROY DELCONSUMER SETID LASTID FORCE RETRYCOUNT
CLAIM FULL payload 99999999999999999999 -1 18446744073709551615-18446744073709551615
"""


def test_what_programs_poll_is_not_in_the_audit_and_ranges_are(guarded: tuple[Broker, RespDoor]) -> None:
    broker, _ = guarded
    broker.create_queue("polled")
    admin = _client(guarded, "produce:polled", "consume:polled", "read-payload:polled")
    admin.xgroup_create("polled", "g")
    ids = [admin.xadd("polled", {"payload": "secret"}) for _ in range(3)]
    admin.read("g", "ann", {"polled": ">"})

    def looks() -> list[str]:
        return [
            entry.verb for entry in broker.audit.read() if entry.queue == "polled" and entry.who != "local"
        ]

    before = looks()
    assert admin.xpending("polled", "g")["pending"] == 3
    assert len(admin.xpending_range("polled", "g", "-", "+", 10, "ann")) == 3
    assert len(admin.read("g", "ann", {"polled": "0"})["polled"]) == 3
    assert len(admin.xautoclaim("polled", "g", "ann", 0)[1]) == 3
    assert len(admin.xclaim("polled", "g", "ann", 0, ids)) == 3
    assert looks() == before
    assert len(admin.xrange("polled")) == 3
    assert "browse" in looks()


def test_many_pending_entries_are_looked_at_by_threads_of_the_pool(
    guarded: tuple[Broker, RespDoor], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, door = guarded
    broker.create_queue("many", visibility_timeout="10m")
    client = _client(guarded, "produce:many", "consume:many", "read-payload:many")
    client.xgroup_create("many", "g")
    broker.enqueue_many("many", [NewMessage(b"x")] * 2500)
    entries = [
        entry_id
        for _ in range(5)
        for entry_id, _ in client.read("g", "ann", {"many": ">"}, count=500)["many"]
    ]
    threads: set[int] = set()
    make_pending = pending._pending

    def watched(*arguments: Any, **options: Any) -> Any:
        threads.add(threading.get_ident())
        return make_pending(*arguments, **options)

    monkeypatch.setattr(pending, "_pending", watched)
    found = client.xpending("many", "g")
    assert (found["pending"], found["min"], found["max"]) == (2500, entries[0], entries[-1])
    assert [
        one["message_id"] for one in client.xpending_range("many", "g", entries[1200], "+", 3)
    ] == entries[1200:1203]
    assert [
        entry_id for entry_id, _ in client.read("g", "ann", {"many": entries[9]}, count=5)["many"]
    ] == entries[10:15]
    cursor, claimed, _ = client.xautoclaim("many", "g", "ann", 0, count=100)
    assert (cursor, [entry_id for entry_id, _ in claimed]) == (entries[100], entries[:100])
    assert threads
    assert door._event_loop.thread_id not in threads
