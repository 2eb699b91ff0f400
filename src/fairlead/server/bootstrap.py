"""The first key of a server, in a file that only its owner can read.

The file is the word of whoever runs the server: another secret in it replaces the bootstrap key at the next start.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fairlead.broker.broker import Broker
from fairlead.broker.keys import make_token, read_token
from fairlead.errors import InvalidRequest, SettingInvalid
from fairlead.model.access import EVERY_RIGHT, read_grants

BOOTSTRAP = "bootstrap"
#: Where it is in the data directory, unless another place is set.
BOOTSTRAP_FILE = "bootstrap.key"
_MOST_BYTES = 4096
_SETTING = "auth.bootstrap_key_file"


def prepare_bootstrap_key(broker: Broker, file: Path) -> bool:
    """Take the key in the file; or make both, where nobody has every right yet. True when the file was made now."""
    if file.exists():
        broker.keys.adopt(_read(file), BOOTSTRAP, EVERY_RIGHT)
        return False
    if any(record.grants == read_grants(EVERY_RIGHT) for record in broker.keys.records()):
        return False
    token = make_token()
    # The file first: a crash after it is mended by the next start, a key that nobody knows is not.
    _write(file, token)
    broker.keys.adopt(token, BOOTSTRAP, EVERY_RIGHT)
    return True


def _read(file: Path) -> str:
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise SettingInvalid(str(file), _SETTING, f"expected a file that only its owner can read; run: chmod 600 {file}")
        with open(file, encoding="ascii") as opened:
            token = opened.read(_MOST_BYTES).strip()
    except (OSError, UnicodeDecodeError) as trouble:
        raise SettingInvalid(str(file), _SETTING, f"expected a file with an API key: {trouble}") from None
    try:
        read_token(token)
    except InvalidRequest as wrong:
        raise SettingInvalid(str(file), _SETTING, f"{wrong.message}; remove the file to have one made") from None
    return token


def _write(file: Path, token: str) -> None:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as trouble:
        raise SettingInvalid(str(file), _SETTING, f"expected a place where the first key can be written: {trouble.strerror}") from None
    with os.fdopen(handle, "w") as opened:
        opened.write(token + "\n")
        opened.flush()
        os.fsync(opened.fileno())
