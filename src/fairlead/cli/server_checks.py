"""The checks of `fairlead doctor` on the doors of a server."""

from __future__ import annotations

import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

import fairlead
from fairlead.cli.findings import Finding
from fairlead.client.addresses import Endpoint, read_endpoint
from fairlead.client.options import read_options
from fairlead.client.traces import Traces
from fairlead.errors import FairleadError, InvalidRequest, TlsFailed, Unauthenticated
from fairlead.server.fila.packages import INSTALL

if TYPE_CHECKING:
    from fairlead import Client
    from fairlead.client.tls import Tls

_PATIENCE_S = 3.0
#: Enough for a server that is busy. A door of another kind may wait for more of the greeting and never answer.
_ANSWER_S = 5.0
_SKEW_S = 5.0
_NO_ANSWER = (OSError, ValueError, HTTPException)
_finding = partial(Finding, "server")
_VERSION = re.compile(r'fairlead_build_info\{[^}]*version="([^"]+)"')


def server(
    at: Endpoint,
    others: Mapping[str, str],
    *,
    asked: bool,
    tls: Tls | None = None,
    api_key: str | None = None,
) -> Iterator[Finding]:
    """Check every door. `asked`: the user named the server, so it must answer. `others`: other doors by name."""
    yield resp_door(at, asked, tls, api_key)
    yield flight_door(others["flight"], tls, api_key)
    yield grpc_door(others["grpc"], tls)
    yield from http_door(others["http"], tls, api_key)


def connect_briefly(at: Endpoint, tls: Tls | None, api_key: str | None = None) -> Client:
    return fairlead.connect(
        str(at), retry_for=f"{_PATIENCE_S}s", timeout=f"{_ANSWER_S}s", tls=tls, api_key=api_key
    )


def resp_door(at: Endpoint, asked: bool, tls: Tls | None = None, api_key: str | None = None) -> Finding:
    refused = why_refused(at)
    if refused:
        advice = "start a server with: fairlead serve --data DIR, or name another address with --addr"
        return _finding("resp", "bad" if asked else "info", f"nothing answers at {at}: {refused}", advice)
    began = time.perf_counter()
    try:
        with connect_briefly(at, tls, api_key) as client:
            queues = client.queues()
    except ImportError:
        return _finding(
            "resp",
            "warn",
            f"something listens at {at}, but the client is not installed",
            "pip install 'fairlead[client]'",
        )
    except (Unauthenticated, TlsFailed) as error:
        return _finding("resp", "bad", error.message)
    except FairleadError as error:
        return _finding("resp", "bad", error.message, "check that this is the address of a fairlead server")
    took = (time.perf_counter() - began) * 1000
    return _finding(
        "resp", "ok", f"{at} answers, with {len(queues)} queues, {took:.0f} ms after the first packet"
    )


def flight_door(address: str, tls: Tls | None = None, api_key: str | None = None) -> Finding:
    refused = why_refused(address)
    if refused:
        return _finding(
            "flight",
            "info",
            f"nothing answers at {address}: {refused}",
            "needed for Spark and record batches only; give another address with --flight",
        )
    began = time.perf_counter()
    try:
        from fairlead.client.flight.bulk import open_bulk

        options = read_options(
            address, consumer=None, retry_for=f"{_PATIENCE_S}s", timeout="30s", heartbeat_cap=None
        )
        with closing(open_bulk(options, tls, api_key, Traces())) as bulk:
            bulk.greet()
    except ImportError:
        return _finding(
            "flight",
            "info",
            f"something listens at {address}, but the client is not installed",
            "pip install 'fairlead[bulk]'",
        )
    except (Unauthenticated, TlsFailed) as error:
        return _finding("flight", "bad", error.message)
    except FairleadError as error:
        return _finding(
            "flight",
            "bad",
            error.message,
            "check that this is the address of a fairlead server's Flight door",
        )
    took = (time.perf_counter() - began) * 1000
    return _finding("flight", "ok", f"{address} answers, {took:.0f} ms after the first packet")


def grpc_door(address: str, tls: Tls | None = None) -> Finding:
    refused = why_refused(address)
    if refused:
        return _finding(
            "grpc",
            "info",
            f"nothing answers at {address}: {refused}",
            "needed for fila.v1 clients only; give another address with --grpc",
        )
    try:
        import grpc
        from grpc_health.v1 import health_pb2, health_pb2_grpc
    except ImportError:
        return _finding(
            "grpc",
            "info",
            f"something listens at {address}, but the packages to ask for its health are not installed",
            INSTALL,
        )
    try:
        with _channel(address, tls) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_PATIENCE_S
            )
    except grpc.RpcError as error:
        return _finding(
            "grpc",
            "bad",
            f"{address}: {error.code().name}",
            "check that this is the address of a fairlead server's gRPC door",
        )
    word = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status).lower()
    return _finding("grpc", "ok" if word == "serving" else "bad", f"{address} is {word}")


def _channel(address: str, tls: Tls | None) -> Any:
    import grpc

    if tls is None:
        return grpc.insecure_channel(address)
    from fairlead.client.tls import read_files

    files = read_files(tls)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(files.ca, files.key, files.cert))


def http_door(address: str, tls: Tls | None = None, api_key: str | None = None) -> Iterator[Finding]:
    refused = why_refused(address)
    if refused:
        yield _finding(
            "http",
            "info",
            f"nothing answers at {address}: {refused}",
            "needed for metrics and health only; give another address with --http",
        )
        return
    get = partial(_get, address, tls, api_key)
    try:
        status, body, date = get("/readyz")
    except _NO_ANSWER as trouble:
        yield _finding(
            "http",
            "bad",
            f"{address}: {' '.join(str(trouble).split())}",
            "check that this is the address of a fairlead server's HTTP door",
        )
        return
    if status == 200:
        yield _finding("http", "ok", f"{address} is ready")
    else:
        yield _finding(
            "http",
            "bad",
            f"{address}/readyz answers {status}: {' '.join(body.split())[:100]}",
            "see the server's log",
        )
    yield from version(get)
    if date is not None:
        yield skew(date - time.time())


def version(get: Callable[[str], tuple[int, str, float | None]]) -> Iterator[Finding]:
    try:
        status, body, _ = get("/metrics")
    except _NO_ANSWER:
        return
    found = _VERSION.search(body) if status == 200 else None
    if found is not None and found[1] != fairlead.__version__:
        advice = "use the same version on both sides"
        yield _finding(
            "version",
            "warn",
            f"the server has version {found[1]}, this command {fairlead.__version__}",
            advice,
        )
    elif found is not None:
        yield _finding("version", "ok", f"{found[1]}, the version of this command")


def skew(ahead_s: float) -> Finding:
    """Compare the clocks; HTTP gives the time in whole seconds, rounded down."""
    if abs(ahead_s) > _SKEW_S:
        word = "ahead of" if ahead_s > 0 else "behind"
        return _finding(
            "clock",
            "warn",
            f"{abs(ahead_s):.0f} s {word} this machine's",
            "synchronize both clocks with NTP; due times use the server's clock",
        )
    return _finding("clock", "ok", "agrees with this machine's clock")


def why_refused(at: str | Endpoint) -> str:
    """Return why a connection fails, or "" when it opens."""
    try:
        open_connection(read_endpoint(at) if isinstance(at, str) else at).close()
    except (OSError, UnicodeError, InvalidRequest) as trouble:
        return getattr(trouble, "strerror", None) or str(trouble)
    return ""


def open_connection(at: Endpoint) -> socket.socket:
    if not at.path:
        return socket.create_connection((at.host, at.port), timeout=_PATIENCE_S)
    found = socket.socket(socket.AF_UNIX)
    found.settimeout(_PATIENCE_S)
    try:
        found.connect(at.path)
    except BaseException:
        found.close()
        raise
    return found


def _get(address: str, tls: Tls | None, api_key: str | None, path: str) -> tuple[int, str, float | None]:
    """Return status, text and the server's time. Without proxies: the user named the server."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls is not None:
        from fairlead.client.tls import read_files

        context = read_files(tls).context
        context.set_alpn_protocols(["http/1.1"])
        handlers.append(urllib.request.HTTPSHandler(context=context))
    asked = urllib.request.Request(f"{'http' if tls is None else 'https'}://{address}{path}")
    if api_key is not None and tls is not None:
        asked.add_unredirected_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.build_opener(*handlers).open(asked, timeout=_PATIENCE_S) as answer:
            return (
                answer.status,
                answer.read(1 << 22).decode("utf-8", "replace"),
                _date(answer.headers.get("Date")),
            )
    except urllib.error.HTTPError as refused:
        return (
            refused.code,
            refused.read(1 << 16).decode("utf-8", "replace"),
            _date(refused.headers.get("Date")),
        )


def _date(header: str | None) -> float | None:
    try:
        return None if header is None else parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None
