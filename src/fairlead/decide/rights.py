"""The rules of rights. Every answer depends only on the grants and the queue name, never on which queues
exist.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.access import EVERYTHING, Grant, KeyRecord, Right
from fairlead.model.names import DEAD_LETTER_SUFFIX


def matches(pattern: str, queue: str) -> bool:
    """Whether the pattern covers the queue. A `.dlq` counts as its queue, and `prefix.*` stays within its own
    project.
    """
    return _contains(pattern, queue.removesuffix(DEAD_LETTER_SUFFIX))


def _contains(pattern: str, other: str) -> bool:
    """Whether `pattern` matches every name that `other`, a name or a pattern, matches."""
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
    """Whether a caller may give this right to a key: only a right that the caller has, on queues that the
    caller administers.
    """
    own = tuple(own)
    return covers(own, wanted) and covers(own, Grant(Right.ADMIN, wanted.pattern))


def may_change(caller: KeyRecord, key: KeyRecord) -> bool:
    """Whether the caller may change the key: only if the caller could grant every right of that key.

    A key without grants would pass this test for everybody, so only its creator may change it.
    """
    if not key.grants:
        return key.created_by == caller.key_id or covers(caller.grants, Grant(Right.ADMIN, EVERYTHING))
    return all(may_grant(caller.grants, grant) for grant in key.grants)
