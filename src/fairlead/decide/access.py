"""The rules of rights. Every answer depends on the grants and the name alone, never on what exists."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.access import EVERYTHING, Grant, KeyRecord, Right
from fairlead.model.names import DEAD_LETTER_SUFFIX


def matches(pattern: str, queue: str) -> bool:
    """`queue` may be a `.dlq`: it belongs to its queue. A `prefix.*` stays in its own project."""
    return _contains(pattern, queue.removesuffix(DEAD_LETTER_SUFFIX))


def _contains(pattern: str, other: str) -> bool:
    """Is every name that `other` (a name or a pattern) matches also matched by `pattern`?"""
    if pattern in (EVERYTHING, other):
        return True
    if not pattern.endswith("*"):
        return False
    stem = pattern[:-1]
    rest = other.removeprefix(stem)
    return rest != other and rest != "" and (stem.endswith("/") or "/" not in rest)


def allows(grants: Iterable[Grant], right: Right, queue: str) -> bool:
    return any(grant.right is right and matches(grant.pattern, queue) for grant in grants)


def rights_on(grants: Iterable[Grant], queue: str) -> set[Right]:
    return {grant.right for grant in grants if matches(grant.pattern, queue)}


def covers(grants: Iterable[Grant], wanted: Grant) -> bool:
    return any(grant.right is wanted.right and _contains(grant.pattern, wanted.pattern) for grant in grants)


def may_grant(own: Iterable[Grant], wanted: Grant) -> bool:
    """Only what one has oneself, and only where one is admin."""
    own = tuple(own)
    return covers(own, wanted) and covers(own, Grant(Right.ADMIN, wanted.pattern))


def may_change(caller: KeyRecord, key: KeyRecord) -> bool:
    """Only keys that lie wholly inside one's own rights. One without grants lies in everybody's, so it is its
    maker's.
    """
    if not key.grants:
        return key.created_by == caller.key_id or covers(caller.grants, Grant(Right.ADMIN, EVERYTHING))
    return all(may_grant(caller.grants, grant) for grant in key.grants)
