"""API keys: made, shown once, found by their prefix, compared by digest. Who may hold which is decided in `decide/access.py`.

They have rows of their own, so neither the runtime configuration nor a hook reaches them. All are in memory, because every
call of a server asks for one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b32encode
from collections.abc import Iterable, Sequence

import msgspec

from fairlead.broker.core import Core
from fairlead.errors import InvalidRequest, KeyNotFound, LimitReached, Unauthenticated
from fairlead.model.access import Grant, KeyInfo, KeyRecord, NewKey, read_grants
from fairlead.model.checks import check_text
from fairlead.model.durations import Duration, to_ms
from fairlead.model.facts import Fact, KeyDropped, KeySaved
from fairlead.model.limits import MAX_KEY_NAME_BYTES, MAX_KEYS

_TOKEN = re.compile(r"fl_([a-z2-7]{12})_([A-Za-z0-9_-]{43})")
#: How far behind the stored time of last use may be: a use is no reason to write.
_USE_LAG_MS = 60_000
_UNKNOWN = "it is not known here; it may have been revoked"


class KeyRing:
    """`broker.keys`. Nothing here asks who is calling: a server's guard does."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._records: dict[str, KeyRecord] = {record.key_id: record for record in core.store.api_keys()}

    def create(
        self, name: str, grants: Iterable[Grant | str] = (), *, expires_in: Duration | None = None, created_by: str = "local"
    ) -> NewKey:
        """A new key with these rights; `secret` of the answer is shown this once."""
        check_text(name, "name", MAX_KEY_NAME_BYTES)
        return self._add(name, read_grants(grants), self._expiry(expires_in), created_by)

    def list(self) -> list[KeyInfo]:
        """In the order they were made."""
        return sorted((_info(record) for record in list(self._records.values())), key=lambda info: (info.created_at, info.id))

    def show(self, key_id: str) -> KeyInfo:
        """Raises `KeyNotFound`."""
        return _info(self.record(key_id))

    def set_grants(self, key_id: str, grants: Iterable[Grant | str]) -> KeyInfo:
        """All rights the key has from its next call on."""
        wanted = read_grants(grants)
        with self._core.lock:
            changed = msgspec.structs.replace(self.record(key_id), grants=wanted)
            self._commit([KeySaved(changed)])
            self._records[key_id] = changed
            commit = self._core.store.last_commit
        self._core.confirm(commit)
        return _info(changed)

    def revoke(self, key_id: str) -> None:
        """Its next call is refused, also on a stream that is open. Raises `KeyNotFound`."""
        with self._core.lock:
            self.record(key_id)
            self._commit([KeyDropped(key_id)])
            del self._records[key_id]
            commit = self._core.store.last_commit
        self._core.confirm(commit)

    def rotate(self, key_id: str, *, keep: Duration | None = None, created_by: str = "local") -> NewKey:
        """A new key with the same name, rights and end; the old one is good for `keep` more, or ends now."""
        old = self.record(key_id)
        return self._add(old.name, old.grants, old.expires_ms, created_by, replaces=old, keep_until_ms=self._expiry(keep))

    def adopt(self, token: str, name: str, grants: Iterable[Grant]) -> KeyInfo:
        """Take a secret that was made elsewhere as the only key of that name: a bootstrap key from a file."""
        key_id, digest = read_token(token)
        core = self._core
        with core.lock:
            known = self._records.get(key_id)
            if known is not None and hmac.compare_digest(known.digest, digest):
                return _info(known)
            record = KeyRecord(key_id, name, digest, core.clock.now_ms(), "bootstrap", read_grants(grants))
            replaced = [other.key_id for other in self._records.values() if other.name == name and other.key_id != key_id]
            self._commit([*[KeyDropped(other) for other in replaced], KeySaved(record)])
            self._records = {other: held for other, held in self._records.items() if other not in replaced} | {key_id: record}
            commit = core.store.last_commit
        core.confirm(commit)
        return _info(record)

    # For a server, at every call

    def authenticate(self, token: str) -> KeyRecord:
        """The key that a secret belongs to, or `Unauthenticated`. What is wrong with it only the holder of the secret learns."""
        try:
            key_id, digest = read_token(token)
        except InvalidRequest:
            raise Unauthenticated("it does not look like one (fl_...)") from None
        record = self._records.get(key_id)
        # Compared also when there is none, so that the time taken tells nothing.
        if not hmac.compare_digest(record.digest if record is not None else bytes(32), digest) or record is None:
            raise Unauthenticated(_UNKNOWN)
        return self.current(key_id)

    def current(self, key_id: str) -> KeyRecord:
        """The key as it is now: `Unauthenticated` once it was revoked or is over."""
        record = self._records.get(key_id)
        if record is None:
            raise Unauthenticated(_UNKNOWN)
        now_ms = self._core.clock.now_ms()
        if record.is_over(now_ms):
            raise Unauthenticated(f"key {key_id} expired; ask for a new one")
        if now_ms - record.last_used_ms > _USE_LAG_MS:
            self._note_use(key_id, now_ms)
        return record

    def record(self, key_id: str) -> KeyRecord:
        record = self._records.get(key_id) if isinstance(key_id, str) else None
        if record is None:
            raise KeyNotFound(str(key_id)[:100])
        return record

    def records(self) -> tuple[KeyRecord, ...]:
        return tuple(self._records.values())

    def _add(
        self, name: str, grants: tuple[Grant, ...], expires_ms: int, created_by: str, *, replaces: KeyRecord | None = None, keep_until_ms: int = 0
    ) -> NewKey:
        core = self._core
        secret = make_token()
        key_id, digest = read_token(secret)
        with core.lock:
            if len(self._records) >= MAX_KEYS:
                raise LimitReached("API keys", MAX_KEYS)
            record = KeyRecord(key_id, name, digest, core.clock.now_ms(), created_by, grants, expires_ms)
            facts: list[Fact] = [KeySaved(record)]
            ends = None
            if replaces is not None:
                # Read again under the lock: it may have been revoked or changed.
                old = self.record(replaces.key_id)
                if keep_until_ms:
                    ends = msgspec.structs.replace(old, expires_ms=min(keep_until_ms, old.expires_ms or keep_until_ms))
                facts.append(KeyDropped(old.key_id) if ends is None else KeySaved(ends))
            self._commit(facts)
            self._records[key_id] = record
            if ends is not None:
                self._records[ends.key_id] = ends
            elif replaces is not None:
                self._records.pop(replaces.key_id)
            commit = core.store.last_commit
        core.confirm(commit)
        return NewKey(_info(record), secret)

    def _note_use(self, key_id: str, now_ms: int) -> None:
        with self._core.lock:
            record = self._records.get(key_id)
            if record is None or now_ms - record.last_used_ms <= _USE_LAG_MS:
                return
            used = msgspec.structs.replace(record, last_used_ms=now_ms)
            self._commit([KeySaved(used)])
            self._records[key_id] = used

    def _commit(self, facts: Sequence[Fact]) -> None:
        self._core.check_open()
        self._core.commit(facts)

    def _expiry(self, expires_in: Duration | None) -> int:
        if expires_in is None:
            return 0
        duration_ms = to_ms(expires_in, "expires_in")
        if duration_ms <= 0:
            raise InvalidRequest("expires_in", "longer than 0", expires_in)
        return self._core.clock.now_ms() + duration_ms


def make_token() -> str:
    key_id = b32encode(secrets.token_bytes(8))[:12].decode().lower()
    return f"fl_{key_id}_{secrets.token_urlsafe(32)}"


def read_token(token: object) -> tuple[str, bytes]:
    """The id of a key, and the digest of its whole secret."""
    found = _TOKEN.fullmatch(token) if isinstance(token, str) else None
    if found is None:
        raise InvalidRequest("API key", "fl_<12 characters>_<43 characters>", "something else")
    return found[1], hashlib.sha256(found[0].encode()).digest()


def _info(record: KeyRecord) -> KeyInfo:
    return KeyInfo(
        id=record.key_id,
        name=record.name,
        grants=tuple(map(str, record.grants)),
        created_at=record.created_ms,
        created_by=record.created_by,
        expires_at=record.expires_ms or None,
        last_used_at=record.last_used_ms or None,
    )
