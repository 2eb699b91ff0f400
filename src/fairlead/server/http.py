"""The HTTP door: `/healthz`, `/readyz`, `/metrics`. It continues to answer while the server drains, so that a
stop can be watched. Pages and their errors are here; `http_connections.py` has its connections.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from http import HTTPMethod, HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder, gzip_accepted
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

import fairlead
from fairlead.engine.broker import Broker
from fairlead.errors import FairleadError, ServerStopping
from fairlead.middleware.stack import Layers
from fairlead.model.addresses import join_address, split_address
from fairlead.server.event_loop import EventLoop
from fairlead.server.http_answers import as_json, problem, refusal
from fairlead.server.http_connections import Connections
from fairlead.server.limits import Limits
from fairlead.server.metrics import Metrics

if TYPE_CHECKING:
    from fairlead.server.certificates import Certificates

T = TypeVar("T")

_log = logging.getLogger("fairlead.http")

#: How long a client may take for a handshake, for a request, and for reading an answer.
TIMEOUT_S = 30.0
MAX_CONNECTIONS = 64
_STOP_S = 10.0
#: One of them measures all queues; the others check keys and whether the broker works.
_THREADS = 4
#: Pages that reveal nothing about queues: monitoring asks for them without a key.
_OPEN = ("/", "/healthz", "/readyz")
_NO_HTTP_OF_OURS = (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)


class HttpDoor:
    """At most `max_connections` at a time; if one more comes, the one whose client has been slow for longest
    is closed.

    So neither slow nor idle clients can keep a health check out. Everything that takes the engine's lock runs
    in threads, so that no other door waits for it.
    """

    name = "http"

    def __init__(
        self,
        broker: Broker,
        address: str,
        metrics: Metrics,
        event_loop: EventLoop,
        *,
        max_connections: int = MAX_CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        certificates: Certificates | None = None,
        layers: Layers | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.address = address
        self._broker = broker
        self._metrics = metrics
        self._event_loop = event_loop
        self._draining = False
        #: One measurement of all queues at a time, however many clients ask.
        self._scraping = asyncio.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "fairlead-http")
        self._layers = layers or Layers(broker)
        self._pages = {
            "/": self._index,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/metrics": self._show_metrics,
        }
        self._connections = Connections(
            self._serve, limits or Limits(), max_connections, timeout_s, certificates
        )
        self._open = False

    def start(self) -> None:
        self._event_loop.start()
        host, port = split_address(self.address, may_pick_port=True)
        self.address = join_address(*self._event_loop.run(self._connections.open(host, port)))
        self._open = True

    def drain(self) -> None:
        self._draining = True

    def stop(self) -> None:
        if not self._open:
            return
        self._open = False
        self._event_loop.run(self._connections.close(), _STOP_S)
        self._threads.shutdown()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        try:
            answer = await self._answer(request)
        except FairleadError as error:
            answer = refusal(error)
        except Exception:
            _log.exception("a page could not be made")
            answer = problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "the log of the server says more")
        if _has_body(request) or answer.status_code in _NO_HTTP_OF_OURS:
            # An unread body must not be taken for the next request.
            answer.headers["Connection"] = "close"
        answer.headers["Date"] = formatdate(usegmt=True)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.scope["http_version"] not in ("1.0", "1.1"):
            return problem(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "bad_request", "expected HTTP/1.1")
        if request.method not in HTTPMethod.__members__:
            message = f"Unsupported method ({request.method[:100]!r})"
            return problem(HTTPStatus.NOT_IMPLEMENTED, "bad_request", message)
        if "Content-Length" in request.headers and "Transfer-Encoding" in request.headers:
            message = "expected Content-Length or Transfer-Encoding, got both"
            return problem(HTTPStatus.BAD_REQUEST, "bad_request", message)
        try:
            # As it was sent: a target may be a whole URL, and an escaped path is not one of the pages.
            path, wrong = urlsplit(request.scope["raw_path"].decode("ascii")).path, ""
        except ValueError as error:
            path, wrong = "", str(error)
        if path not in _OPEN:
            # Before it is known whether the page exists.
            source = request.client.host if request.client else ""
            request.state.caller = await self._in_thread(
                self._layers.admit, request.headers.get("Authorization"), source
            )
        if wrong:
            return problem(HTTPStatus.BAD_REQUEST, "bad_request", wrong)
        page = self._pages.get(path)
        if page is None:
            return problem(HTTPStatus.NOT_FOUND, "not_found", f"expected one of {', '.join(self._pages)}")
        if request.method not in ("GET", "HEAD"):
            message, allow = "expected GET or HEAD", {"Allow": "GET, HEAD"}
            return problem(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", message, allow)
        return await page(request)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _index(self, request: Request) -> Response:
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in self._pages if path != "/")
        return HTMLResponse(
            f"<!doctype html><title>fairlead</title><h1>fairlead {fairlead.__version__}</h1><ul>{links}</ul>\n"
        )

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        try:
            if self._draining:
                raise ServerStopping()
            await self._in_thread(self._broker.intents)
        except FairleadError as error:
            return as_json(
                HTTPStatus.SERVICE_UNAVAILABLE, {"ready": False, "reason": error.code, "message": str(error)}
            )
        return as_json(HTTPStatus.OK, {"ready": True})

    async def _show_metrics(self, request: Request) -> Response:
        # The page shows every queue.
        await self._in_thread(request.state.caller.rights.need_everywhere)
        try:
            encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        except (TypeError, ValueError):
            # A version that is no number; the format that every client understands is not wrong.
            encode, content_type = choose_encoder("")
        wanted = request.query_params.getlist("name[]")
        registry: Any = self._metrics.registry
        packed = gzip_accepted(request.headers.get("Accept-Encoding", ""))

        def collect() -> bytes:
            text = encode(registry.restricted_registry(wanted) if wanted else registry)
            return gzip.compress(text, 5) if packed else text

        async with self._scraping:
            body = await self._in_thread(collect)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        return Response(body, headers=headers | {"Content-Encoding": "gzip"} if packed else headers)


def _has_body(request: Request) -> bool:
    return request.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in request.headers
