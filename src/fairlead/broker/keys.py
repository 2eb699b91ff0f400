"""API keys: made, shown once, found by their prefix, compared by digest. Who may hold which is decided in
`decide/access.py`.

They have rows of their own, so neither the runtime configuration nor a hook reaches them. All are in memory,
because every call of a server asks for one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fairlead.broker.core import Core
from fairlead.errors import InvalidRequest, KeyNotFound, LimitReached, Unavailable
from fairlead.model.access import Grant, KeyInfo, KeyRecord, NewKey, read_grants
from fairlead.model.api_keys import (
    ADOPTED,
    MAX_USE_LAG_MS,
    change_grants,
    check_secret,
    check_valid,
    is_use_unrecorded,
    make_token,
    read_credential,
    read_end,
    read_token,
    show_key,
    show_keys,
)
from fairlead.model.checks import check_text
from fairlead.model.durations import Duration
from fairlead.model.facts import KeyDropped, KeySaved
from fairlead.model.limits import MAX_KEY_NAME_BYTES, MAX_KEYS

Condition = Callable[[KeyRecord], bool]


class KeyRing:
    """`broker.key_ring`. It does not ask who calls: the verbs do, and say with `only_if` what a key must still be
    when it is changed, so that nobody changes a key that became somebody else's in between.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        stored = {record.key_id: record for record in core.store.api_keys()}
        self._adopted = stored.pop(ADOPTED, None)
        self._records: dict[str, KeyRecord] = stored
        self._note_uses_from_ms = 0

    def create(
        self,
        name: str,
        grants: Iterable[Grant | str] = (),
        *,
        expires_in: Duration | None = None,
        expires_at: int | None = None,
        created_by: str = "local",
    ) -> NewKey:
        """A new key with these rights; `secret` of the answer is shown this once. `expires_at` is in epoch
        milliseconds.
        """
        check_text(name, "name", MAX_KEY_NAME_BYTES)
        wanted = read_grants(grants)
        expires_ms = read_end(self._core.clock.now_ms(), expires_in, expires_at=expires_at)
        secret = make_token()
        key_id, digest = read_token(secret)
        with self._core.lock:
            self._check_room()
            record = KeyRecord(
                key_id, name, digest, self._core.clock.now_ms(), created_by, wanted, expires_ms
            )
            commit = self._write([record])
        self._core.confirm(commit)
        return NewKey(show_key(record), secret)

    def list(self) -> list[KeyInfo]:
        """In the order they were made."""
        return show_keys(self.records())

    def show(self, key_id: str) -> KeyInfo:
        """Raises `KeyNotFound`."""
        return show_key(self.record(key_id))

    def set_grants(
        self, key_id: str, grants: Iterable[Grant | str], *, only_if: Condition | None = None
    ) -> KeyInfo:
        """All rights the key has from its next call on."""
        wanted = read_grants(grants)
        return self._change(key_id, lambda _: wanted, only_if)

    def change_grants(
        self,
        key_id: str,
        *,
        add: Iterable[Grant | str] = (),
        remove: Iterable[Grant | str] = (),
        only_if: Condition | None = None,
    ) -> KeyInfo:
        """Some more rights and some less, whatever else changes them meanwhile. What is removed must be
        there, word for word.
        """
        more, less = read_grants(add), read_grants(remove)
        return self._change(key_id, lambda has: change_grants(has, add=more, remove=less), only_if)

    def revoke(self, key_id: str, *, only_if: Condition | None = None) -> None:
        """Its next call is refused, also on a stream that is open. Raises `KeyNotFound`."""
        with self._core.lock:
            commit = self._write([], dropped=[self._find(key_id, only_if).key_id])
        self._core.confirm(commit)

    def rotate(
        self,
        key_id: str,
        *,
        keep: Duration | None = None,
        created_by: str = "local",
        only_if: Condition | None = None,
    ) -> NewKey:
        """A new key with the same name, rights and end; the old one is good for `keep` more, or ends now."""
        keep_until_ms = read_end(self._core.clock.now_ms(), keep, field="keep")
        secret = make_token()
        new_id, digest = read_token(secret)
        with self._core.lock:
            old, now_ms = self._find(key_id, only_if), self._core.clock.now_ms()
            if old.is_over(now_ms):
                raise InvalidRequest("key_id", "a key that has not expired; make a new one instead", key_id)
            record = KeyRecord(new_id, old.name, digest, now_ms, created_by, old.grants, old.expires_ms)
            if keep_until_ms:
                self._check_room()
                ends_ms = min(keep_until_ms, old.expires_ms or keep_until_ms)
                commit = self._write([record, msgspec.structs.replace(old, expires_ms=ends_ms)])
            else:
                commit = self._write([record], dropped=[old.key_id])
        self._core.confirm(commit)
        return NewKey(show_key(record), secret)

    def adopt(self, token: str, name: str, grants: Iterable[Grant]) -> KeyInfo | None:
        """Take a secret that was made elsewhere as the only key of that name: a bootstrap key from a file.

        None when it was taken before and has been revoked or rotated since: that is not undone by a file left
        lying about.
        """
        key_id, digest = read_token(token)
        core = self._core
        with core.lock:
            known = self._records.get(key_id)
            if known is not None and hmac.compare_digest(known.digest, digest):
                return show_key(known)
            if self._adopted is not None and hmac.compare_digest(self._adopted.digest, digest):
                return None
            record = KeyRecord(key_id, name, digest, core.clock.now_ms(), "bootstrap", read_grants(grants))
            replaced = [
                other.key_id
                for other in self._records.values()
                if other.name == name and other.key_id != key_id
            ]
            adopted = KeyRecord(ADOPTED, name, digest, record.created_ms, "bootstrap")
            commit = self._write([record], dropped=replaced, beside=[adopted])
            self._adopted = adopted
        core.confirm(commit)
        return show_key(record)

    # For a server, at every call

    def authenticate(self, token: str) -> KeyRecord:
        """The key that a secret belongs to, or `Unauthenticated`. What is wrong with it only the holder of
        the secret learns.
        """
        key_id, digest = read_credential(token)
        check_secret(self._records.get(key_id), digest)
        return self.current(key_id)

    def current(self, key_id: str) -> KeyRecord:
        """The key as it is now: `Unauthenticated` once it was revoked or is over."""
        now_ms = self._core.clock.now_ms()
        record = check_valid(self._records.get(key_id), now_ms)
        if is_use_unrecorded(record, now_ms) and now_ms >= self._note_uses_from_ms:
            self._note_use(key_id, now_ms)
        return record

    def find(self, key_id: object) -> KeyRecord | None:
        return self._records.get(key_id) if isinstance(key_id, str) else None

    def record(self, key_id: str) -> KeyRecord:
        record = self.find(key_id)
        if record is None:
            raise KeyNotFound(str(key_id)[:100])
        return record

    def records(self) -> tuple[KeyRecord, ...]:
        return tuple(self._records.values())

    # How it is done, under the lock

    def _change(
        self,
        key_id: str,
        changed: Callable[[tuple[Grant, ...]], tuple[Grant, ...]],
        only_if: Condition | None,
    ) -> KeyInfo:
        with self._core.lock:
            old = self._find(key_id, only_if)
            record = msgspec.structs.replace(old, grants=changed(old.grants))
            commit = self._write([record])
        self._core.confirm(commit)
        return show_key(record)

    def _find(self, key_id: str, only_if: Condition | None) -> KeyRecord:
        record = self.record(key_id)
        if only_if is not None and not only_if(record):
            raise KeyNotFound(key_id)
        return record

    def _check_room(self) -> None:
        if len(self._records) >= MAX_KEYS:
            raise LimitReached("API keys", MAX_KEYS)

    def _write(
        self, saved: Sequence[KeyRecord], *, dropped: Sequence[str] = (), beside: Sequence[KeyRecord] = ()
    ) -> int:
        """Commit, then remember; the number of the commit."""
        core = self._core
        core.check_open()
        core.commit([*map(KeyDropped, dropped), *map(KeySaved, saved), *map(KeySaved, beside)])
        self._records = {key_id: held for key_id, held in self._records.items() if key_id not in dropped} | {
            record.key_id: record for record in saved
        }
        return core.store.last_commit

    def _note_use(self, key_id: str, now_ms: int) -> None:
        with self._core.lock:
            record = self._records.get(key_id)
            if record is not None and is_use_unrecorded(record, now_ms):
                try:
                    self._write([msgspec.structs.replace(record, last_used_ms=now_ms)])
                except Unavailable:
                    # On a full disk calls must go on, above all those that make room; and a write that fails
                    # costs a reload of the engine, which must not come with every call.
                    self._note_uses_from_ms = now_ms + MAX_USE_LAG_MS
