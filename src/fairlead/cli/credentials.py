"""With what a command goes to a server: an API key and TLS, from options and the environment.

A key is never the value of an option: whoever lists processes would see it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairlead.cli.global_options import CredentialFiles, current_options, wrong_usage

if TYPE_CHECKING:
    from fairlead.client.tls import Tls

API_KEY = "FAIRLEAD_API_KEY"
API_KEY_FILE = "FAIRLEAD_API_KEY_FILE"
TLS_CA = "FAIRLEAD_CLIENT_TLS_CA"
TLS_CERT = "FAIRLEAD_CLIENT_TLS_CERT"
TLS_KEY = "FAIRLEAD_CLIENT_TLS_KEY"
#: In the place of a file: the authorities that the system trusts.
SYSTEM = "system"

#: A key is shorter, and a device never ends.
_MAX_KEY_BYTES = 4096


def api_key() -> str | None:
    """An option beats the environment. Warns on stderr of a file that others can read."""
    file, in_env = current_options().credentials.api_key_file, os.environ.get(API_KEY)
    if file is not None and in_env and current_options().key_file_from_env:
        wrong_usage(f"expected {API_KEY} or {API_KEY_FILE}, not both")
    if file is None:
        return in_env or None
    warn_if_open(file)
    with file.open("rb") as opened:
        key = opened.read(_MAX_KEY_BYTES).decode("utf-8", "replace").strip()
    if not key:
        wrong_usage(f"expected an API key in {file}, it is empty")
    return key


def tls() -> Tls | None:
    """None: plaintext."""
    given = current_options().credentials
    if given == CredentialFiles(given.api_key_file):
        return None
    if (given.tls_cert is None) != (given.tls_key is None):
        wrong_usage("expected --tls-cert and --tls-key together, or neither of them")
    if given.tls_key is not None:
        warn_if_open(given.tls_key)
    from fairlead.client.tls import Tls

    return Tls(
        None if given.tls_ca is None or str(given.tls_ca) == SYSTEM else given.tls_ca,
        given.tls_cert,
        given.tls_key,
    )


def warn_if_open(secret: Path) -> None:
    """Said, not refused: the damage is done, and whoever mends it needs the command."""
    found = secret.stat()
    if os.name == "posix" and stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        typer.echo(
            f"warning: {secret} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}); run: chmod 600 {secret}",
            err=True,
        )
