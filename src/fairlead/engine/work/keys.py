"""API keys. A caller with a key changes only keys within its own rights, as they are in this transaction: a
key that left them after the check of rights is answered as if it did not exist.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from fairlead.decide.rights import may_change
from fairlead.engine.key_ring import all_keys, find_key, keys_changed, load_key
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.errors import InvalidRequest, KeyNotFound, LimitReached
from fairlead.model.access import Grant, KeyInfo, KeyRecord, NewKey, read_grants
from fairlead.model.api_keys import (
    change_grants,
    check_valid,
    make_token,
    read_end,
    read_token,
    show_key,
    show_keys,
)
from fairlead.model.checks import check_text
from fairlead.model.limits import MAX_KEY_NAME_BYTES, MAX_KEYS
from fairlead.verbs.keys import (
    KeysChangeGrants,
    KeysCreate,
    KeysList,
    KeysRevoke,
    KeysRotate,
    KeysSetGrants,
    KeysShow,
)


def create(tx: Transaction, request: KeysCreate) -> NewKey:
    name = check_text(request.name, "name", MAX_KEY_NAME_BYTES)
    grants = read_grants(request.grants)
    expires_ms = read_end(tx.wall_ms, request.expires_in, expires_at=request.expires_at)
    _check_room(tx)
    record, secret = _make(tx, name, grants, expires_ms)
    tx.add(keys_changed(record))
    return NewKey(show_key(record), secret)


def list_keys(tx: Transaction, _: KeysList) -> list[KeyInfo]:
    return show_keys(all_keys(tx.memory))


def show(tx: Transaction, request: KeysShow) -> KeyInfo:
    own = tx.caller.key_id
    return show_key(load_key(tx.memory, own if own is not None and request.key_id == "" else request.key_id))


def set_grants(tx: Transaction, request: KeysSetGrants) -> KeyInfo:
    wanted = read_grants(request.grants)
    return _change(tx, request.key_id, lambda _: wanted)


def add_and_remove(tx: Transaction, request: KeysChangeGrants) -> KeyInfo:
    more, less = read_grants(request.add), read_grants(request.remove)
    return _change(tx, request.key_id, lambda has: change_grants(has, add=more, remove=less))


def revoke(tx: Transaction, request: KeysRevoke) -> None:
    tx.add(keys_changed(dropped=[_changeable(tx, request.key_id).key_id]))


def rotate(tx: Transaction, request: KeysRotate) -> NewKey:
    """Rotate a key. The holder of a secret may always exchange it; the check of rights has decided about
    `keep`.
    """
    keep_until_ms = read_end(tx.wall_ms, request.keep, field="keep")
    own = _own_key(tx)
    is_own = own is not None and own.key_id == request.key_id
    old = load_key(tx.memory, request.key_id) if is_own else _changeable(tx, request.key_id)
    if old.is_over(tx.wall_ms):
        raise InvalidRequest("key_id", "a key that has not expired; make a new one instead", request.key_id)
    if keep_until_ms:
        _check_room(tx)
    record, secret = _make(tx, old.name, old.grants, old.expires_ms)
    if keep_until_ms:
        ends_ms = min(keep_until_ms, old.expires_ms or keep_until_ms)
        tx.add(keys_changed(record, replace(old, expires_ms=ends_ms)))
    else:
        tx.add(keys_changed(record, dropped=[old.key_id]))
    return NewKey(show_key(record), secret)


def _make(tx: Transaction, name: str, grants: tuple[Grant, ...], expires_ms: int) -> tuple[KeyRecord, str]:
    secret = make_token()
    key_id, digest = read_token(secret)
    return KeyRecord(key_id, name, digest, tx.wall_ms, tx.caller.who, grants, expires_ms), secret


def _change(
    tx: Transaction, key_id: str, changed: Callable[[tuple[Grant, ...]], tuple[Grant, ...]]
) -> KeyInfo:
    old = _changeable(tx, key_id)
    record = replace(old, grants=changed(old.grants))
    tx.add(keys_changed(record))
    return show_key(record)


def _changeable(tx: Transaction, key_id: str) -> KeyRecord:
    own, record = _own_key(tx), load_key(tx.memory, key_id)
    if own is not None and not may_change(own, record):
        raise KeyNotFound(key_id)
    return record


def _own_key(tx: Transaction) -> KeyRecord | None:
    """The caller's current key; None for a caller without one, who may do everything."""
    key_id = tx.caller.key_id
    return None if key_id is None else check_valid(find_key(tx.memory, key_id), tx.wall_ms)


def _check_room(tx: Transaction) -> None:
    if len(all_keys(tx.memory)) >= MAX_KEYS:
        raise LimitReached("API keys", MAX_KEYS)


WORK: WorkTable = {
    KeysCreate: create,
    KeysList: list_keys,
    KeysShow: show,
    KeysSetGrants: set_grants,
    KeysChangeGrants: add_and_remove,
    KeysRevoke: revoke,
    KeysRotate: rotate,
}
