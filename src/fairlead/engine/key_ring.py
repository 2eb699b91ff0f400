"""API keys for authentication: found by their ids, compared by digest. Every record is in memory, because every
call of a server asks for one.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fairlead.engine.memory import Memory
from fairlead.errors import KeyNotFound, Unavailable
from fairlead.model.access import Grant, KeyInfo, KeyRecord, read_grants
from fairlead.model.api_keys import (
    ADOPTED,
    MAX_USE_LAG_MS,
    check_secret,
    check_valid,
    is_use_unrecorded,
    read_credential,
    read_token,
    show_key,
)
from fairlead.records.facts import RecordsChanged
from fairlead.store.kv.port import Table

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine


def find_key(memory: Memory, key_id: object) -> KeyRecord | None:
    if not isinstance(key_id, str) or key_id == ADOPTED:
        return None
    # Text that cannot be encoded is the id of no key.
    record: KeyRecord | None = memory.records[Table.API_KEYS].get(key_id.encode(errors="replace"))
    return record


def load_key(memory: Memory, key_id: object) -> KeyRecord:
    record = find_key(memory, key_id)
    if record is None:
        raise KeyNotFound(str(key_id)[:100])
    return record


def all_keys(memory: Memory) -> tuple[KeyRecord, ...]:
    # One step for the interpreter, so a transaction of another thread does not change the table meanwhile.
    records = tuple(memory.records[Table.API_KEYS].values())
    return tuple(record for record in records if record.key_id != ADOPTED)


def keys_changed(*saved: KeyRecord, dropped: Iterable[str] = ()) -> RecordsChanged:
    gone: dict[bytes, KeyRecord | None] = {key_id.encode(): None for key_id in dropped}
    return RecordsChanged(Table.API_KEYS, gone | {record.key_id.encode(): record for record in saved})


class KeyRing:
    """`broker.key_ring`. It does not ask who calls: the verbs do.

    `authenticate`, `current`, `find` and `records` do not wait for the engine's lock. They may see a change to a key
    before it is written: if the write then fails, the change was asked for by a caller with the right to make it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._note_uses_from_ms = 0

    def authenticate(self, token: str) -> KeyRecord:
        """The key that a secret belongs to, or `Unauthenticated`."""
        key_id, digest = read_credential(token)
        check_secret(self.find(key_id), digest)
        return self.current(key_id)

    def current(self, key_id: str) -> KeyRecord:
        """The key as it is now: `Unauthenticated` once it was revoked or is over."""
        now_ms = self._engine.clock.now_ms()
        record = check_valid(self.find(key_id), now_ms)
        if is_use_unrecorded(record, now_ms) and now_ms >= self._note_uses_from_ms:
            self._note_use(key_id, now_ms)
        return record

    def find(self, key_id: object) -> KeyRecord | None:
        return find_key(self._engine.memory, key_id)

    def records(self) -> tuple[KeyRecord, ...]:
        return all_keys(self._engine.memory)

    def adopt(self, token: str, name: str, grants: Iterable[Grant]) -> KeyInfo | None:
        """Take a secret that was made elsewhere as the only key of that name: a bootstrap key from a file.

        None when the secret was taken before and has been revoked or rotated since: a file that was left lying
        about must not undo this.
        """
        key_id, digest = read_token(token)
        with self._engine.transaction() as tx:
            known = find_key(tx.memory, key_id)
            if known is not None and hmac.compare_digest(known.digest, digest):
                return show_key(known)
            adopted = tx.memory.records[Table.API_KEYS].get(ADOPTED.encode())
            if adopted is not None and hmac.compare_digest(adopted.digest, digest):
                return None
            record = KeyRecord(key_id, name, digest, tx.wall_ms, "bootstrap", read_grants(grants))
            mark = KeyRecord(ADOPTED, name, digest, tx.wall_ms, "bootstrap")
            replaced = [other.key_id for other in all_keys(tx.memory) if other.name == name]
            tx.add(keys_changed(record, mark, dropped=replaced))
        self._engine.confirm()
        return show_key(record)

    def _note_use(self, key_id: str, now_ms: int) -> None:
        try:
            with self._engine.transaction() as tx:
                record = find_key(tx.memory, key_id)
                if record is not None and is_use_unrecorded(record, now_ms):
                    tx.add(keys_changed(replace(record, last_used_ms=now_ms)))
        except Unavailable:
            # On a full disk calls must go on, above all those that make room; and a failed write costs a
            # reload, which must not come with every call.
            self._note_uses_from_ms = now_ms + MAX_USE_LAG_MS
