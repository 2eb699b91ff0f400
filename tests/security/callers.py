"""Every kind of client, as one call: `call(server, credentials)` ends well, or raises what its user sees."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fila

import fairlead
import fairlead.aio
from fairlead.testing import ServerProcess

PATIENCE_S = 120


@dataclass(frozen=True)
class Known:
    """What a client knows; all None: it speaks plaintext."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @property
    def tls(self) -> fairlead.Tls | None:
        return None if self.ca is None else fairlead.Tls(self.ca, self.cert, self.key)


class CommandFailed(Exception):
    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


def by_client(server: ServerProcess, known: Known) -> None:
    # Longer than any test waits: what cannot work must be said at once.
    with fairlead.connect(server.address, tls=known.tls, retry_for="10m") as client:
        client.queues()


def by_aio(server: ServerProcess, known: Known) -> None:
    async def call() -> None:
        async with await fairlead.aio.connect(server.address, tls=known.tls, retry_for="10m") as client:
            await client.queues()

    asyncio.run(call())


def by_command(server: ServerProcess, known: Known) -> None:
    options = [("--tls-ca", known.ca), ("--tls-cert", known.cert), ("--tls-key", known.key)]
    args = [str(part) for name, path in options if path is not None for part in (name, path)]
    run_command("--addr", server.address, *args, "queue", "list")


def run_command(*args: str, env: dict[str, str] | None = None) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")} | (
        env or {}
    )
    ran = subprocess.run(
        [sys.executable, "-c", "from fairlead.cli import main; main()", *args],
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if ran.returncode:
        raise CommandFailed(ran.returncode, ran.stderr + ran.stdout)
    return ran.stdout + ran.stderr


def by_fila(server: ServerProcess, known: Known) -> None:
    """The published client, as it comes. Asked for what is not there, it says so only if it was let in."""

    with fila.Client(server.addresses["grpc"], **_for_fila(known)) as client:
        try:
            client.enqueue("no-such-queue", None, b"hello")
        except fila.QueueNotFoundError:
            return
    raise AssertionError("expected to be told that there is no such queue")


def by_fila_aio(server: ServerProcess, known: Known) -> None:
    async def call() -> None:
        async with fila.AsyncClient(server.addresses["grpc"], **_for_fila(known)) as client:
            await client.enqueue("no-such-queue", None, b"hello")

    try:
        asyncio.run(call())
    except fila.QueueNotFoundError:
        return
    raise AssertionError("expected to be told that there is no such queue")


def _for_fila(known: Known) -> dict[str, Any]:
    files = {"ca_cert": known.ca, "client_cert": known.cert, "client_key": known.key}
    return {name: path.read_bytes() for name, path in files.items() if path is not None}


def by_http(server: ServerProcess, known: Known) -> None:
    scheme, handlers = "http", [urllib.request.ProxyHandler({})]
    if known.ca is not None:
        context = ssl.create_default_context(cafile=known.ca)
        if known.cert is not None:
            context.load_cert_chain(known.cert, known.key)
        scheme, handlers = "https", [*handlers, urllib.request.HTTPSHandler(context=context)]
    with urllib.request.build_opener(*handlers).open(
        f"{scheme}://{server.addresses['http']}/healthz", timeout=PATIENCE_S
    ) as answer:
        assert answer.read() == b"ok\n"


CALLERS: dict[str, Callable[[ServerProcess, Known], None]] = {
    "client": by_client,
    "aio": by_aio,
    "command": by_command,
    "fila": by_fila,
    "fila_aio": by_fila_aio,
    "http": by_http,
}
