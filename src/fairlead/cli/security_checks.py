"""The checks of `fairlead doctor` that ask who could do harm: over the network, on this machine, or with what
is in a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli.findings import Finding
from fairlead.cli.global_options import CredentialFiles
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
    data: Path | None, at: Endpoint, tls: Tls | None, given: CredentialFiles, environ: Mapping[str, str]
) -> Iterator[Finding]:
    if not why_refused(at):
        yield from stranger(at, tls)
    if data is not None and data.is_dir():
        yield from secret_file("bootstrap key", data / BOOTSTRAP_FILE)
    for name, file in (("API key", given.api_key_file), ("TLS key", given.tls_key)):
        if file is not None:
            yield from secret_file(name, file)
    variables = {BOOTSTRAP_KEY_VARIABLE, *(setting.variable for setting in SETTINGS.values())}
    if variables & set(environ) or environ.get("FAIRLEAD_CONFIG"):
        yield from settings_here(data, environ)


def stranger(at: Endpoint, tls: Tls | None) -> Iterator[Finding]:
    """What somebody without a key gets from the server."""
    near = not at.host or is_loopback_host(at.host)
    try:
        with connect_briefly(at, tls) as client:
            client.queues()
    except Unauthenticated:
        yield _finding("keys", "ok", f"{at} asks for an API key")
    except (ImportError, FairleadError):
        return  # what is wrong there is said of the door
    else:
        where = "on this machine" if near else "who reaches it"
        advice = 'set auth.mode = "keys" before others may reach it'
        yield _finding(
            "keys",
            "info" if near else "warn",
            f"{at} asks for no key: everybody {where} may do everything",
            advice,
        )
    if tls is None:
        advice = "set tls.cert and tls.key; `fairlead tls init` makes some to begin with"
        yield _finding(
            "TLS",
            "info" if near else "warn",
            f"{at} speaks plaintext" + ("" if near else ", keys and messages can be read"),
            advice,
        )
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
            f"{file} can be read by others (mode {mode})",
            f"chmod 600 {file}, and have another key made",
        )
    elif os.access(file, os.R_OK):
        yield _finding(name, "ok", f"only its owner can read {file}")
    else:
        yield _finding(name, "info", f"{file} is somebody else's, and cannot be read here")


def settings_here(data: Path | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a server would be that is started with this environment."""
    try:
        loaded = load_with_sources(None, environ, {} if data is None else {"data": data})
        why = why_unusable()
        settings = settings_without(loaded, why) if why else loaded.settings
        key_in_environment(environ, settings.auth)
    except SettingInvalid as wrong:
        if data is not None or wrong.path != "data":
            yield _finding(
                "settings", "bad", wrong.message, "a server that is started with this environment refuses to"
            )
        return
    yield from exposure(settings)


def exposure(settings: ServerSettings) -> Iterator[Finding]:
    public = [
        f"{door} {address}"
        for door, address in settings.addresses().items()
        if not listens_on_loopback(address)
    ]
    kept = ", ".join(
        [
            "keys" if settings.auth.mode == "keys" else "no keys",
            "TLS with client certificates"
            if settings.tls.client_ca
            else "TLS"
            if settings.tls.on
            else "plaintext",
            f"{len(settings.redact.headers)} headers and {len(settings.redact.json_paths)} paths redacted",
        ]
    )
    if public and settings.insecure_public:
        advice = "set auth.mode and tls, and take insecure_public away"
        yield _finding(
            "settings",
            "warn",
            f"others may reach {', '.join(public)}, which insecure_public allows: {kept}",
            advice,
        )
    elif public:
        yield _finding("settings", "ok", f"others may reach {', '.join(public)}: {kept}")
    else:
        yield _finding("settings", "ok", f"only this machine reaches it: {kept}")
