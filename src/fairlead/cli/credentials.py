"""The API key and the TLS files that a command uses to reach a server, from options and the environment.

A key is never the value of an option: everybody on the machine can list processes with their arguments.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairlead.cli.global_options import current_options, wrong_usage

if TYPE_CHECKING:
    from fairlead.client.tls import Tls

API_KEY = "FAIRLEAD_API_KEY"
API_KEY_FILE = "FAIRLEAD_API_KEY_FILE"
TLS_CA = "FAIRLEAD_CLIENT_TLS_CA"
TLS_CERT = "FAIRLEAD_CLIENT_TLS_CERT"
TLS_KEY = "FAIRLEAD_CLIENT_TLS_KEY"
#: In place of a file: the authorities that the system trusts.
SYSTEM = "system"

#: A key is shorter. The bound ends the reading of a device.
_MAX_KEY_BYTES = 4096


def api_key() -> str | None:
    """Return the key of the file or of the environment; an option takes precedence over the environment.

    Prints a warning on stderr when other users can read the file.
    """
    options = current_options()
    file, in_env = options.api_key_file, os.environ.get(API_KEY)
    if in_env and "api_key_file" in options.from_env:
        wrong_usage(f"expected {API_KEY} or {API_KEY_FILE}, not both")
    if file is None:
        return in_env or None
    warn_if_open(file)
    with file.open("rb") as opened:
        key = opened.read(_MAX_KEY_BYTES).decode("utf-8", "replace").strip()
    if not key:
        wrong_usage(f"expected an API key in {file}, the file is empty")
    return key


def tls() -> Tls | None:
    """Return the TLS settings, or None for plaintext."""
    options = current_options()
    if not (options.tls_ca or options.tls_cert or options.tls_key):
        return None
    if (options.tls_cert is None) != (options.tls_key is None):
        wrong_usage("expected --tls-cert and --tls-key together, got one of them")
    if options.tls_key is not None:
        warn_if_open(options.tls_key)
    from fairlead.client.tls import Tls

    trusts_system = options.tls_ca is None or str(options.tls_ca) == SYSTEM
    return Tls(None if trusts_system else options.tls_ca, options.tls_cert, options.tls_key)


def warn_if_open(secret: Path) -> None:
    """Warn of a secret that other users can read.

    A refusal would not undo the exposure, and would keep the operator from the command that replaces the key.
    """
    found = secret.stat()
    if os.name == "posix" and stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):04o}"
        typer.echo(f"warning: other users can read {secret} (mode {mode}); run: chmod 600 {secret}", err=True)
