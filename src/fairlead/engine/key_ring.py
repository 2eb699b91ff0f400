"""API keys for authentication: found by id, or by digest where an operator chose the secret, and compared by
digest. Every record is in memory, because every call of a server needs one.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlead.decide.rights import allows
from fairlead.engine.memory import Memory
from fairlead.errors import KeyNotFound, Unavailable
from fairlead.model.access import Grant, KeyInfo, KeyRecord, Right, read_grants
from fairlead.model.api_keys import (
    ADOPTED,
    MAX_USE_LAG_MS,
    check_secret,
    check_valid,
    is_use_unrecorded,
    make_key_id,
    read_credential,
    read_secret,
    show_key,
)
from fairlead.records.facts import RecordsChanged
from fairlead.store.kv.port import Table

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


_ADOPTED = ADOPTED.encode()
#: Cached answers about one key.
_MAX_ALLOWED = 1000


def find_key(memory: Memory, key_id: object) -> KeyRecord | None:
    if not isinstance(key_id, str) or key_id == ADOPTED:
        return None
    # A text that cannot be encoded is not the id of any key.
    record: KeyRecord | None = memory.records[Table.API_KEYS].get(key_id.encode(errors="replace"))
    return record


def find_adopted_id(memory: Memory, digest: bytes) -> str | None:
    """The id of the bootstrap key, if this is the digest of its secret. The key itself may have been deleted
    since.
    """
    adopted: KeyRecord | None = memory.records[Table.API_KEYS].get(_ADOPTED)
    if adopted is None or not hmac.compare_digest(adopted.digest, digest):
        return None
    return adopted.key_id


def load_key(memory: Memory, key_id: object) -> KeyRecord:
    record = find_key(memory, key_id)
    if record is None:
        raise KeyNotFound(str(key_id)[:100])
    return record


def all_keys(memory: Memory) -> tuple[KeyRecord, ...]:
    # One step for the interpreter, so a transaction of another thread cannot change the table meanwhile.
    rows = tuple(memory.records[Table.API_KEYS].items())
    return tuple(record for key_id, record in rows if key_id != _ADOPTED)


def keys_changed(*saved: KeyRecord, dropped: Iterable[str] = ()) -> RecordsChanged:
    gone: dict[bytes, KeyRecord | None] = {key_id.encode(): None for key_id in dropped}
    return RecordsChanged(Table.API_KEYS, gone | {record.key_id.encode(): record for record in saved})


def _key_adopted(record: KeyRecord, *, replaced: Iterable[str]) -> RecordsChanged:
    """Remember the key separately, so that its secret is found without an id, and is not adopted again after
    it was revoked.
    """
    changed = keys_changed(record, dropped=replaced)
    return RecordsChanged(Table.API_KEYS, {**changed.records, _ADOPTED: record})


class _Known:
    """Facts about a key that hold while memory has this record, and within this span of time."""

    __slots__ = ("allowed", "from_ms", "record", "row_key", "until_ms")

    def __init__(self, record: KeyRecord) -> None:
        self.record = record
        self.row_key = record.key_id.encode()
        self.from_ms = record.last_used_ms - MAX_USE_LAG_MS
        self.until_ms = record.last_used_ms + MAX_USE_LAG_MS
        if record.expires_ms:
            self.until_ms = min(self.until_ms, record.expires_ms - 1)
        #: By right and queue.
        self.allowed: dict[tuple[Right, str], bool] = {}


class KeyRing:
    """`broker.key_ring`. It does not check the caller: the verbs do.

    `authenticate`, `current`, `find` and `records` do not wait for the engine's lock. They may see a change
    to a key before it is written: if the write then fails, the change was requested by a caller with the
    right to make it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._note_uses_from_ms = 0
        #: By id, for keys in use: every request looks its key up several times.
        self._known: dict[str, _Known] = {}

    def authenticate(self, token: str) -> KeyRecord:
        """The key that a secret belongs to; raises `Unauthenticated`."""
        key_id, digest = read_credential(token)
        if key_id is None:
            key_id = find_adopted_id(self._engine.memory, digest)
        return self.current(check_secret(self.find(key_id), digest).key_id)

    def current(self, key_id: str) -> KeyRecord:
        """The current key; raises `Unauthenticated` once it was revoked or has expired."""
        return self._current(key_id).record

    def allows(self, key_id: str, right: Right, queue: str) -> bool:
        """Whether the current key has the right on a queue, or on all queues of a pattern."""
        known = self._current(key_id)
        allowed = known.allowed.get((right, queue))
        if allowed is None:
            if len(known.allowed) >= _MAX_ALLOWED:
                known.allowed.clear()
            allowed = known.allowed[right, queue] = allows(known.record.grants, right, queue)
        return allowed

    def _current(self, key_id: str) -> _Known:
        now_ms, known = self._engine.clock.now_ms(), self._known.get(key_id)
        if (
            known is not None
            and known.from_ms <= now_ms <= known.until_ms
            and self._engine.memory.records[Table.API_KEYS].get(known.row_key) is known.record
        ):
            return known
        self._known.pop(key_id, None)
        record = check_valid(self.find(key_id), now_ms)
        if is_use_unrecorded(record, now_ms) and now_ms >= self._note_uses_from_ms:
            self._note_use(key_id, now_ms)
        known = self._known[key_id] = _Known(record)
        return known

    def find(self, key_id: object) -> KeyRecord | None:
        return find_key(self._engine.memory, key_id)

    def records(self) -> tuple[KeyRecord, ...]:
        return all_keys(self._engine.memory)

    def adopt(self, token: str, name: str, grants: Iterable[Grant]) -> KeyInfo | None:
        """Adopt a secret that was made elsewhere as the only key of that name: a bootstrap key from its
        operator.

        None if the secret was adopted before and has been revoked or rotated since: an old file must not undo
        this.
        """
        key_id, digest = read_secret(token)
        with self._engine.transaction() as tx:
            adopted_id = find_adopted_id(tx.memory, digest)
            known = find_key(tx.memory, adopted_id or key_id)
            if known is not None and hmac.compare_digest(known.digest, digest):
                return show_key(known)
            if adopted_id is not None:
                return None
            new_id = key_id or make_key_id()
            record = KeyRecord(new_id, name, digest, tx.wall_ms, "bootstrap", read_grants(grants))
            replaced = [other.key_id for other in all_keys(tx.memory) if other.name == name]
            tx.add(_key_adopted(record, replaced=replaced))
        self._engine.confirm()
        return show_key(record)

    def _note_use(self, key_id: str, now_ms: int) -> None:
        try:
            with self._engine.transaction() as tx:
                record = find_key(tx.memory, key_id)
                if record is not None and is_use_unrecorded(record, now_ms):
                    tx.add(keys_changed(replace(record, last_used_ms=now_ms)))
        except Unavailable:
            # On a full disk calls must continue, especially those that make room; and a failed write costs a
            # reload, which must not come with every call.
            self._note_uses_from_ms = now_ms + MAX_USE_LAG_MS
