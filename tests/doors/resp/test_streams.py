"""The commands of Redis Streams, as unmodified redis-py gives them."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from redis import ResponseError

from fairlead import Broker
from fairlead.errors import Unavailable
from fairlead.request import LOCAL
from fairlead.server.resp.door import RespDoor
from fairlead.server.resp.streams.commands import COMMANDS, Running
from fairlead.server.resp.streams.session import Shared, StreamsSession
from fairlead.testing import ManualClock, open_in_memory, run_server
from fairlead.testing.engine import waiting_claims
from fairlead.verbs.consumers import ConsumersList
from tests.doors.resp.conftest import opened
from tests.doors.resp.streams_program import StreamClient, redis_cli
from tests.doors.resp.wire import Wire, pack
from tests.integration.world import wait_until

_numbers = itertools.count(1)


class Place(NamedTuple):
    """A door whose time the test moves."""

    broker: Broker
    clock: ManualClock
    port: int


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    clock = ManualClock()
    broker = open_in_memory(clock=clock)
    with opened(broker) as door:
        yield Place(broker, clock, _port(door))


@pytest.fixture
def stream() -> str:
    return f"s{next(_numbers)}"


@pytest.fixture
def client(place: Place) -> Iterator[StreamClient]:
    made = StreamClient(place.port, 2, is_async=False)
    yield made
    made.close()


def _port(door: RespDoor) -> int:
    return _port_of(door.address)


def _port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def _group(client: StreamClient, broker: Broker, stream: str, **options: Any) -> None:
    broker.create_queue(stream, **{"visibility_timeout": "30s", **options})
    client.xgroup_create(stream, "workers", "$")


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_whole_program_runs_unchanged(place: Place, stream: str, protocol: int, is_async: bool) -> None:
    """Producer, group, history, retries after the visibility timeout, autoclaim, pending, dead letters."""
    client = StreamClient(place.port, protocol, is_async=is_async)
    assert client.xgroup_create(stream, "workers", id="0", mkstream=True)
    place.broker.update_queue(stream, visibility_timeout="30s", retry={"policy": "immediate", "attempts": 3})
    ids = [client.xadd(stream, {"n": n, "payload": f"body {n}"}, maxlen=1000) for n in range(4)]
    assert ids == sorted(ids, key=_position)
    assert client.xlen(stream) == 4

    found = client.read("workers", "ann", {stream: ">"}, count=3)
    assert found == {stream: [(ids[n], {"n": str(n), "payload": f"body {n}"}) for n in range(3)]}
    assert client.xack(stream, "workers", ids[0]) == 1
    assert client.xack(stream, "workers", ids[0]) == 0
    # It starts anew, and goes on with what it has in hand.
    assert [entry_id for entry_id, _ in client.read("workers", "ann", {stream: "0"})[stream]] == ids[1:3]

    place.clock.advance(ms=10_000)
    assert client.xpending(stream, "workers") == {
        "pending": 2,
        "min": ids[1],
        "max": ids[2],
        "consumers": [{"name": "ann", "pending": 2}],
    }
    assert client.xpending_range(stream, "workers", "-", "+", 10, "ann", idle=9_000)[0] == {
        "message_id": ids[1],
        "consumer": "ann",
        "time_since_delivered": 10_000,
        "times_delivered": 1,
    }
    # Her leases protect her work; a heartbeat makes one of them longer.
    assert client.xclaim(stream, "workers", "bob", 0, [ids[1]]) == []
    assert client.xclaim(stream, "workers", "ann", 0, [ids[2]], justid=True) == [ids[2]]
    place.clock.advance(ms=20_000)

    # The first lease has ended. New entries come first, so that one is read, and the other has come back.
    assert client.xautoclaim(stream, "workers", "bob", 0, count=10)[1] == []
    assert client.read("workers", "bob", {stream: ">"}, count=1)[stream][0][0] == ids[3]
    cursor, claimed, gone = client.xautoclaim(stream, "workers", "bob", 30_000)
    assert (cursor, claimed, gone) == ("0-0", [(ids[1], {"n": "1", "payload": "body 1"})], [])
    assert client.xpending_range(stream, "workers", ids[1], ids[1], 1)[0]["times_delivered"] == 2
    assert client.xack(stream, "workers", ids[1], ids[3]) == 2

    # The third one kills all who take it.
    for _ in range(3):
        client.read("workers", "cid", {stream: ">"})
        place.clock.advance(ms=30_000)
    assert client.read("workers", "cid", {stream: ">"}) == {}
    assert client.xlen(stream) == 0
    [dead] = client.xrange(f"{stream}.dlq")
    assert dead == (ids[2], {"n": "2", "payload": "body 2"})
    assert client.xinfo_groups(stream)[0]["pending"] == 0
    client.close()


def test_xnack_releases_fails_and_buries(place: Place, client: StreamClient, stream: str) -> None:
    _group(client, place.broker, stream, retry={"policy": "immediate", "attempts": 5})
    ids = [client.xadd(stream, {"n": n}) for n in range(3)]
    client.read("workers", "ann", {stream: ">"})
    for mode, entry_id in zip(("SILENT", "FAIL", "FATAL"), ids, strict=True):
        assert client.xnack(stream, "workers", mode, entry_id) == 1
    infos = {info.headers["n"]: info for info in place.broker.peek(stream)}
    assert [infos[n].attempts for n in ("0", "1")] == [0, 1]
    assert place.broker.stats(f"{stream}.dlq").ready == 1
    assert client.xnack(stream, "workers", "FAIL", ids[0]) == 0
    with pytest.raises(ResponseError, match="the broker counts attempts"):
        client.xnack(stream, "workers", "FAIL", ids[0], retrycount=3)


def test_a_consumer_that_comes_late_acknowledges_nothing(
    place: Place, client: StreamClient, stream: str
) -> None:
    _group(client, place.broker, stream)
    [late, holder] = [redis.Redis(port=place.port, single_connection_client=True) for _ in range(2)]
    entry_id = client.xadd(stream, {"n": 1})
    late.xreadgroup("workers", "late", {stream: ">"})
    place.clock.advance(ms=30_000)
    holder.xreadgroup("workers", "holder", {stream: ">"})
    assert late.xack(stream, "workers", entry_id) == 0
    assert place.broker.stats(stream).leased == 1
    assert holder.xack(stream, "workers", entry_id) == 1
    late.close()
    holder.close()


def test_another_connection_of_the_consumer_acknowledges_what_it_read(
    place: Place, client: StreamClient, stream: str
) -> None:
    """As those of a pool do: one that has read as the consumer, and one that has read nothing."""
    _group(client, place.broker, stream)
    first, second = [client.xadd(stream, {"n": n}) for n in range(2)]
    pool = [redis.Redis(port=place.port, single_connection_client=True) for _ in range(3)]
    pool[0].xreadgroup("workers", "ann", {stream: ">"}, count=1)
    pool[1].xreadgroup("workers", "ann", {stream: ">"}, count=1)
    assert pool[1].xack(stream, "workers", first) == 1
    assert pool[2].xack(stream, "workers", second) == 1
    for one in pool:
        one.close()


def test_idmp_is_the_dedup_key(client: StreamClient, stream: str) -> None:
    """Two names that look alike when put together are two."""
    first = client.xadd(stream, {"n": 1}, idmp=("producer", "order/7"))
    assert client.xadd(stream, {"n": 2}, idmp=("producer", "order/7")) == first
    assert client.xadd(stream, {"n": 2}, idmp=("producer/order", "7")) != first
    same = client.xadd(stream, {"n": 3, "m": 4}, idmpauto="producer")
    assert client.xadd(stream, {"n": 3, "m": 4}, idmpauto="producer") == same
    assert client.xadd(stream, {"n": 34, "m": 4}, idmpauto="producer") != same
    assert client.xlen(stream) == 4


def test_what_is_not_text_is_for_the_field_payload(client: StreamClient, stream: str) -> None:
    raw = redis.Redis(port=client.connection_pool.connection_kwargs["port"])
    entry_id = raw.xadd(stream, {"payload": b"\xff\x00", "name": "é"})
    assert raw.xrange(stream) == [(entry_id, {b"name": "é".encode(), b"payload": b"\xff\x00"})]
    with pytest.raises(ResponseError, match="only the field payload may have any bytes"):
        raw.xadd(stream, {"image": b"\xff"})
    raw.close()


def test_refusals_say_why(client: StreamClient, stream: str) -> None:
    client.xgroup_create(stream, "workers", mkstream=True)
    with pytest.raises(ResponseError, match=r"^BUSYGROUP "):
        client.xgroup_create(stream, "workers", mkstream=True)
    with pytest.raises(ResponseError, match="delivers each message to one group; for a second group make"):
        client.xgroup_create(stream, "audit")
    for missing in (lambda: client.read("audit", "c", {stream: ">"}), lambda: client.xpending("no", "g")):
        with pytest.raises(ResponseError, match=r"^NOGROUP "):
            missing()
    with pytest.raises(ResponseError, match="MKSTREAM"):
        client.xgroup_create("nowhere", "workers")
    with pytest.raises(ResponseError, match="fairlead gives each message its id"):
        client.xadd(stream, {"n": 1}, id="5-1")
    with pytest.raises(ResponseError, match="has no position that could be set"):
        client.xgroup_setid(stream, "workers", "$")
    with pytest.raises(ResponseError, match="counts deliveries, and nobody else sets them"):
        client.xclaim(stream, "workers", "c", 0, ["1-1"], retrycount=7)
    for refused in (lambda: client.xread({stream: 0}), lambda: client.xtrim(stream, maxlen=1)):
        with pytest.raises(ResponseError, match=r"^INVALID_REQUEST "):
            refused()
    with pytest.raises(ResponseError, match="no such key"):
        client.xinfo_stream("nowhere")
    assert client.xadd("nowhere", {"n": 1}, nomkstream=True) is None
    assert client.xlen("nowhere") == client.xack("nowhere", "g", "1-1") == client.xdel("nowhere", "1-1") == 0
    assert client.xrange("nowhere") == client.xrevrange("nowhere") == []


def test_a_group_ends_and_another_may_come(place: Place, client: StreamClient, stream: str) -> None:
    _group(client, place.broker, stream)
    assert client.xgroup_createconsumer(stream, "workers", "ann") == 1
    assert client.xgroup_destroy(stream, "workers") == 1
    assert client.xgroup_destroy(stream, "workers") == 0
    assert client.xgroup_create(stream, "others")
    assert [info["name"] for info in client.xinfo_groups(stream)] == ["others"]


def test_two_groups_cannot_come_into_a_queue_at_once(place: Place, stream: str) -> None:
    session = StreamsSession(Shared(place.broker), LOCAL)
    first, second = [
        Running(COMMANDS[b"XGROUP"], session, [b"CREATE", stream.encode(), name, b"0"])
        for name in (b"a", b"b")
    ]
    assert isinstance(first.advance(None, None), ConsumersList)
    with pytest.raises(Unavailable, match="send this one again"):
        second.advance(None, None)
    # Its connection is lost.
    first.close()
    third = Running(COMMANDS[b"XGROUP"], session, [b"CREATE", stream.encode(), b"c", b"0"])
    assert isinstance(third.advance(None, None), ConsumersList)
    third.close()


def test_the_entries_of_a_consumer_that_is_deleted_return(
    place: Place, client: StreamClient, stream: str
) -> None:
    _group(client, place.broker, stream)
    entry_id = client.xadd(stream, {"n": 1})
    client.read("workers", "ann", {stream: ">"})
    assert client.xgroup_delconsumer(stream, "workers", "ann") == 1
    assert client.read("workers", "bob", {stream: ">"})[stream][0][0] == entry_id
    assert [info["name"] for info in client.xinfo_consumers(stream, "workers")] == ["bob"]


def test_noack_completes_what_it_delivers(place: Place, client: StreamClient, stream: str) -> None:
    _group(client, place.broker, stream)
    client.xadd(stream, {"n": 1})
    assert len(client.read("workers", "ann", {stream: ">"}, noack=True)[stream]) == 1
    assert client.xpending(stream, "workers")["pending"] == client.xlen(stream) == 0


def test_ranges_are_over_what_is_live(place: Place, client: StreamClient, stream: str) -> None:
    _group(client, place.broker, stream)
    ids = []
    for n in range(8):
        ids.append(client.xadd(stream, {"n": n}))
        # Far apart, so that looks from the end go back more than once.
        place.clock.advance(ms=4000 * n)
    client.read("workers", "ann", {stream: ">"}, count=1)
    client.xack(stream, "workers", ids.pop(0))
    assert client.xdel(stream, ids.pop(0), "5-5") == 1

    def shown(entries: list[tuple[str, dict[str, str]]]) -> list[str]:
        return [entry_id for entry_id, _ in entries]

    assert shown(client.xrange(stream)) == ids
    assert shown(client.xrange(stream, count=2)) == ids[:2]
    assert shown(client.xrange(stream, ids[1], ids[3])) == ids[1:4]
    assert shown(client.xrange(stream, f"({ids[1]}", f"({ids[3]}")) == [ids[2]]
    assert shown(client.xrange(stream, ids[1].partition("-")[0], ids[1].partition("-")[0])) == [ids[1]]
    for count in range(1, 7):
        assert shown(client.xrevrange(stream, count=count)) == ids[::-1][:count]
    assert shown(client.xrevrange(stream)) == ids[::-1]
    assert shown(client.xrevrange(stream, f"({ids[4]}", ids[1])) == ids[1:4][::-1]
    about = client.xinfo_stream(stream)
    assert (about["length"], about["groups"]) == (6, 1)
    assert [about["first-entry"][0], about["last-entry"][0]] == [ids[0], ids[-1]]


def test_a_range_of_large_entries_is_cut(place: Place, client: StreamClient, stream: str) -> None:
    """To about 64 MiB, from either end."""
    _group(client, place.broker, stream)
    ids = [client.xadd(stream, {"payload": "x" * (8 << 20)}) for _ in range(10)]
    assert [entry_id for entry_id, _ in client.xrange(stream)] == ids[:8]
    assert [entry_id for entry_id, _ in client.xrevrange(stream)] == ids[:1:-1]
    place.broker.delete_queue(stream)


def test_completed_messages_that_are_kept_are_no_entries(
    place: Place, client: StreamClient, stream: str
) -> None:
    _group(client, place.broker, stream, retain_completed="1h")
    ids = [client.xadd(stream, {"n": n}) for n in range(3)]
    client.read("workers", "ann", {stream: ">"}, count=1)
    client.xack(stream, "workers", ids[0])
    assert [entry_id for entry_id, _ in client.xrange(stream)] == ids[1:]
    assert (client.xlen(stream), place.broker.stats(stream).done) == (2, 1)


def test_a_reader_that_blocks_gets_what_comes(door: RespDoor, broker: Broker, stream: str) -> None:
    """In no thread of the server; of several streams those that have something."""
    reader = redis.Redis(port=_port(door), protocol=3, decode_responses=True)
    other = f"{stream}b"
    for name in (stream, other):
        reader.xgroup_create(name, "workers", mkstream=True)
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(reader.xreadgroup("workers", "ann", {stream: ">", other: ">"}, block=0))
    )
    waiting.start()
    wait_until(lambda: waiting_claims(broker, other) == 1)
    writer = redis.Redis(port=_port(door), decode_responses=True)
    entry_id = writer.xadd(other, {"n": 1})
    waiting.join()
    assert found == [{other: [[(entry_id, {"n": "1"})]]}]
    assert reader.xreadgroup("workers", "ann", {stream: ">"}, block=10) == {}
    reader.close()
    writer.close()


def test_a_pipeline_keeps_the_order_of_its_commands(door: RespDoor, stream: str) -> None:
    client = redis.Redis(port=_port(door), decode_responses=True)
    client.xgroup_create(stream, "workers", mkstream=True)
    pipeline = client.pipeline(transaction=False)
    for n in range(50):
        pipeline.xadd(stream, {"n": n})
    pipeline.xreadgroup("workers", "ann", {stream: ">"}, count=100)
    pipeline.xlen(stream)
    pipeline.xadd(f"{stream}-made", {"n": 1})
    pipeline.xlen(f"{stream}-made")
    *ids, read, length, _, made = pipeline.execute()
    assert [entry_id for entry_id, _ in read[0][1]] == ids
    assert (length, made) == (50, 1)
    client.close()


def test_what_comes_behind_a_reader_that_blocks_waits(door: RespDoor, broker: Broker, stream: str) -> None:
    wire = Wire(door.address)
    wire.ask("XGROUP", "CREATE", stream, "workers", "0", "MKSTREAM")
    read = pack("XREADGROUP", "GROUP", "workers", "ann", "BLOCK", 0, "STREAMS", stream, ">")
    wire.send(read + read + pack("XLEN", stream))
    wait_until(lambda: waiting_claims(broker, stream) == 1)
    for n in (b"1", b"2"):
        broker.enqueue(stream, n)
        [[_, [[_, fields]]]] = wire.read()
        assert fields == [b"payload", n]
    assert wire.read() == 2
    wire.close()


def test_a_connection_that_closes_in_the_middle_leaves_nothing_behind(
    door: RespDoor, broker: Broker, stream: str
) -> None:
    wire = Wire(door.address)
    wire.ask("XGROUP", "CREATE", stream, "workers", "0", "MKSTREAM")
    wire.send(pack("XREADGROUP", "GROUP", "workers", "ann", "BLOCK", 0, "STREAMS", stream, ">"))
    wait_until(lambda: waiting_claims(broker, stream) == 1)
    wire.close()
    wait_until(lambda: waiting_claims(broker, stream) == 0)
    broker.enqueue(stream, b"x")
    assert broker.stats(stream).ready == 1


def test_a_program_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    """With its group, what its consumers had in hand, and the same ids; acknowledged by id, because no server has sent it."""
    with run_server(tmp_path / "data", flight=False) as server:
        client = StreamClient(_port_of(server.addresses["resp"]), 3, is_async=False)
        client.xgroup_create("s", "workers", mkstream=True)
        ids = [client.xadd("s", {"n": n}) for n in range(3)]
        client.read("workers", "ann", {"s": ">"}, count=2)
        assert client.xack("s", "workers", ids[0]) == 1
        client.close()
        server.kill()
        server.start()
        client = StreamClient(_port_of(server.addresses["resp"]), 3, is_async=False)
        with pytest.raises(ResponseError, match=r"^BUSYGROUP "):
            client.xgroup_create("s", "workers", mkstream=True)
        assert client.read("workers", "ann", {"s": "0"}) == {"s": [(ids[1], {"n": "1"})]}
        assert client.xack("s", "workers", ids[1]) == 1
        assert client.read("workers", "ann", {"s": ">"}) == {"s": [(ids[2], {"n": "2"})]}
        later = client.xadd("s", {"n": 3})
        assert _position(later) > _position(ids[2])
        client.close()


def test_redis_cli_runs_the_commands(door: RespDoor, stream: str) -> None:
    commands = [
        f"XGROUP CREATE {stream} workers 0 MKSTREAM",
        f"XADD {stream} * tenant acme payload hello",
        f"XREADGROUP GROUP workers ann STREAMS {stream} >",
        f"XPENDING {stream} workers",
        f"XINFO GROUPS {stream}",
    ]
    for protocol in ("-2", "-3"):
        shown = subprocess.run(
            [redis_cli(), protocol, "-p", str(_port(door))],
            input="\n".join(commands),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert "hello" in shown
        assert "ann" in shown
        commands.pop(0) if protocol == "-2" else None


def _position(entry_id: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split("-"))
