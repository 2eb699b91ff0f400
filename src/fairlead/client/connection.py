"""One blocking connection: it sends bytes and receives replies, each within a time limit. Used by one thread
at a time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from fairlead.client.addresses import Endpoint
from fairlead.client.commands import (
    NOT_REDIS,
    NOTHING,
    Greeting,
    another_protocol,
    greeting_command,
    make_reader,
    read_greeting,
)
from fairlead.client.outage import ConnectionBroken
from fairlead.errors import ProtocolMismatch, TlsFailed

if TYPE_CHECKING:
    import ssl

    from fairlead.client.identity import Identity

_CHUNK_BYTES = 1 << 16
_LARGE_CHUNK_BYTES = 1 << 20
#: The tolerated difference to a socket's timeout. Setting the timeout is a system call, so one that is nearly
#: right stays.
_NEARLY_S = 0.05


#: Errors that another attempt would meet again.
HOPELESS = (TlsFailed, ProtocolMismatch)


class NoAnswerInTime(ConnectionBroken):
    """The answer did not come in time. It may still come."""

    def __init__(self, *, sent: bool = True) -> None:
        super().__init__("no answer in time", sent=sent)


class NotRedis(ConnectionBroken):
    def __init__(self, wrong: Exception) -> None:
        super().__init__(f"the server does not speak the Redis protocol: {wrong}", sent=True)


class BlockingConnection:
    """Any failure makes the connection unusable for ever."""

    def __init__(self, opened: socket.socket, within_s: float) -> None:
        self._socket = opened
        self._reader = make_reader()
        self._timeout_s = 0.0
        self._chunk = _CHUNK_BYTES
        self._set_timeout(within_s)
        self._poll = select.poll()
        self._poll.register(opened, select.POLLIN)
        #: When bytes were last received.
        self.heard_s = time.monotonic()
        self.greeting = Greeting("")

    def send(self, data: bytes, within_s: float) -> None:
        self._set_timeout(within_s)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise _broken(error) from None

    def receive(self, within_s: float) -> list[Any]:
        """Wait for bytes, and return the replies that they complete: possibly none."""
        self._set_timeout(within_s)
        try:
            data = self._socket.recv(self._chunk)
        except OSError as error:
            raise _broken(error) from error
        if not data:
            raise ConnectionBroken("the server closed the connection", sent=True)
        self._chunk = _LARGE_CHUNK_BYTES if len(data) == self._chunk else _CHUNK_BYTES
        self.heard_s = time.monotonic()
        replies: list[Any] = []
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not NOTHING:
                replies.append(reply)
        except NOT_REDIS as wrong:
            raise NotRedis(wrong) from None
        return replies

    def exchange(self, command: bytes, within_s: float) -> Any:
        """The reply to one command."""
        ends_s = time.monotonic() + within_s
        try:
            self.send(command, within_s)
        except ConnectionBroken as broken:
            # The last bytes of the command were not sent, so nothing was carried out.
            raise ConnectionBroken(str(broken), sent=False) from None
        while True:
            replies = self.receive(ends_s - time.monotonic())
            if replies:
                return replies[0]

    def is_stale(self) -> bool:
        """Whether an idle connection was closed by the server, or received bytes without a request."""
        return bool(self._poll.poll(0))

    @property
    def has_replies(self) -> bool:
        """Whether `receive` would return without waiting."""
        return bool(self._poll.poll(0))

    def wake(self) -> None:
        """End the operation under way. Any thread may call it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _set_timeout(self, within_s: float) -> None:
        # Never 0, which would make the socket non-blocking.
        within_s = max(within_s, 0.001)
        if abs(within_s - self._timeout_s) > min(_NEARLY_S, within_s / 10):
            self._socket.settimeout(within_s)
            self._timeout_s = within_s


def open_connection(identity: Identity, within_s: float) -> BlockingConnection:
    """A connected and greeted connection. Raises `ConnectionBroken` with nothing sent, `TlsFailed` if another
    attempt cannot help, and the server's error if it refuses the API key.
    """
    ends_s = time.monotonic() + within_s
    endpoint = identity.endpoint
    opened = _connect(endpoint, within_s)
    try:
        context = identity.context()
        if context is not None:
            opened.settimeout(max(0.001, ends_s - time.monotonic()))
            opened = _wrap(opened, context, endpoint, identity)
        connection = BlockingConnection(opened, max(0.001, ends_s - time.monotonic()))
        try:
            reply = connection.exchange(greeting_command(identity.api_key), ends_s - time.monotonic())
        except ConnectionBroken as broken:
            if hopeless := _why_hopeless(broken, identity, ends_s):
                raise TlsFailed(str(endpoint), hopeless) from None
            if isinstance(broken, NotRedis):
                raise another_protocol() from None
            raise ConnectionBroken(str(broken), sent=False) from None
        connection.greeting = read_greeting(reply)
    except BaseException:
        opened.close()
        raise
    return connection


def _connect(endpoint: Endpoint, within_s: float) -> socket.socket:
    try:
        if endpoint.path:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            opened.settimeout(within_s)
            opened.connect(endpoint.path)
            return opened
        return _connect_to_one_of(_resolve(endpoint, within_s), within_s)
    except (OSError, UnicodeError) as error:
        raise _broken(error, sent=False) from None


def _connect_to_one_of(addresses: list[Any], within_s: float) -> socket.socket:
    """Connect to the first address that answers. A name may have an address of each family, and a server may
    listen on only one.
    """
    ends_s = time.monotonic() + within_s
    trouble: OSError = OSError("the name has no address")
    for at, (family, kind, protocol, _, address) in enumerate(addresses):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            break
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(left_s / (len(addresses) - at))
            opened.connect(address)
        except OSError as error:
            opened.close()
            trouble = error
            continue
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened
    raise trouble


def _resolve(endpoint: Endpoint, within_s: float) -> list[Any]:
    host, port = endpoint.host, endpoint.port
    with contextlib.suppress(OSError):
        # A numeric address needs no name server, so this does not wait.
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)

    # Name resolution has no time limit, so it runs in a thread that ends with the system's answer.
    asking = threading.Thread(target=ask, name="fairlead-resolve", daemon=True)
    asking.start()
    asking.join(within_s)
    if not found:
        raise TimeoutError
    if isinstance(found[0], Exception):
        raise found[0]
    addresses: list[Any] = found[0]
    return addresses


def _why_hopeless(broken: ConnectionBroken, identity: Identity, ends_s: float) -> str:
    """Why the greeting failed, if TLS explains the failure; "" if another attempt may help."""
    endpoint, cause = identity.endpoint, broken.__cause__
    if isinstance(broken, NoAnswerInTime) or endpoint.path:
        return ""
    if identity.tls is not None:
        return _why_refused(cause, identity, ends_s)
    from fairlead.client.diagnosis import SPEAKS_TLS, answers_in_tls

    try:
        with _connect(endpoint, max(0.001, ends_s - time.monotonic())) as asking:
            return SPEAKS_TLS if answers_in_tls(asking) else ""
    except (ConnectionBroken, TimeoutError):
        return ""


def _why_refused(cause: BaseException | None, identity: Identity, ends_s: float) -> str:
    """Why the TLS connection failed; "" if another attempt may help.

    In TLS 1.3 the client's handshake ends before the server has seen the certificate, and a server that
    refuses it may just close. In TLS 1.2 a successful handshake shows that the certificate was not the
    reason.
    """
    import ssl

    from fairlead.client.diagnosis import explain, say_refused

    assert identity.tls is not None
    name = identity.server_name or identity.endpoint.host
    if isinstance(cause, ssl.SSLError):
        return explain(cause, name, identity.tls)
    try:
        with _connect(identity.endpoint, max(0.001, ends_s - time.monotonic())) as asking:
            identity.older_context().wrap_socket(asking, server_hostname=name).close()
    except (ssl.SSLError, ConnectionResetError):
        return say_refused(identity.tls)
    except (OSError, ConnectionBroken):
        pass
    return ""


def _wrap(
    opened: socket.socket, context: ssl.SSLContext, endpoint: Endpoint, identity: Identity
) -> socket.socket:
    import ssl

    from fairlead.client.diagnosis import explain

    name = identity.server_name or endpoint.host
    try:
        return context.wrap_socket(opened, server_hostname=name)
    except ssl.SSLError as error:
        assert identity.tls is not None
        if hopeless := explain(error, name, identity.tls):
            raise TlsFailed(str(endpoint), hopeless) from None
        raise _broken(error, sent=False) from None
    except OSError as error:
        raise _broken(error, sent=False) from None


def _broken(error: Exception, *, sent: bool = True) -> ConnectionBroken:
    if isinstance(error, TimeoutError):
        return NoAnswerInTime(sent=sent)
    return ConnectionBroken(getattr(error, "strerror", None) or str(error) or type(error).__name__, sent=sent)
