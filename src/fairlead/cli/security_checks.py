"""The checks of `fairlead doctor` on access: over the network, on this machine, and to files with secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli.findings import Finding, Level
from fairlead.cli.global_options import GlobalOptions
from fairlead.cli.server_checks import connect_briefly, why_refused
from fairlead.client.addresses import Endpoint
from fairlead.config.load import SETTINGS, load_with_sources
from fairlead.config.server import BOOTSTRAP_KEY_VARIABLE, ServerSettings, listens_on_loopback
from fairlead.errors import FairleadError, SettingInvalid, Unauthenticated
from fairlead.model.addresses import is_loopback_host
from fairlead.server.bootstrap import BOOTSTRAP_FILE, key_in_environment
from fairlead.server.fila.packages import settings_without, why_unusable

if TYPE_CHECKING:
    from fairlead.client.tls import Tls

_finding = partial(Finding, "security")


def security(
    data: Path | None, at: Endpoint, tls: Tls | None, given: GlobalOptions, environ: Mapping[str, str]
) -> Iterator[Finding]:
    if not why_refused(at):
        yield from anonymous_access(at, tls)
    if data is not None and data.is_dir():
        yield from secret_file("bootstrap key", data / BOOTSTRAP_FILE)
    for name, file in (("API key", given.api_key_file), ("TLS key", given.tls_key)):
        if file is not None:
            yield from secret_file(name, file)
    variables = {BOOTSTRAP_KEY_VARIABLE, *(setting.variable for setting in SETTINGS.values())}
    if variables & set(environ) or environ.get("FAIRLEAD_CONFIG"):
        yield from settings_here(data, environ)


def anonymous_access(at: Endpoint, tls: Tls | None) -> Iterator[Finding]:
    """Check whether the server asks for a key, and whether it speaks TLS."""
    is_local = not at.host or is_loopback_host(at.host)
    level: Level = "info" if is_local else "warn"
    try:
        with connect_briefly(at, tls) as client:
            client.queues()
    except Unauthenticated:
        yield _finding("keys", "ok", f"{at} asks for an API key")
    except (ImportError, FairleadError):
        return  # The check of the door reports the problem.
    else:
        who = "every user of this machine" if is_local else "everybody who reaches it"
        advice = 'set auth.mode = "keys" before other people can reach it'
        yield _finding("keys", level, f"{at} asks for no key: {who} may do everything", advice)
    if tls is None:
        advice = "set tls.cert and tls.key; `fairlead tls init` makes certificates to start with"
        found = f"{at} speaks plaintext"
        if not is_local:
            found += ": others on the network can read keys and messages"
        yield _finding("TLS", level, found, advice)
    else:
        yield _finding("TLS", "ok", f"{at} speaks TLS")


def secret_file(name: str, file: Path) -> Iterator[Finding]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        yield _finding(
            name,
            "warn",
            f"other users can read {file} (mode {mode})",
            f"chmod 600 {file}, and replace the key",
        )
    elif os.access(file, os.R_OK):
        yield _finding(name, "ok", f"only its owner can read {file}")
    else:
        yield _finding(name, "info", f"{file} belongs to another user, and this user cannot read it")


def settings_here(data: Path | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the settings that a server would have if it were started with this environment."""
    try:
        loaded = load_with_sources(None, environ, {} if data is None else {"data": data})
        why = why_unusable()
        settings = settings_without(loaded, why) if why else loaded.settings
        key_in_environment(environ, settings.auth)
    except SettingInvalid as wrong:
        if data is not None or wrong.path != "data":
            yield _finding(
                "settings", "bad", wrong.message, "correct it: a server does not start with this environment"
            )
        return
    yield from exposure(settings)


def exposure(settings: ServerSettings) -> Iterator[Finding]:
    public = [
        f"{door} {address}"
        for door, address in settings.addresses().items()
        if not listens_on_loopback(address)
    ]
    keys = "keys" if settings.auth.mode == "keys" else "no keys"
    redacted = f"{len(settings.redact.headers)} headers and {len(settings.redact.json_paths)} paths redacted"
    protection = f"{keys}, {_transport(settings)}, {redacted}"
    reachable = f"other machines can reach {', '.join(public)}"
    if public and settings.insecure_public:
        advice = "set auth.mode and tls, and remove insecure_public"
        yield _finding("settings", "warn", f"{reachable}, which insecure_public allows: {protection}", advice)
    elif public:
        yield _finding("settings", "ok", f"{reachable}: {protection}")
    else:
        yield _finding("settings", "ok", f"only this machine can reach the server: {protection}")


def _transport(settings: ServerSettings) -> str:
    if settings.tls.client_ca:
        return "TLS with client certificates"
    return "TLS" if settings.tls.on else "plaintext"
