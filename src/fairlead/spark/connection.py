"""Clients of Spark's Python processes: one for each process and connection, made at the first use and never
pickled.

Python workers serve many tasks, and end with their session or are killed. The broker needs no clients to be
closed.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.client.addresses import read_endpoint
from fairlead.client.finding import find_connect
from fairlead.errors import InvalidRequest
from fairlead.model.addresses import is_loopback_host
from fairlead.spark.options import SparkOptions

if TYPE_CHECKING:
    from fairlead.client.client import Client
    from fairlead.client.tls import Tls

log = logging.getLogger("fairlead.spark")

#: Spark sets this variable in the executors of a cluster, and not in a local driver.
_EXECUTOR_VARIABLE = "SPARK_EXECUTOR_DIRS"
#: A key is shorter. The bound also ends a read from an endless device.
_MAX_KEY_BYTES = 4096

_clients: dict[tuple[int, ConnectionKey, str | None], Client] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class ConnectionKey:
    """The options that need a client of their own."""

    endpoint: str
    flight_endpoint: str
    timeout: str
    api_key_file: str
    api_key_env: str
    tls: bool
    tls_ca: str
    tls_cert: str
    tls_key: str
    tls_server_name: str


def client_for(options: SparkOptions) -> Client:
    """Return the client for these options; the first call connects. Raises `ServerUnreachable` after the
    option `timeout`.

    Thread-safe. A forked child gets clients of its own.
    """
    wanted = ConnectionKey(**{name: getattr(options, name) for name in ConnectionKey.__dataclass_fields__})
    # The process id, because Spark forks its workers from a daemon; the API key, because its file may change.
    which = (os.getpid(), wanted, _api_key(wanted))
    with _lock:
        client = _clients.get(which)
        if client is None:
            _warn_if_only_local(options)
            client = _clients[which] = _connect(wanted, which[2])
        return client


def forget_clients() -> None:
    """Close the clients of this process. For tests, and for a process that stops its own server."""
    with _lock:
        mine = [key for key in _clients if key[0] == os.getpid()]
        for key in mine:
            _clients.pop(key).close()


def is_loopback(endpoint: str) -> bool:
    return is_loopback_host(read_endpoint(endpoint).host)


def _warn_if_only_local(options: SparkOptions) -> None:
    """Warn in an executor on another host, or in its own process, about a loopback endpoint. Spark tells a
    source nothing about its master.
    """
    is_elsewhere = platform.node() != options.driver
    if (is_elsewhere or _EXECUTOR_VARIABLE in os.environ) and is_loopback(options.endpoint):
        log.warning(
            "endpoint %s is a loopback address, which means a different host on each executor (here %s, driver on %s): "
            "it works only on the host of the broker; give an address by which every executor reaches the broker",
            options.endpoint,
            platform.node(),
            options.driver or "an unknown host",
        )


def _connect(connection: ConnectionKey, api_key: str | None) -> Client:
    return find_connect()(
        connection.endpoint,
        retry_for=connection.timeout,
        heartbeat_cap=None,
        api_key=api_key,
        tls=_tls(connection),
        flight=connection.flight_endpoint or None,
    )


def _tls(connection: ConnectionKey) -> Tls | None:
    from fairlead.client.tls import Tls

    if not (connection.tls or connection.tls_ca or connection.tls_cert or connection.tls_server_name):
        return None
    return Tls(
        ca=connection.tls_ca or None,
        cert=connection.tls_cert or None,
        key=connection.tls_key or None,
        server_name=connection.tls_server_name or None,
    )


def _api_key(connection: ConnectionKey) -> str | None:
    if connection.api_key_env:
        key = os.environ.get(connection.api_key_env, "").strip()
        if not key:
            raise InvalidRequest(
                "option apiKeyEnv",
                f"the name of an environment variable that is set in this process ({_where()})",
                connection.api_key_env,
            )
        return key
    if not connection.api_key_file:
        return None
    try:
        with Path(connection.api_key_file).open("rb") as opened:
            key = opened.read(_MAX_KEY_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise InvalidRequest(
            "option apiKeyFile",
            f"a file that can be read on {_where()} ({error.strerror})",
            connection.api_key_file,
        ) from None
    if not key:
        raise InvalidRequest(
            "option apiKeyFile", f"a file with an API key on {_where()}; it is empty", connection.api_key_file
        )
    return key


def _where() -> str:
    return f"host {platform.node()}, process {os.getpid()}"
