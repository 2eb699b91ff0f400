"""The HTTP door: `/healthz`, `/readyz`, `/metrics`. It goes on answering while the server drains, so that a
stop can be watched.
"""

from __future__ import annotations

import gzip
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client.exposition import choose_encoder, gzip_accepted

import fairlead
from fairlead.engine.broker import Broker
from fairlead.errors import FairleadError, ServerStopping
from fairlead.middleware.stack import Layers
from fairlead.model.addresses import join_address, split_address
from fairlead.server.limits import Limit, Limits
from fairlead.server.metrics import Metrics
from fairlead.wire.statuses import status_of

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

_log = logging.getLogger("fairlead.http")

#: Silence after which a connection is closed, and the most that sending an answer may take.
TIMEOUT_S = 30.0
MAX_CONNECTIONS = 64
#: How long the accepting thread waits for a connection that was closed to make room.
_ROOM_S = 1.0
_STOP_S = 5.0
#: How much of a request that was refused is still listened to, and how long for each piece of it.
_HEARD_OUT_BYTES = 1024 * 1024
_HEARD_OUT_S = 1.0
#: What a client that was refused before it came to HTTP may take to say the rest.
_LAST_WORDS_S = 5.0
#: Pages that tell nothing about anybody's queues: whoever watches over a server asks for them without a key.
_OPEN = ("/", "/healthz", "/readyz")
_TEXT = "text/plain; charset=utf-8"


class Answer:
    """`body` is sent as it is; the caller says what it is."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, status: int, body: bytes, content_type: str = "application/json", **headers: str
    ) -> None:
        self.status = status
        self.body = body
        self.headers = {
            "Content-Type": content_type,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }


class HttpDoor:
    """At most `max_connections` at a time; when one more comes, the one that has kept us waiting longest is
    closed.

    So neither slow nor idle clients can keep a health check out.
    """

    name = "http"

    def __init__(
        self,
        broker: Broker,
        address: str,
        metrics: Metrics,
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        certificates: Certificates | None = None,
        layers: Layers | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.address = address
        self._limits = limits = limits or Limits()
        self._layers = layers or Layers(broker)
        self._broker = broker
        self._metrics = metrics
        self._certificates = certificates
        self._connections = Connections(max_connections, lambda: limits.refused(Limit.HTTP_CONNECTIONS))
        self._timeout_s = timeout_s
        self._draining = False
        #: One look at all queues at a time, however many ask.
        self._scraping = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._pages: dict[str, Callable[[Mapping[str, str], str], Answer]] = {
            "/": self._index,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._show_metrics,
        }

    def start(self) -> None:
        host, port = split_address(self.address, may_pick_port=True)
        family, _, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._server = _Server(
            family,
            (str(where[0]), int(where[1])),
            self,
            self._connections,
            self._timeout_s,
            self._certificates,
        )
        bound = self._server.server_address
        self.address = join_address(str(bound[0]), int(bound[1]))
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="fairlead-http",
            daemon=True,
        )
        self._thread.start()

    def drain(self) -> None:
        self._draining = True

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        self._connections.close_all(_STOP_S)

    def refused(self, status: int) -> None:
        """Called for what the library refuses by itself."""
        if status in (HTTPStatus.REQUEST_URI_TOO_LONG, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE):
            self._limits.refused(Limit.HTTP_REQUEST)

    def page_of(self, target: str) -> str:
        """For logs: of what was asked for only what is ours, because a stranger may have put a key into it."""
        path = target.partition("?")[0]
        return path if path in self._pages else "unknown"

    def answer(self, method: str, target: str, headers: Mapping[str, str], source: str = "") -> Answer:
        try:
            _, _, path, query, _ = urlsplit(target)
            unreadable = ""
        except ValueError as wrong:
            path, query, unreadable = "", "", str(wrong)
        try:
            # Before it is known whether there is such a page.
            caller = self._layers.admit(headers.get("Authorization"), source) if path not in _OPEN else None
            if unreadable:
                return _problem(HTTPStatus.BAD_REQUEST, "bad_request", unreadable)
            page = self._pages.get(path)
            if page is None:
                return _problem(
                    HTTPStatus.NOT_FOUND, "not_found", f"expected one of {', '.join(self._pages)}"
                )
            if method not in ("GET", "HEAD"):
                return _problem(
                    HTTPStatus.METHOD_NOT_ALLOWED,
                    "method_not_allowed",
                    "expected GET or HEAD",
                    Allow="GET, HEAD",
                )
            if caller is not None:
                # It tells of every queue.
                caller.rights.need_everywhere()
            return page(headers, query)
        except FairleadError as refused:
            return _refusal(refused)
        except Exception:
            _log.exception("a page could not be made", extra={"fields": {"page": path}})
            return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "the log of the server says more")

    def _index(self, headers: Mapping[str, str], query: str) -> Answer:
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in self._pages if path != "/")
        page = f"<!doctype html><title>fairlead</title><h1>fairlead {fairlead.__version__}</h1><ul>{links}</ul>\n"
        return Answer(HTTPStatus.OK, page.encode(), "text/html; charset=utf-8")

    def _healthz(self, headers: Mapping[str, str], query: str) -> Answer:
        return Answer(HTTPStatus.OK, b"ok\n", _TEXT)

    def _readyz(self, headers: Mapping[str, str], query: str) -> Answer:
        try:
            if self._draining:
                raise ServerStopping()
            self._broker.intents()
        except FairleadError as error:
            return _json(
                HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": error.code, "message": str(error)}
            )
        return _json(HTTPStatus.OK, {"ready": True})

    def _show_metrics(self, headers: Mapping[str, str], query: str) -> Answer:
        try:
            encode, content_type = choose_encoder(headers.get("Accept", ""))
        except (TypeError, ValueError):
            # A version that is no number; what everybody understands is not wrong.
            encode, content_type = choose_encoder("")
        wanted = parse_qs(query).get("name[]")
        registry: Any = self._metrics.registry
        with self._scraping:
            text = encode(registry.restricted_registry(wanted) if wanted else registry)
        if gzip_accepted(headers.get("Accept-Encoding", "")):
            return Answer(
                HTTPStatus.OK,
                gzip.compress(text, 5),
                content_type,
                Content_Encoding="gzip",
                Vary="Accept, Accept-Encoding",
            )
        return Answer(HTTPStatus.OK, text, content_type, Vary="Accept, Accept-Encoding")


class Connections:
    """The open ones, each with the time since which it waits for its client; None while we are at work for
    it.
    """

    def __init__(self, most: int, on_refused: Callable[[], None] = lambda: None) -> None:
        self._most = most
        self._on_refused = on_refused
        self._changed = threading.Condition()
        self._waiting_since: dict[socket.socket, float | None] = {}
        self._evicted: set[socket.socket] = set()

    def __len__(self) -> int:
        return len(self._waiting_since)

    def admit(self, connection: socket.socket) -> bool:
        """False when there is no room and none could be made."""
        with self._changed:
            if not self._changed.wait_for(self._has_room, _ROOM_S):
                self._on_refused()
                return False
            self._waiting_since[connection] = time.monotonic()
            return True

    def waits(self, connection: socket.socket) -> None:
        with self._changed:
            if connection in self._waiting_since:
                self._waiting_since[connection] = time.monotonic()
                self._changed.notify_all()

    def works(self, connection: socket.socket) -> None:
        with self._changed:
            if connection in self._waiting_since:
                self._waiting_since[connection] = None

    def leave(self, connection: socket.socket) -> None:
        with self._changed:
            self._waiting_since.pop(connection, None)
            self._evicted.discard(connection)
            self._changed.notify_all()

    def close_all(self, grace_s: float) -> None:
        with self._changed:
            for connection in self._waiting_since:
                _cut(connection)
            self._changed.wait_for(lambda: not self._waiting_since, grace_s)

    def _has_room(self) -> bool:
        """Makes some, if it can: asked again whenever a connection begins to wait or leaves."""
        if len(self._waiting_since) < self._most:
            return True
        waiting = [
            (since, connection) for connection, since in self._waiting_since.items() if since is not None
        ]
        if waiting and not self._evicted:
            _, slowest = min(waiting, key=lambda entry: entry[0])
            self._evicted.add(slowest)
            self._on_refused()
            _cut(slowest)
        return False


class _Server(TCPServer):
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        family: int,
        where: tuple[str, int],
        door: HttpDoor,
        connections: Connections,
        timeout_s: float,
        certificates: Certificates | None,
    ) -> None:
        self.address_family = family
        self.certificates = certificates
        self.door = door
        self.connections = connections
        self.timeout_s = timeout_s
        super().__init__(where, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """With the certificates that are current now. Nothing is read yet: that is for the connection's own
        thread.
        """
        accepted, client_address = super().get_request()
        if self.certificates is None:
            return accepted, client_address
        try:
            context = self.certificates.current.context
            return context.wrap_socket(
                accepted, server_side=True, do_handshake_on_connect=False
            ), client_address
        except BaseException:
            accepted.close()
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.admit(request):
            self.shutdown_request(request)
            return
        threading.Thread(
            target=self._converse,
            args=(request, client_address),
            name="fairlead-http-connection",
            daemon=True,
        ).start()

    def _converse(self, request: socket.socket, client_address: Any) -> None:
        try:
            request.settimeout(self.timeout_s)
            if not isinstance(request, ssl.SSLSocket) or _shake_hands(request):
                self.finish_request(request, client_address)
        except OSError:
            # The client went away, or was too slow: its own affair.
            _log.debug("a connection broke")
        except Exception:
            _log.exception("a connection ended by an error that nobody foresaw")
        finally:
            self.shutdown_request(request)
            self.connections.leave(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "fairlead"
    sys_version = ""
    #: Headers and body are two writes: the second must not wait for the acknowledgement of the first.
    disable_nagle_algorithm = True
    server: _Server

    def handle_one_request(self) -> None:
        self.server.connections.waits(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.connections.works(self.connection)
        if self.request_version == "HTTP/0.9":
            # Its answers have no status, so that nobody could tell a refusal from a page.
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            return
        answer = self.server.door.answer(self.command, self.path, self.headers, self.client_address[0])  # type: ignore[arg-type]
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # A body nobody reads would be taken for the next request.
            self.close_connection = True
        self._send(answer)

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """For what is no HTTP at all, or a method nobody has heard of."""
        self.close_connection = True
        self.server.door.refused(code)
        # The library takes what it cannot read for HTTP/0.9, whose answers have no status.
        self.request_version = self.protocol_version
        self._send(_problem(code, "bad_request", (message or HTTPStatus(code).phrase)[:200]))
        self._hear_out()

    def _hear_out(self) -> None:
        """What nobody has read when a connection is closed makes the system cut it off, and our words may be
        lost with it.
        """
        left = _HEARD_OUT_BYTES
        self.connection.settimeout(_HEARD_OUT_S)
        while left > 0 and (more := self.rfile.read1(65_536)):
            left -= len(more)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.server.connections.waits(self.connection)
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        fields = {
            "peer": self.address_string(),
            "page": self.server.door.page_of(getattr(self, "path", "")),
            "status": int(code),
        }
        _log.debug("answered", extra={"fields": fields})

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug("a request could not be read", extra={"fields": {"peer": self.address_string()}})


def _refusal(error: FairleadError) -> Answer:
    status = status_of(error).http
    return _problem(
        status,
        error.code,
        error.message,
        **({"WWW_Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}),
    )


def _json(status: int, body: Mapping[str, object], **headers: str) -> Answer:
    return Answer(status, json.dumps(body).encode() + b"\n", **headers)


def _problem(status: int, code: str, message: str, **headers: str) -> Answer:
    return _json(status, {"error": {"code": code, "message": message}}, **headers)


#: The kind of record a TLS client begins with. No HTTP method does.
_HANDSHAKE = b"\x16"
_USE_TLS = b"expected TLS: this door is https://, not http://\n"
_PLAIN = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
    % (
        _TEXT.encode(),
        len(_USE_TLS),
        _USE_TLS,
    )
)


def _shake_hands(connection: ssl.SSLSocket) -> bool:
    """False for a client that does not speak TLS, which is told so in the words it understands."""
    # The methods of `socket` itself: those of an SSLSocket are for what is encrypted.
    if socket.socket.recv(connection, 1, socket.MSG_PEEK) == _HANDSHAKE:
        try:
            connection.do_handshake()
            return True
        except ssl.SSLError:
            # It was told why in the words of TLS.
            _let_it_be_read(connection)
            raise
    socket.socket.sendall(connection, _PLAIN)
    _let_it_be_read(connection)
    return False


def _let_it_be_read(connection: ssl.SSLSocket) -> None:
    """What a client has sent and nobody read would make the system cut the connection off, and our last words
    with it.
    """
    socket.socket.shutdown(connection, socket.SHUT_WR)
    connection.settimeout(min(_LAST_WORDS_S, connection.gettimeout() or _LAST_WORDS_S))
    for _ in range(16):
        if not socket.socket.recv(connection, 65536):
            return


def _cut(connection: socket.socket) -> None:
    try:
        # Not that of an SSLSocket, which would leave the thread that reads from it with half an object.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        _log.debug("it was closed already")
