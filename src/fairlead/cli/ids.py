"""Short ids: commands accept the ids that lists show."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.cli.target import Target
from fairlead.errors import AmbiguousId, InvalidRequest, MessageNotFound
from fairlead.model.ids import find_id
from fairlead.model.names import dead_letter_name, is_dead_letter_name
from fairlead.model.views import MessageInfo


def find_message(target: Target, queue: str, given: str) -> MessageInfo:
    """Find a message by full id, prefix, or last characters in the queue or its dead-letter queue.

    Raises `MessageNotFound` and `AmbiguousId`.
    """
    if find_id(given) is not None:
        return target.find(given)
    found: dict[str, MessageInfo] = {}
    for name in (queue,) if is_dead_letter_name(queue) else (queue, dead_letter_name(queue)):
        try:
            info = target.find(given, name)
        except MessageNotFound:
            continue
        found[info.id] = info
    if not found:
        raise MessageNotFound(given)
    if len(found) > 1:
        raise AmbiguousId(given, sorted(found))
    return next(iter(found.values()))


def full_ids(target: Target, queue: str, given: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the full ids, and (given id, why) for each id that fits no message or several.

    One wrong id does not stop the others.
    """
    ids: list[str] = []
    unclear: list[tuple[str, str]] = []
    for text in given:
        try:
            ids.append(text if find_id(text) is not None else find_message(target, queue, text).id)
        except MessageNotFound:
            unclear.append((text, "not found in this queue"))
        except AmbiguousId as ambiguous:
            unclear.append((text, f"fits {len(ambiguous.matches)} messages or more; give more characters"))
        except InvalidRequest as wrong:
            unclear.append((text, wrong.message))
    return list(dict.fromkeys(ids)), unclear
