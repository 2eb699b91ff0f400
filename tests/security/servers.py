"""Servers that differ from `run_server`'s in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fairlead.config.server import DOORS
from fairlead.testing import ServerProcess
from fairlead.testing.server import free_ports

_UNCHECKED = "certificates._check_valid = lambda *_: None"
_UNWATCHED = "certificates.POLL_S = 3600"


def run_unchecked(data: Path, settings: Mapping[str, object]) -> AbstractContextManager[ServerProcess]:
    """It does not mind certificates that have ended, as a server does not that has been running for long
    enough.
    """
    return _changed(_UNCHECKED, data, settings)


def run_unwatched(data: Path, settings: Mapping[str, object]) -> AbstractContextManager[ServerProcess]:
    """It looks at its certificates when it is told to, and not by itself."""
    return _changed(_UNWATCHED, data, settings)


@contextmanager
def _changed(line: str, data: Path, settings: Mapping[str, object]) -> Iterator[ServerProcess]:
    script = f"from fairlead.server import certificates; {line}; from fairlead.cli import main; main()"
    addresses = {door: f"127.0.0.1:{port}" for door, port in zip(DOORS, free_ports(len(DOORS)), strict=True)}
    server = ServerProcess(data, addresses, settings, (sys.executable, "-c", script, "serve", "-o", "json"))
    try:
        server.start()
        yield server
    finally:
        if server._process is not None and server._process.poll() is None:
            server.kill()
