"""API keys: creating and reading secrets, checking them, and checking changes to a key."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b32encode
from collections.abc import Iterable

from fairlead.errors import InvalidRequest, Unauthenticated
from fairlead.model.access import Grant, KeyInfo, KeyRecord, read_grants
from fairlead.model.durations import Duration, to_ms

#: Stands in place of an id in the rows of keys, for the bootstrap key as the operator last gave it. No key
#: has this id.
ADOPTED = "adopted"
#: How far the stored time of last use may lag, because a use alone is not worth a write.
MAX_USE_LAG_MS = 60_000

#: Length of a secret that an operator chose. A shorter one could be guessed, and a secret travels in a header.
MIN_CHOSEN_SECRET, MAX_CHOSEN_SECRET = 32, 256

_TOKEN = re.compile(r"fl_([a-z2-7]{12})_([A-Za-z0-9_-]{43})")
_PRINTABLE = re.compile(r"[ -~]*")
_UNKNOWN = "it is not known here; it may have been revoked"
_LAST_MS = 1 << 62


def make_key_id() -> str:
    return b32encode(secrets.token_bytes(8))[:12].decode().lower()


def make_token() -> str:
    return f"fl_{make_key_id()}_{secrets.token_urlsafe(32)}"


def read_token(token: object) -> tuple[str, bytes]:
    """The id of a key, and the digest of its whole secret."""
    found = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    if found is None:
        raise InvalidRequest("API key", "fl_<12 characters>_<43 characters>", "something else")
    return found[1], hashlib.sha256(found[0].encode()).digest()


def read_secret(secret: str) -> tuple[str | None, bytes]:
    """Read a secret as `read_token` does. A secret that an operator chose names no id: the id is None.

    The `InvalidRequest` that it raises does not contain the secret.
    """
    if _TOKEN.fullmatch(secret):
        return read_token(secret)
    if wrong := _why_not_chosen(secret):
        expected = f"{MIN_CHOSEN_SECRET} to {MAX_CHOSEN_SECRET} printable ASCII characters with no space at either end"
        raise InvalidRequest("API key", expected, wrong)
    return None, hashlib.sha256(secret.encode()).digest()


def _why_not_chosen(secret: str) -> str:
    if secret != secret.strip():
        return "whitespace at an end"
    if not _PRINTABLE.fullmatch(secret):
        return "other characters"
    if len(secret) < MIN_CHOSEN_SECRET:
        return "fewer"
    return "more" if len(secret) > MAX_CHOSEN_SECRET else ""


def read_credential(token: str) -> tuple[str | None, bytes]:
    """Read a secret that a caller presents. Raises `Unauthenticated` if it has no valid form."""
    try:
        return read_secret(token)
    except InvalidRequest:
        raise Unauthenticated("it does not look like one (fl_...)") from None


def check_secret(record: KeyRecord | None, digest: bytes) -> KeyRecord:
    """The key. Raises `Unauthenticated` unless the key exists and the digest matches.

    Only the holder of the secret learns what is wrong with a key.
    """
    # Compared even if there is no key, so that the time taken reveals nothing.
    is_same = hmac.compare_digest(record.digest if record is not None else bytes(32), digest)
    if record is None or not is_same:
        raise Unauthenticated(_UNKNOWN)
    return record


def check_valid(record: KeyRecord | None, now_ms: int) -> KeyRecord:
    """Raise `Unauthenticated` for a key that was revoked or has expired."""
    if record is None:
        raise Unauthenticated(_UNKNOWN)
    if record.is_over(now_ms):
        raise Unauthenticated(f"key {record.key_id} expired; ask for a new one")
    return record


def is_use_unrecorded(record: KeyRecord, now_ms: int) -> bool:
    """Whether the stored time of last use is old enough that a use is worth a write."""
    return abs(now_ms - record.last_used_ms) > MAX_USE_LAG_MS


def change_grants(
    has: tuple[Grant, ...], *, add: Iterable[Grant], remove: Iterable[Grant]
) -> tuple[Grant, ...]:
    """The grants after adding some and removing others.

    A removed grant must be there word for word: a part of a wider grant cannot be removed, and must not
    appear to have been.
    """
    removed = set(remove)
    for grant in sorted(removed):
        if grant not in has:
            there = " ".join(map(str, has)) or "none"
            raise InvalidRequest("remove", f"rights that the key has: {there}", str(grant))
    return read_grants((set(has) - removed) | set(add))


def read_end(
    now_ms: int, expires_in: Duration | None, *, field: str = "expires_in", expires_at: int | None = None
) -> int:
    """When a key expires: at `expires_at`, or `expires_in` from now; 0 for never. `field` is the caller's
    name of the duration.
    """
    if expires_at is not None:
        if expires_in is not None:
            raise InvalidRequest("expires_at", "none beside expires_in", expires_at)
        if type(expires_at) is not int or not now_ms < expires_at <= _LAST_MS:
            raise InvalidRequest("expires_at", "a time to come, in epoch milliseconds", expires_at)
        return expires_at
    if expires_in is None:
        return 0
    duration_ms = to_ms(expires_in, field)
    if duration_ms <= 0:
        raise InvalidRequest(field, "longer than 0", expires_in)
    return now_ms + duration_ms


def show_key(record: KeyRecord) -> KeyInfo:
    return KeyInfo(
        id=record.key_id,
        name=record.name,
        grants=tuple(map(str, record.grants)),
        created_at=record.created_ms,
        created_by=record.created_by,
        expires_at=record.expires_ms or None,
        last_used_at=record.last_used_ms or None,
    )


def show_keys(records: Iterable[KeyRecord]) -> list[KeyInfo]:
    """The keys as they are shown, in the order of their creation."""
    return sorted(map(show_key, records), key=lambda info: (info.created_at, info.id))
