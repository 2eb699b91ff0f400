"""The first key of a server, in a file that only its owner can read.

The file is the word of whoever runs the server: another secret in it replaces the bootstrap key at the next
start. The same one does not come back once it has been revoked or rotated.
"""

from __future__ import annotations

import stat
from enum import StrEnum
from pathlib import Path

from fairlead.engine.broker import Broker
from fairlead.errors import InvalidRequest, SettingInvalid
from fairlead.model.access import EVERY_RIGHT, KeyInfo, read_grants
from fairlead.model.api_keys import make_token, read_token
from fairlead.server.secret_file import SecretFile

BOOTSTRAP = "bootstrap"
#: Where it is in the data directory, unless another place is set.
BOOTSTRAP_FILE = "bootstrap.key"
_MOST_BYTES = 4096
_SETTING = "auth.bootstrap_key_file"


class Prepared(StrEnum):
    """What came of it at a start."""

    KNOWN = "the key in the file is the bootstrap key"
    MADE = "a first key was made, in the file"
    NOT_NEEDED = "there is no file, and others have every right"
    REVOKED = "the key in the file was revoked or rotated, and stays so"


def prepare_bootstrap_key(broker: Broker, file: Path) -> Prepared:
    """Take the key in the file; or make both, where nobody has every right yet."""
    if file.exists():
        return (
            Prepared.KNOWN
            if broker.key_ring.adopt(_read(file), BOOTSTRAP, EVERY_RIGHT) is not None
            else Prepared.REVOKED
        )
    if any(record.grants == read_grants(EVERY_RIGHT) for record in broker.key_ring.records()):
        return Prepared.NOT_NEEDED
    renew_bootstrap_key(broker, file)
    return Prepared.MADE


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
        with open(file, encoding="ascii") as opened:
            token = opened.read(_MOST_BYTES).strip()
    except (OSError, UnicodeDecodeError) as trouble:
        raise SettingInvalid(str(file), _SETTING, f"expected a file with an API key: {trouble}") from None
    try:
        read_token(token)
    except InvalidRequest as wrong:
        raise SettingInvalid(
            str(file), _SETTING, f"{wrong.message}; remove the file to have one made"
        ) from None
    return token
