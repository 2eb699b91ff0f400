"""API keys.

A caller grants only rights of its own, on queues that it administers, and for no longer than it has them
itself. It sees and changes only keys within its own rights; every other key is answered as if it did not
exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fairlead.decide.rights import covers, may_change, may_grant
from fairlead.errors import Forbidden, InvalidRequest, KeyNotFound
from fairlead.fields import Grants, KeyId, lasting
from fairlead.model.access import EVERYTHING, Grant, KeyInfo, KeyRecord, NewKey, Right, read_grants
from fairlead.model.durations import Duration, to_ms
from fairlead.model.limits import MAX_GRANTS, MAX_KEY_NAME_BYTES
from fairlead.request import Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("keys.create")
class KeysCreate(Request[NewKey], frozen=True):
    """Create a key with these rights. Its `secret` is returned only here. `expires_at` is in epoch
    milliseconds.
    """

    answers_secret = True
    audited = True
    room = Room.GROWS

    name: Annotated[
        str,
        Meta(
            description="For people: whose it is, or what for.", min_length=1, max_length=MAX_KEY_NAME_BYTES
        ),
    ]
    grants: Grants = ()
    expires_in: Annotated[
        Duration | None, lasting("How long the key is valid; None: for ever.", at_least_ms=1)
    ] = None
    expires_at: Annotated[
        int | None, Meta(description="When it ends, in epoch milliseconds, instead of `expires_in`.")
    ] = None

    def authorize(self, rights: Rights) -> KeysCreate:
        wanted = read_grants(self.grants)
        if not any(grant.right is Right.ADMIN for grant in rights.grants()):
            raise Forbidden(Right.ADMIN, EVERYTHING)
        _need_to_grant(rights, wanted)
        _need_no_longer(rights, self.expires_in, self.expires_at)
        return msgspec.structs.replace(self, grants=wanted)

    def audit_details(self) -> Mapping[str, object]:
        return {"name": self.name, "grants": _as_text(self.grants)}

    def audit_result(self, answer: NewKey) -> Mapping[str, object]:
        return {"key": answer.info.id}


@verb("keys.list")
class KeysList(Request[list[KeyInfo]], frozen=True):
    """All keys, in the order of their creation."""

    repeatable = True

    def visible(self, answer: list[KeyInfo], rights: Rights) -> list[KeyInfo]:
        own = rights.own_key()
        if own is None:
            return answer
        may_see = {own.key_id} | {record.key_id for record in rights.all_keys() if may_change(own, record)}
        return [info for info in answer if info.id in may_see]


@verb("keys.show")
class KeysShow(Request[KeyInfo], frozen=True):
    """A key by its id; without an id, the caller's own."""

    repeatable = True

    key_id: KeyId = ""

    def authorize(self, rights: Rights) -> KeysShow:
        own = rights.own_key()
        if own is None or self.key_id not in ("", own.key_id):
            _find(rights, self.key_id)
        return self


@verb("keys.set_grants")
class KeysSetGrants(Request[KeyInfo], frozen=True):
    """Replace all rights of a key, from its next call on."""

    audited = True
    repeatable = True
    room = Room.GROWS

    key_id: KeyId
    grants: Grants

    def authorize(self, rights: Rights) -> KeysSetGrants:
        wanted = read_grants(self.grants)
        record = _find(rights, self.key_id)
        _need_to_grant(rights, wanted)
        _need_no_later_end(rights, record, more=set(wanted) - set(record.grants))
        return msgspec.structs.replace(self, grants=wanted)

    def audit_details(self) -> Mapping[str, object]:
        return {"key": self.key_id, "grants": _as_text(self.grants)}


@verb("keys.change_grants")
class KeysChangeGrants(Request[KeyInfo], frozen=True):
    """Add and remove rights, independent of concurrent changes. A removed right must be there, word for word."""

    audited = True
    room = Room.GROWS

    key_id: KeyId
    add: Grants = ()
    remove: Annotated[
        Sequence[Grant | str],
        Meta(description="Take these rights away; the key must have them.", max_length=MAX_GRANTS),
    ] = ()

    def authorize(self, rights: Rights) -> KeysChangeGrants:
        more, less = read_grants(self.add), read_grants(self.remove)
        record = _find(rights, self.key_id)
        _need_to_grant(rights, more)
        _need_no_later_end(rights, record, more)
        return msgspec.structs.replace(self, add=more, remove=less)

    def audit_details(self) -> Mapping[str, object]:
        return {"key": self.key_id, "add": _as_text(self.add), "remove": _as_text(self.remove)}


@verb("keys.revoke")
class KeysRevoke(Request[None], frozen=True):
    """Revoke a key: its next call is refused, also on an open stream. Raises `KeyNotFound`."""

    audited = True
    room = Room.FITS

    key_id: KeyId

    def authorize(self, rights: Rights) -> KeysRevoke:
        _find(rights, self.key_id)
        return self

    def audit_details(self) -> Mapping[str, object]:
        return {"key": self.key_id}


@verb("keys.rotate")
class KeysRotate(Request[NewKey], frozen=True):
    """Create a new key with the same name, rights and end. The old one works for `keep` longer, or ends now.

    A caller may always rotate its own key: the holder of a secret may exchange it. Keeping the old secret
    beside the new one needs the rights to change the key; otherwise, whoever found a secret could create a
    second one that stays valid when the first is revoked.
    """

    answers_secret = True
    audited = True
    room = Room.GROWS

    key_id: KeyId
    keep: Annotated[
        Duration | None, lasting("How much longer the old key is good; None: it ends now.", at_least_ms=1)
    ] = None

    def authorize(self, rights: Rights) -> KeysRotate:
        own = rights.own_key()
        if own is None or self.key_id != own.key_id:
            # The caller receives the new secret, so it must not outlive the caller's own key.
            _need_no_later_end(rights, _find(rights, self.key_id), more=("its secret",))
        elif self.keep is not None and not may_change(own, own):
            missing = next((grant for grant in own.grants if not may_grant(own.grants, grant)), None)
            raise Forbidden(Right.ADMIN, EVERYTHING if missing is None else missing.pattern)
        return self

    def audit_details(self) -> Mapping[str, object]:
        return {"key": self.key_id}

    def audit_result(self, answer: NewKey) -> Mapping[str, object]:
        return {"new": answer.info.id}


def _may_change(own: KeyRecord | None) -> Callable[[KeyRecord], bool]:
    return lambda record: own is None or may_change(own, record)


def _find(rights: Rights, key_id: object) -> KeyRecord:
    record = rights.find_key(key_id)
    if record is None or not _may_change(rights.own_key())(record):
        raise KeyNotFound(str(key_id)[:100])
    return record


def _need_to_grant(rights: Rights, wanted: Sequence[Grant]) -> None:
    own = rights.grants()
    for grant in wanted:
        if not may_grant(own, grant):
            raise Forbidden(Right.ADMIN if covers(own, grant) else grant.right, grant.pattern)


def _need_no_longer(rights: Rights, expires_in: Duration | None, expires_at: int | None) -> None:
    """Refuse a new key that would outlive the caller's own."""
    own = rights.own_key()
    if own is None or not own.expires_ms:
        return
    now_ms = rights.now_ms()
    ends_ms = expires_at
    if ends_ms is None and expires_in is not None:
        ends_ms = now_ms + to_ms(expires_in, "expires_in")
    if not isinstance(ends_ms, int) or ends_ms > own.expires_ms:
        left = f"at most {max(own.expires_ms - now_ms, 0) // 1000}s, when the key that grants ends itself"
        raise InvalidRequest("expires_in", left, expires_in if expires_at is None else expires_at)


def _need_no_later_end(rights: Rights, record: KeyRecord, more: Collection[object]) -> None:
    """Refuse to extend a key that outlives the caller's: its rights would have no end."""
    own = rights.own_key()
    if more and own is not None and own.expires_ms and not 0 < record.expires_ms <= own.expires_ms:
        raise InvalidRequest("key_id", "a key that ends no later than the one that grants", record.key_id)


def _as_text(grants: Sequence[Grant | str]) -> str:
    return " ".join(map(str, grants))
