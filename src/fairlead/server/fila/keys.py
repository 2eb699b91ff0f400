"""Fila's keys and access lists, mapped to fairlead's.

A superadmin of Fila is a flag; in fairlead it is a key with every right on `*`. Fila has three kinds of
permissions. Fairlead has six rights: three with the same names, and three more. This door shows all six, so a
client sees exactly the rights that are set, and setting them again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.errors import InvalidRequest
from fairlead.model.access import EVERY_RIGHT, Grant, KeyInfo, Right, check_pattern
from fairlead.server.fila.v1 import admin_pb2 as pb
from fairlead.surface import KeysGroup

_SUPERADMIN = {str(grant) for grant in EVERY_RIGHT}


class Keys:
    """The keys as one caller may use them. A key that the caller may not change is answered as if it did not
    exist.
    """

    def __init__(self, keys: KeysGroup) -> None:
        self._keys = keys

    def create(self, request: pb.CreateApiKeyRequest) -> pb.CreateApiKeyResponse:
        """The key has no rights, unless the request asks for a superadmin. SetAcl grants rights."""
        made = self._keys.create(
            request.name,
            EVERY_RIGHT if request.is_superadmin else (),
            expires_at=request.expires_at_ms or None,
        )
        return pb.CreateApiKeyResponse(
            key_id=made.info.id, key=made.secret, is_superadmin=request.is_superadmin
        )

    def revoke(self, request: pb.RevokeApiKeyRequest) -> None:
        self._keys.revoke(_check_id(request.key_id))

    def list(self) -> pb.ListApiKeysResponse:
        return pb.ListApiKeysResponse(
            keys=[
                pb.ApiKeyInfo(
                    key_id=info.id,
                    name=info.name,
                    created_at_ms=info.created_at,
                    expires_at_ms=info.expires_at or 0,
                    is_superadmin=_is_superadmin(info),
                )
                for info in self._keys.list()
            ]
        )

    def set_acl(self, request: pb.SetAclRequest) -> None:
        self._keys.set_grants(_check_id(request.key_id), [_grant(one) for one in request.permissions])

    def get_acl(self, request: pb.GetAclRequest) -> pb.GetAclResponse:
        info = self._keys.show(_check_id(request.key_id))
        return pb.GetAclResponse(
            key_id=info.id, permissions=list(_permissions(info.grants)), is_superadmin=_is_superadmin(info)
        )


def _check_id(key_id: str) -> str:
    """An empty id would mean the caller's own key."""
    if not key_id:
        raise InvalidRequest("key_id", "the id of a key", key_id)
    return key_id


def _grant(permission: pb.AclPermission) -> Grant:
    if permission.kind not in Right._value2member_map_:
        raise InvalidRequest("kind", "one of " + ", ".join(Right), permission.kind)
    return Grant(Right(permission.kind), check_pattern(permission.pattern))


def _permissions(grants: Iterable[str]) -> Iterable[pb.AclPermission]:
    for grant in grants:
        kind, _, pattern = grant.partition(":")
        yield pb.AclPermission(kind=kind, pattern=pattern)


def _is_superadmin(info: KeyInfo) -> bool:
    return _SUPERADMIN.issubset(info.grants)
