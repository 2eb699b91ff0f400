"""The verbs in groups (`config.*`, `keys.*`, `audit.*`) as one caller may use them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from fairlead.broker.broker import Broker
from fairlead.broker.runbooks import check_project
from fairlead.decide.access import covers, may_change, may_grant
from fairlead.errors import Forbidden, InvalidRequest, KeyNotFound
from fairlead.model.access import (
    EVERYTHING,
    AuditRecord,
    Grant,
    KeyInfo,
    KeyRecord,
    NewKey,
    Right,
    read_grants,
)
from fairlead.model.config_keys import WEIGHT
from fairlead.model.durations import Duration, to_ms
from fairlead.model.names import check_queue_name

if TYPE_CHECKING:
    from fairlead.server.guard import GuardedBroker


class GuardedConfig:
    """A weight belongs to its queue; everything else to all, so it takes admin on all."""

    def __init__(self, guard: GuardedBroker, broker: Broker) -> None:
        self._guard = guard
        self._config = broker.config

    def get(self, key: str) -> str:
        self._need(key)
        return self._config.get(key)

    def set(self, key: str, value: str | float) -> None:
        self._need(key)
        with self._guard.writes_down("config.set", key=key):
            self._config.set(key, value)

    def delete(self, key: str) -> None:
        self._need(key)
        with self._guard.writes_down("config.delete", key=key):
            self._config.delete(key)

    def list(self, prefix: str = "") -> dict[str, str]:
        self._guard.grants()
        found = self._config.list(prefix)
        return {key: value for key, value in found.items() if self._guard.may(Right.ADMIN, _queue_of(key))}

    def _need(self, key: object) -> None:
        queue = _queue_of(key)
        if not self._guard.may(Right.ADMIN, queue):
            raise Forbidden(Right.ADMIN, queue)


def _queue_of(key: object) -> str:
    """What a configuration key is about: a queue, or everything."""
    if not isinstance(key, str) or not key.startswith(WEIGHT):
        return EVERYTHING
    try:
        return check_queue_name(key.removeprefix(WEIGHT).partition(":")[0])
    except InvalidRequest:
        return EVERYTHING


class GuardedKeys:
    """A caller hands on only rights of its own, where it is admin, for no longer than it has them itself, and
    sees and changes only keys that lie inside. Any other key is one that is not there.
    """

    def __init__(self, guard: GuardedBroker, broker: Broker) -> None:
        self._guard = guard
        self._keys = broker.keys

    def create(
        self,
        name: str,
        grants: Iterable[Grant | str] = (),
        *,
        expires_in: Duration | None = None,
        expires_at: int | None = None,
    ) -> NewKey:
        wanted = read_grants(grants)
        self._need_admin_somewhere()
        self._need_to_grant(wanted)
        self._need_no_longer(expires_in, expires_at)
        with self._guard.writes_down("keys.create", name=name, grants=_listed(wanted)) as entry:
            made = self._keys.create(
                name, wanted, expires_in=expires_in, expires_at=expires_at, created_by=self._guard.caller.who
            )
            entry.details["key"] = made.info.id
        return made

    def list(self) -> list[KeyInfo]:
        self._guard.grants()
        visible = {record.key_id for record in self._keys.records() if self._sees(record)}
        return [info for info in self._keys.list() if info.id in visible]

    def show(self, key_id: str = "") -> KeyInfo:
        """Without an id the caller's own."""
        own = self._guard.caller.key_id
        if key_id in ("", own) and own is not None:
            self._guard.grants()
            return self._keys.show(own)
        self._find(key_id)
        return self._keys.show(key_id)

    def set_grants(self, key_id: str, grants: Iterable[Grant | str]) -> KeyInfo:
        wanted = read_grants(grants)
        record = self._find(key_id)
        self._need_to_grant(wanted)
        self._need_no_later_end(record, more=set(wanted) - set(record.grants))
        with self._guard.writes_down("keys.set_grants", key=key_id, grants=_listed(wanted)):
            return self._keys.set_grants(key_id, wanted, only_if=self._may_change())

    def change_grants(
        self, key_id: str, *, add: Iterable[Grant | str] = (), remove: Iterable[Grant | str] = ()
    ) -> KeyInfo:
        more, less = read_grants(add), read_grants(remove)
        record = self._find(key_id)
        self._need_to_grant(more)
        self._need_no_later_end(record, more)
        with self._guard.writes_down(
            "keys.change_grants", key=key_id, add=_listed(more), remove=_listed(less)
        ):
            return self._keys.change_grants(key_id, add=more, remove=less, only_if=self._may_change())

    def revoke(self, key_id: str) -> None:
        self._find(key_id)
        with self._guard.writes_down("keys.revoke", key=key_id):
            self._keys.revoke(key_id, only_if=self._may_change())

    def rotate(self, key_id: str, *, keep: Duration | None = None) -> NewKey:
        """Also for the caller's own key, whatever its rights: whoever has a secret may exchange it.

        To keep the old one beside the new takes the rights to change it, or whoever found a secret could make
        a second of it that nobody knows of, and that stays when the first is revoked.
        """
        own, only_if = self._own(), None
        if own is None or key_id != own.key_id:
            # Whoever rotates a key holds its secret.
            self._need_no_later_end(self._find(key_id), more=("its secret",))
            only_if = self._may_change()
        elif keep is not None and not may_change(own, own):
            missing = next((grant for grant in own.grants if not may_grant(own.grants, grant)), None)
            raise Forbidden(Right.ADMIN, EVERYTHING if missing is None else missing.pattern)
        with self._guard.writes_down("keys.rotate", key=key_id) as entry:
            made = self._keys.rotate(key_id, keep=keep, created_by=self._guard.caller.who, only_if=only_if)
            entry.details["new"] = made.info.id
        return made

    def _own(self) -> KeyRecord | None:
        key_id = self._guard.caller.key_id
        return None if key_id is None else self._keys.current(key_id)

    def _sees(self, record: KeyRecord) -> bool:
        own = self._own()
        return own is None or record.key_id == own.key_id or may_change(own, record)

    def _may_change(self) -> Callable[[KeyRecord], bool]:
        own = self._own()
        return lambda record: own is None or may_change(own, record)

    def _find(self, key_id: object) -> KeyRecord:
        may = self._may_change()
        record = next((one for one in self._keys.records() if one.key_id == key_id), None)
        if record is None or not may(record):
            raise KeyNotFound(str(key_id)[:100])
        return record

    def _need_admin_somewhere(self) -> None:
        if not any(grant.right is Right.ADMIN for grant in self._guard.grants()):
            raise Forbidden(Right.ADMIN, EVERYTHING)

    def _need_to_grant(self, wanted: Iterable[Grant]) -> None:
        own = self._guard.grants()
        for grant in wanted:
            if not may_grant(own, grant):
                raise Forbidden(Right.ADMIN if covers(own, grant) else grant.right, grant.pattern)

    def _need_no_longer(self, expires_in: Duration | None, expires_at: int | None) -> None:
        own = self._own()
        if own is None or not own.expires_ms:
            return
        now_ms = self._guard.clock.now_ms()
        ends_ms = (
            expires_at
            if expires_at is not None
            else None
            if expires_in is None
            else now_ms + to_ms(expires_in, "expires_in")
        )
        if not isinstance(ends_ms, int) or ends_ms > own.expires_ms:
            left = f"at most {max(own.expires_ms - now_ms, 0) // 1000}s, when the key that grants ends itself"
            raise InvalidRequest("expires_in", left, expires_in if expires_at is None else expires_at)

    def _need_no_later_end(self, record: KeyRecord, more: Collection[object]) -> None:
        """A key that outlives the caller's must not get anything from it, or its rights would have no end."""
        own = self._own()
        if more and own is not None and own.expires_ms and not 0 < record.expires_ms <= own.expires_ms:
            raise InvalidRequest("key_id", "a key that ends no later than the one that grants", record.key_id)


class GuardedAudit:
    def __init__(self, guard: GuardedBroker, broker: Broker) -> None:
        self._guard = guard
        self._audit = broker.audit

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
        self._guard.need_everywhere(Right.ADMIN)
        return self._audit.read(limit=limit, before=before, who=who, verb=verb, queue=queue, since=since)


class GuardedRunbooks:
    """Saving takes admin on the whole project; reading any right on anything in it, because workers and
    producers read.
    """

    def __init__(self, guard: GuardedBroker, broker: Broker) -> None:
        self._guard = guard
        self._runbooks = broker.runbooks

    def save(self, project: str, text: str) -> None:
        check_project(project)
        own, pattern = self._guard.grants(), _pattern_of(project)
        if not covers(own, Grant(Right.ADMIN, pattern)):
            raise Forbidden(Right.ADMIN, pattern)
        with self._guard.writes_down(
            "runbooks.save", project=project, characters=len(text) if isinstance(text, str) else 0
        ):
            self._runbooks.save(project, text)

    def get(self, project: str) -> str:
        check_project(project)
        if not self._sees(project):
            raise Forbidden("some right", _pattern_of(project))
        return self._runbooks.get(project)

    def list(self) -> dict[str, str]:
        self._guard.grants()
        return {project: text for project, text in self._runbooks.list().items() if self._sees(project)}

    def _sees(self, project: str) -> bool:
        patterns = [grant.pattern for grant in self._guard.grants()]
        return any(pattern == EVERYTHING or pattern.rpartition("/")[0] == project for pattern in patterns)


def _pattern_of(project: str) -> str:
    """All that is in a project. What is in none is not apart from the rest, so it takes everything."""
    return f"{project}/*" if project else EVERYTHING


def _listed(grants: Iterable[Grant]) -> str:
    return " ".join(map(str, grants))
