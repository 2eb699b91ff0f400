"""Which connections must go: decided on values, whatever the sockets are."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys

import pytest

from fairlead.config import LimitSettings
from fairlead.server import sockets
from fairlead.server.limits import Limit, Limits, Read
from fairlead.server.sockets import SocketWatch, WatchedConnection, connection_of, too_many

SETTINGS = LimitSettings(
    max_connections=3,
    max_connections_per_address=2,
    max_arriving_bytes=1000,
    greeting_ms=5_000,
    idle_ms=60_000,
)


def made(number: int, **fields: object) -> WatchedConnection:
    given = {"door": "flight", "address": f"10.0.0.{number}", "since": 100.0, "spoke": True} | fields
    return WatchedConnection(fd=number, inode=number, name=f"{given['address']}:{number}", **given)  # type: ignore[arg-type]


def closed(
    *found: WatchedConnection, now: float = 101.0, room: int = 100, greets: bool = True
) -> dict[int, Limit]:
    return {one.fd: limit for one, limit in too_many(found, SETTINGS, room, now, greets=greets)}


def test_those_within_all_limits_stay() -> None:
    assert closed(made(1), made(2, spoke=False), made(3, arriving=900)) == {}


def test_one_that_says_nothing_for_long_goes() -> None:
    assert closed(
        made(1, silent_ms=60_001), made(2, silent_ms=60_000), made(3, door="grpc", silent_ms=60_001)
    ) == {1: Limit.IDLE, 3: Limit.IDLE}


def test_one_that_opens_no_channel_in_time_goes_and_only_at_the_door_that_tells_of_channels() -> None:
    found = (made(1, spoke=False), made(2), made(3, spoke=False, door="grpc"))
    assert closed(*found, now=105.1) == {1: Limit.GREETING}
    assert closed(*found, now=104.9) == {}
    assert closed(*found, now=105.1, greets=False) == {}


def test_beyond_the_limit_those_go_that_never_said_anything_and_then_the_longest_silent() -> None:
    found = [
        made(1, silent_ms=10),
        made(2, silent_ms=500),
        made(3, silent_ms=20),
        made(4, silent_ms=1, spoke=False),
        made(5, silent_ms=2),
    ]
    assert closed(*found) == {4: Limit.CONNECTIONS, 2: Limit.CONNECTIONS}


def test_each_door_has_a_limit_of_its_own() -> None:
    assert closed(*(made(number, door="grpc" if number > 3 else "flight") for number in range(1, 7))) == {}


def test_connections_are_fewer_where_the_process_may_open_few_files() -> None:
    assert len(closed(made(1), made(2), made(3), room=1)) == 2


@pytest.mark.parametrize(
    ("soft", "doors", "room"),
    [(1000, 3, 250), (1000, 1, 750), (3, 3, 1), (resource.RLIM_INFINITY, 3, 1 << 30)],
)
def test_doors_share_three_quarters_of_the_files_the_process_may_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, doors: int, room: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert sockets._room_for_connections(doors) == room


def test_one_address_cannot_have_all_places() -> None:
    found = [made(number, address="10.0.0.9", silent_ms=number) for number in (1, 2, 3)]
    assert closed(*found) == {3: Limit.CONNECTIONS_PER_ADDRESS}


def test_when_too_much_is_on_its_way_in_whoever_sends_most_goes() -> None:
    assert closed(made(1, arriving=600), made(2, arriving=500), made(3, arriving=10)) == {
        1: Limit.ARRIVING_BYTES
    }
    assert closed(made(1, arriving=1100), made(2, arriving=1200)) == {
        2: Limit.ARRIVING_BYTES,
        1: Limit.ARRIVING_BYTES,
    }


def test_of_those_that_send_about_as_much_the_longest_silent_goes() -> None:
    assert closed(made(1, arriving=590, silent_ms=1), made(2, arriving=520, silent_ms=99)) == {
        2: Limit.ARRIVING_BYTES
    }


def test_what_the_last_requests_still_take_in_memory_counts_like_what_is_on_its_way() -> None:
    assert closed(made(1, held=600), made(2, arriving=300, held=200)) == {1: Limit.ARRIVING_BYTES}


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1:50000"),
        ("ipv6:%5B::1%5D:50000", "::1:50000"),
        ("ipv6:[2001:db8::1]:7", "2001:db8::1:7"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:7", "10.0.0.1:7"),
        ("unix:", ":"),
    ],
)
def test_a_peer_is_named_as_its_socket_is(peer: str, name: str) -> None:
    assert connection_of(peer) == name


def test_a_connection_that_its_door_has_not_let_go_of_is_closed_and_counted_once() -> None:
    limits = Limits(LimitSettings(max_connections_per_address=1))
    with socket.create_server(("127.0.0.1", 0)) as door:
        watch = SocketWatch(limits, {"grpc": door.getsockname()[1]})
        with (
            socket.create_connection(door.getsockname()),
            door.accept()[0],
            socket.create_connection(door.getsockname()),
            door.accept()[0],
        ):
            for _ in range(3):
                watch.look()
            assert limits.refusals == {Limit.CONNECTIONS_PER_ADDRESS: 1}
            with socket.create_connection(door.getsockname()), door.accept()[0]:
                watch.look()
                assert limits.refusals == {Limit.CONNECTIONS_PER_ADDRESS: 2}
            watch.stop()


def test_sockets_of_a_door_are_found_measured_and_closed_and_no_others() -> None:
    limits = Limits(LimitSettings(idle_ms=1 << 40, max_arriving_bytes=10))
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_server(("127.0.0.1", 0)) as other:
        watch = SocketWatch(limits, {"flight": door.getsockname()[1]})
        with (
            socket.create_connection(door.getsockname()) as client,
            door.accept()[0] as accepted,
            socket.create_connection(other.getsockname()) as stranger,
            other.accept()[0] as elsewhere,
        ):
            before = len(os.listdir("/proc/self/fd"))
            watch.look()
            assert limits.connections == {"flight": 1}
            assert limits.refusals == {}
            client.sendall(b"x" * 11)
            accepted.settimeout(60)
            assert accepted.recv(11, socket.MSG_WAITALL) == b"x" * 11
            name = "{}:{}".format(*client.getsockname())
            # What was read of it is not on its way.
            limits.watched = True
            with limits.channel(name) as channel:
                channel.note(10)
                assert limits.read_by_connection() == {name: Read(10, 1, held=10)}
                watch.look()
                assert limits.refusals == {}
            client.sendall(b"x" * 11)
            assert accepted.recv(11, socket.MSG_WAITALL) == b"x" * 11
            assert limits.read_by_connection() == {name: Read(10, 1)}
            watch.look()
            assert limits.refusals == {Limit.ARRIVING_BYTES: 1}
            assert client.recv(1) == b""
            stranger.sendall(b"!")
            elsewhere.settimeout(60)
            assert elsewhere.recv(1) == b"!"
            watch.stop()
            assert len(os.listdir("/proc/self/fd")) <= before + 3
        watch.look()
        assert limits.connections == {"flight": 0}
        assert limits.read_by_connection() == {}


def test_connections_are_closed_also_when_no_descriptor_is_left() -> None:
    """In a process of its own, where all of them are used up."""
    script = """
import os, resource, socket
from fairlead.config import LimitSettings
from fairlead.server.limits import Limits
from fairlead.server.sockets import SocketWatch
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
limits = Limits(LimitSettings(max_connections=1))
door = socket.create_server(("127.0.0.1", 0))
watch = SocketWatch(limits, {"grpc": door.getsockname()[1]})
watch.look()
both = []
try:
    while True:
        client = socket.create_connection(door.getsockname())
        both.append((client, door.accept()[0]))
except OSError:
    pass
try:
    while True:
        os.dup(0)
except OSError:
    pass
watch.look()
print(limits.connections["grpc"] - 1 == sum(limits.refusals.values()) > 10)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


def test_the_kernel_tells_what_came_and_how_long_ago_where_it_is_looked_for() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        socket.create_connection(door.getsockname()) as client,
        door.accept()[0] as accepted,
    ):
        client.sendall(b"x" * 77)
        accepted.recv(77, socket.MSG_WAITALL)
        raw = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        assert struct.unpack_from("=Q", raw, 128) == (77,)
        assert 0 <= struct.unpack_from("=I", raw, 52)[0] < 60_000
