"""The verbs in groups, as `client.config`, `client.runbooks`, `client.keys` and `client.audit`."""
# mypy: disable-error-code="no-any-return"
# What an admin verb gives is known from the table in wire/views.py, which types do not see.

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.model.access import AuditRecord, Grant, KeyInfo, NewKey
from fairlead.model.durations import Duration

if TYPE_CHECKING:
    from fairlead.client.client import Client


class ClientConfig:
    """`client.config`: the server's runtime configuration."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, key: str) -> str:
        return self._client._admin("config.get", key=key)

    def set(self, key: str, value: str | float) -> None:
        self._client._admin("config.set", key=key, value=value)

    def delete(self, key: str) -> None:
        self._client._admin("config.delete", key=key)

    def list(self, prefix: str = "") -> dict[str, str]:
        return self._client._admin("config.list", prefix=prefix)


class ClientRunbooks:
    """`client.runbooks`: the runbooks in force at the server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def save(self, project: str, text: str) -> None:
        self._client._admin("runbooks.save", project=project, text=text)

    def get(self, project: str) -> str:
        return self._client._admin("runbooks.get", project=project)

    def list(self) -> dict[str, str]:
        return self._client._admin("runbooks.list")


class ClientKeys:
    """`client.keys`: the API keys of the server, as far as the caller's own key lets it see and change them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        grants: Iterable[Grant | str] = (),
        *,
        expires_in: Duration | None = None,
        expires_at: int | None = None,
    ) -> NewKey:
        """`secret` of the answer is shown this once. `expires_at` is in epoch milliseconds."""
        return self._client._admin(
            "keys.create", name=name, grants=_texts(grants), expires_in=expires_in, expires_at=expires_at
        )

    def list(self) -> list[KeyInfo]:
        return self._client._admin("keys.list")

    def show(self, key_id: str = "") -> KeyInfo:
        """Without an id the caller's own."""
        return self._client._admin("keys.show", key_id=key_id)

    def set_grants(self, key_id: str, grants: Iterable[Grant | str]) -> KeyInfo:
        return self._client._admin("keys.set_grants", key_id=key_id, grants=_texts(grants))

    def change_grants(
        self, key_id: str, *, add: Iterable[Grant | str] = (), remove: Iterable[Grant | str] = ()
    ) -> KeyInfo:
        """Some more rights and some less; what is removed must be there, word for word."""
        return self._client._admin(
            "keys.change_grants", key_id=key_id, add=_texts(add), remove=_texts(remove)
        )

    def revoke(self, key_id: str) -> None:
        self._client._admin("keys.revoke", key_id=key_id)

    def rotate(self, key_id: str, *, keep: Duration | None = None) -> NewKey:
        return self._client._admin("keys.rotate", key_id=key_id, keep=keep)


class ClientAudit:
    """`client.audit`: who did what at the server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def read(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        who: str | None = None,
        verb: str | None = None,
        queue: str | None = None,
        since: int | None = None,
    ) -> list[AuditRecord]:
        """The newest first."""
        return self._client._admin(
            "audit.read", limit=limit, before=before, who=who, verb=verb, queue=queue, since=since
        )


def _texts(grants: Iterable[Grant | str]) -> object:
    """What is no list is for the engine to refuse."""
    return grants if isinstance(grants, (str, bytes)) else [str(grant) for grant in grants]
