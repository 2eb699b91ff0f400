"""Clients of Spark's Python processes: one per process and way to a server, made when first needed and never
pickled.

Workers are reused by many tasks and end with their session, or are killed: nothing here has to be closed for
the broker's sake.
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

#: Set by Spark in the executors of a cluster, and not in a local driver.
_OF_EXECUTORS = "SPARK_EXECUTOR_DIRS"
#: A key is shorter, and a device never ends.
_MAX_KEY_BYTES = 4096

_clients: dict[tuple[int, ConnectionKey, str | None], Client] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class ConnectionKey:
    """How to reach a server: what of the options tells one client from another."""

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
    """Connects at the first call, trying for as long as the option `timeout` says: then `ServerUnreachable`,
    with the endpoint.

    Thread-safe. A forked child gets clients of its own.
    """
    way = ConnectionKey(**{name: getattr(options, name) for name in ConnectionKey.__dataclass_fields__})
    # The process, because Spark forks its workers from a daemon; the API key, because its file may have a new
    # one.
    which = (os.getpid(), way, _api_key(way))
    with _lock:
        client = _clients.get(which)
        if client is None:
            _warn_if_only_local(options)
            client = _clients[which] = _connect(way, which[2])
        return client


def forget_clients() -> None:
    """Closes those of this process: for tests, and for who ends a server in its own process."""
    with _lock:
        mine = [key for key in _clients if key[0] == os.getpid()]
        for key in mine:
            _clients.pop(key).close()


def is_loopback(endpoint: str) -> bool:
    return is_loopback_host(read_endpoint(endpoint).host)


def _warn_if_only_local(options: SparkOptions) -> None:
    """Spark tells a source nothing of its master: an executor notices that it is one, and not a part of the
    driver.
    """
    elsewhere = platform.node() != options.driver
    if (elsewhere or _OF_EXECUTORS in os.environ) and is_loopback(options.endpoint):
        log.warning(
            "endpoint %s is a loopback address, and so names the machine of each executor by itself (here %s, driver on %s): "
            "it works only where the broker runs as well; give the address by which every executor reaches the broker",
            options.endpoint,
            platform.node(),
            options.driver or "an unknown host",
        )


def _connect(way: ConnectionKey, api_key: str | None) -> Client:
    return find_connect()(
        way.endpoint,
        retry_for=way.timeout,
        heartbeat_cap=None,
        api_key=api_key,
        tls=_tls(way),
        flight=way.flight_endpoint or None,
    )


def _tls(way: ConnectionKey) -> Tls | None:
    from fairlead.client.tls import Tls

    if not (way.tls or way.tls_ca or way.tls_cert or way.tls_server_name):
        return None
    return Tls(
        ca=way.tls_ca or None,
        cert=way.tls_cert or None,
        key=way.tls_key or None,
        server_name=way.tls_server_name or None,
    )


def _api_key(way: ConnectionKey) -> str | None:
    if way.api_key_env:
        key = os.environ.get(way.api_key_env, "").strip()
        if not key:
            raise InvalidRequest(
                "option apiKeyEnv",
                f"the name of an environment variable that is set in this process ({_where()})",
                way.api_key_env,
            )
        return key
    if not way.api_key_file:
        return None
    try:
        with Path(way.api_key_file).open("rb") as opened:
            key = opened.read(_MAX_KEY_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise InvalidRequest(
            "option apiKeyFile", f"a file that can be read on {_where()} ({error.strerror})", way.api_key_file
        ) from None
    if not key:
        raise InvalidRequest(
            "option apiKeyFile", f"a file with an API key on {_where()}; it is empty", way.api_key_file
        )
    return key


def _where() -> str:
    return f"host {platform.node()}, process {os.getpid()}"
