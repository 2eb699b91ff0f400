"""The first key of a server: in a file that only its owner can read, or in an environment variable.

The operator of the server controls it: another secret there replaces the bootstrap key at the next start. The
same secret does not return once its key was revoked or rotated.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from fairlead.config import AuthSettings
from fairlead.config.server import BOOTSTRAP_KEY_VARIABLE
from fairlead.engine.broker import Broker
from fairlead.errors import InvalidRequest, SettingInvalid
from fairlead.model.access import EVERY_RIGHT, KeyInfo, read_grants
from fairlead.model.api_keys import make_token, read_secret
from fairlead.server.secret_file import SecretFile

BOOTSTRAP = "bootstrap"
#: Its place in the data directory, unless another place is configured.
BOOTSTRAP_FILE = "bootstrap.key"
_MAX_BYTES = 4096
_SETTING = "auth.bootstrap_key_file"


class BootstrapOutcome(StrEnum):
    """What came of it at a start."""

    KNOWN = "the key that was given, or in the file, is the bootstrap key"
    MADE = "a first key was made, in the file"
    NOT_NEEDED = "there is no key, and others have every right"
    REVOKED = "the key was revoked or rotated, and stays so"


def key_in_environment(environ: Mapping[str, str], auth: AuthSettings) -> str | None:
    """The bootstrap key that the operator chose, if the variable is set. Raises `SettingInvalid` for one that cannot
    be a key or has no effect; never with the key in it.
    """
    key = environ.get(BOOTSTRAP_KEY_VARIABLE)
    if key is None:
        return None
    if auth.mode == "off":
        wrong = 'expected auth.mode = "keys" beside it, got "off": no call would be asked for the key'
    elif auth.bootstrap_key_file:
        wrong = f"expected either it or {_SETTING}, got both"
    else:
        wrong = _why_no_key(key)
    if wrong:
        raise SettingInvalid("environment", BOOTSTRAP_KEY_VARIABLE, wrong)
    return key


def prepare_bootstrap_key(broker: Broker, file: Path, given: str | None = None) -> BootstrapOutcome:
    """Take the key that was given, else the one in the file; or make both, where nobody has every right yet."""
    secret = _read(file) if given is None and file.exists() else given
    if secret is not None:
        taken = broker.key_ring.adopt(secret, BOOTSTRAP, EVERY_RIGHT)
        return BootstrapOutcome.REVOKED if taken is None else BootstrapOutcome.KNOWN
    if any(record.grants == read_grants(EVERY_RIGHT) for record in broker.key_ring.records()):
        return BootstrapOutcome.NOT_NEEDED
    renew_bootstrap_key(broker, file)
    return BootstrapOutcome.MADE


def renew_bootstrap_key(broker: Broker, file: Path) -> KeyInfo:
    """Another bootstrap key in place of the one there is, if any, and of what is in the file."""
    token = make_token()
    # The file first: a crash after it is mended by the next start, a key that nobody knows is not.
    try:
        with SecretFile(file) as secret:
            secret.write(token)
    except OSError as trouble:
        raise SettingInvalid(
            str(file), _SETTING, f"expected a place where the first key can be written: {trouble.strerror}"
        ) from None
    info = broker.key_ring.adopt(token, BOOTSTRAP, EVERY_RIGHT)
    assert info is not None, "a secret that was made just now"
    return info


def _read(file: Path) -> str:
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            # A pipe would be waited for, with no server and no word.
            raise SettingInvalid(
                str(file),
                _SETTING,
                "expected a file with an API key, and not a directory, a pipe or a device",
            )
        if stat.S_IMODE(mode) & 0o077:
            raise SettingInvalid(
                str(file), _SETTING, f"expected a file that only its owner can read; run: chmod 600 {file}"
            )
        with open(file, "rb") as opened:
            raw = opened.read(_MAX_BYTES)
    except OSError as trouble:
        raise SettingInvalid(str(file), _SETTING, f"expected a file with an API key: {trouble}") from None
    # An error of a decoder would quote a part of the key.
    secret = raw.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if wrong := _why_no_key(secret):
        raise SettingInvalid(str(file), _SETTING, f"{wrong}, or remove the file to have one made")
    return secret


def _why_no_key(secret: str) -> str:
    """And what to do; "" for a secret that may be a bootstrap key."""
    try:
        read_secret(secret)
    except InvalidRequest as wrong:
        return f"{wrong.message}; put another there, such as `openssl rand -hex 32` makes"
    return ""
