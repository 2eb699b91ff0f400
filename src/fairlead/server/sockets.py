"""Watches the TCP connections of the Flight and gRPC doors, whose libraries accept everything.

pyarrow's Flight server has no limit on connections, on silence, or on the size of a request (2 GiB). But its
sockets are descriptors of this process. So they are inspected a few times a second, and connections that are
too many, too slow or silent for too long are shut down: the library then sees a client that has left. Linux
only; elsewhere nothing is watched.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote

import msgspec

from fairlead.config import LimitSettings
from fairlead.server.limits import Limit, Limits, Read

_log = logging.getLogger("fairlead.sockets")

_MIN_PAUSE_S = 0.2
#: Inspecting takes at most about this share of a core.
_SHARE = 0.05
#: Offsets in Linux's struct tcp_info: milliseconds since the last data, and bytes received.
_LAST_CAME, _BYTES_CAME = (52, "=I"), (128, "=Q")
_TCP_INFO_BYTES = 136
#: What a request may take on the wire beyond its size in memory: a tenth, and this many bytes.
_OVERHEAD, _OVERHEAD_BYTES = 1.1, 2048
_SPARES = 3
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)
#: A quarter of all descriptors stays free for the store and the rest of the process; doors share the others.
_SHARE_OF_REST = 4


class WatchedConnection(msgspec.Struct):
    """One accepted connection, as of the last inspection. `name` is the peer's address and port, `arriving`
    the bytes of incomplete requests.

    `held` is the memory that the last request of each of its channels still takes. `cut`: this thread closed
    it, and its door has yet to release it.
    """

    fd: int
    inode: int
    door: str
    name: str
    address: str
    since: float
    silent_ms: int = 0
    came: int = 0
    arriving: int = 0
    held: int = 0
    spoke: bool = False
    read: Read = Read(0, 0)
    cut: bool = False


class SocketWatch:
    """`doors` maps the names of doors to the ports they listen on. One thread, from `start` to `stop`."""

    def __init__(self, limits: Limits, doors: Mapping[str, int]) -> None:
        self._limits = limits
        self._doors = {port: door for door, port in doors.items()}
        self._known: dict[int, WatchedConnection] = {}
        #: Descriptors that are not connections of the doors, by inode, so that each is inspected once.
        self._others: dict[int, int] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        #: Whether names of connections match the Flight door's names of its peers: until one was seen, none
        #: can be missing.
        self._names_fit = False
        self._spares: list[int] = []

    def start(self) -> None:
        if not os.path.isdir("/proc/self/fd"):
            return
        self._limits.watched = True
        self._put_aside()
        self._thread = threading.Thread(target=self._run, name="fairlead-sockets", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        pause_s = _MIN_PAUSE_S
        while not self._stopped.wait(pause_s):
            began = time.thread_time()
            try:
                self.look()
            except Exception:
                # This thread must continue: it keeps clients from exhausting the process.
                _log.exception("connections could not be looked at, for a reason that nobody foresaw")
            pause_s = max(_MIN_PAUSE_S, (time.thread_time() - began) / _SHARE)

    def look(self) -> None:
        """Find the connections, and close those beyond a limit."""
        try:
            self._look()
        except OSError as trouble:
            if trouble.errno not in _NONE_LEFT:
                raise
            # Clients have used up all descriptors: this inspection uses those that were reserved for it.
            while self._spares:
                os.close(self._spares.pop())
            self._look()
        self._put_aside()

    def _put_aside(self) -> None:
        with contextlib.suppress(OSError):
            while len(self._spares) < _SPARES:
                self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _look(self) -> None:
        reads = self._limits.read_by_connection()
        found = list(self._find(time.monotonic()))
        for one in found:
            self._note(one, reads.get(one.name))
        self._limits.connections = {
            door: sum(one.door == door for one in found) for door in self._doors.values()
        }
        self._limits.forget(reads.keys() - {one.name for one in found})
        # On a busy machine a door takes a while to release a closed connection, which must not be counted
        # twice.
        live = [one for one in found if not one.cut]
        for one, limit in too_many(
            live,
            self._limits.settings,
            _room_for_connections(len(self._doors)),
            time.monotonic(),
            greets=self._names_fit,
        ):
            if self._cut(one):
                one.cut = True
                self._limits.refused(limit)
                _log.info(
                    "a connection was closed",
                    extra={"fields": {"door": one.door, "peer": one.name, "limit": str(limit)}},
                )

    def _note(self, one: WatchedConnection, read: Read | None) -> None:
        """Received bytes, minus those that were read with a generous allowance for overhead, are still
        arriving.
        """
        if read is None:
            return
        self._names_fit = True
        one.spoke = True
        size, requests = max(0, read.size - one.read.size), max(0, read.requests - one.read.requests)
        one.arriving = max(0, one.arriving - int(size * _OVERHEAD) - requests * _OVERHEAD_BYTES)
        one.held = read.held
        one.read = read

    def _find(self, now: float) -> Iterator[WatchedConnection]:
        known, others = {}, {}
        for name in os.listdir("/proc/self/fd"):
            fd = int(name)
            try:
                status = os.fstat(fd)
            except OSError:
                continue
            inode = status.st_ino
            if self._others.get(fd) == inode or not stat.S_ISSOCK(status.st_mode):
                others[fd] = inode
                continue
            one = self._known.get(fd)
            try:
                one = self._measured(
                    one if one is not None and one.inode == inode else self._met(fd, inode, now)
                )
            except OSError as trouble:
                if trouble.errno in _NONE_LEFT:
                    raise
                continue
            if one is None:
                others[fd] = inode
            else:
                known[fd] = one
        self._known, self._others = known, others
        yield from known.values()

    def _met(self, fd: int, inode: int, now: float) -> WatchedConnection | None:
        with _Borrowed(fd) as borrowed:
            if (
                borrowed.family not in (socket.AF_INET, socket.AF_INET6)
                or borrowed.type != socket.SOCK_STREAM
            ):
                return None
            door = self._doors.get(borrowed.getsockname()[1])
            if door is None:
                return None
            try:
                host, port = borrowed.getpeername()[:2]
            except OSError:
                return None  # it listens
        return WatchedConnection(fd, inode, door, _name(host, port), _plain(host), now)

    def _measured(self, one: WatchedConnection | None) -> WatchedConnection | None:
        if one is None:
            return None
        with _Borrowed(one.fd) as borrowed:
            raw = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        (one.silent_ms,) = struct.unpack_from(_LAST_CAME[1], raw, _LAST_CAME[0])
        (came,) = struct.unpack_from(_BYTES_CAME[1], raw, _BYTES_CAME[0])
        one.arriving += came - one.came
        one.came = came
        return one

    def _cut(self, one: WatchedConnection) -> bool:
        """Check its identity again: its descriptor may be another connection's by now."""
        try:
            with _Borrowed(one.fd) as borrowed:
                if os.fstat(borrowed.fileno()).st_ino != one.inode:
                    return False
                borrowed.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        return True


def too_many(
    found: Iterable[WatchedConnection], settings: LimitSettings, room: int, now: float, *, greets: bool
) -> Iterator[tuple[WatchedConnection, Limit]]:
    """The connections that must be closed, and for which limit. Those that never opened a channel go first,
    then those that have been silent longest.
    """
    left = []
    for one in found:
        if one.silent_ms > settings.idle_ms:
            yield one, Limit.IDLE
        elif (
            greets
            and one.door == "flight"
            and not one.spoke
            and (now - one.since) * 1000 > settings.greeting_ms
        ):
            yield one, Limit.GREETING
        else:
            left.append(one)
    left.sort(key=lambda one: (one.spoke, -one.silent_ms))
    by_address = Counter((one.door, one.address) for one in left)
    kept: dict[str, list[WatchedConnection]] = {}
    for one in left:
        if by_address[one.door, one.address] > settings.max_connections_per_address:
            by_address[one.door, one.address] -= 1
            yield one, Limit.CONNECTIONS_PER_ADDRESS
        else:
            kept.setdefault(one.door, []).append(one)
    most = min(settings.max_connections, room)
    for connections in kept.values():
        over = max(0, len(connections) - most)
        for one in connections[:over]:
            yield one, Limit.CONNECTIONS
        yield from _arriving(connections[over:], settings.max_arriving_bytes)


def _arriving(
    connections: Iterable[WatchedConnection], most: int
) -> Iterator[tuple[WatchedConnection, Limit]]:
    """The connections to close because of unread bytes. The largest go first; among those of about equal
    size, those that have been silent longest, which are least likely to be working.

    The gRPC door does not report reads; it has its own limit on the size of a request.
    """
    flights = [one for one in connections if one.door == "flight"]
    largest = sorted(flights, key=lambda one: (-(one.arriving + one.held).bit_length(), -one.silent_ms))
    total = sum(one.arriving + one.held for one in largest)
    for one in largest:
        if total <= most:
            return
        total -= one.arriving + one.held
        yield one, Limit.ARRIVING_BYTES


class _Borrowed:
    """Another library's socket, by a duplicate descriptor: closing the duplicate leaves the original open,
    and it cannot disappear meanwhile.
    """

    def __init__(self, fd: int) -> None:
        own = os.dup(fd)
        try:
            self._socket = socket.socket(fileno=own)
        except BaseException:
            os.close(own)
            raise

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def connection_of(peer: str) -> str:
    """The name of a connection, from gRPC's name of a peer: `ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return f"{_plain(host.strip('[]'))}:{port}"


def _name(host: str, port: int) -> str:
    return f"{_plain(host)}:{port}"


def _plain(host: str) -> str:
    """The plain form of an IPv4 address, even if it arrived by way of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return str(getattr(address, "ipv4_mapped", None) or address)


def _room_for_connections(doors: int) -> int:
    """Connections for each of this many doors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 30
    return max(1, (soft - soft // _SHARE_OF_REST) // max(1, doors))


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors as far as the system allows: with the usual 1024, a few hundred clients
    would leave none for the store.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            _log.info("the limit of open files stays at %d", soft)
