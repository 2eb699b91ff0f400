"""The grammar of names: `[project/]name`, and the `.dlq` of each queue."""

from __future__ import annotations

import re
from typing import NamedTuple

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_QUEUE_NAME

DEAD_LETTER_SUFFIX = ".dlq"
#: Suffix of the queue that holds items taken from an external queue, so that no item is taken twice.
TAKEN_SUFFIX = ".taken"

NAME_PART = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
_QUEUE = re.compile(rf"(?:{NAME_PART}/)?{NAME_PART}")
_PROJECT = re.compile(NAME_PART)


class Scoped(NamedTuple):
    """A name that belongs to one queue: of a durable consumer, or the token of a staged write.

    The same name in another queue is another object, so callers without a common right never collide.
    """

    queue: str
    name: str


def check_queue_name(name: object) -> str:
    if not isinstance(name, str) or len(name) > MAX_QUEUE_NAME or not _QUEUE.fullmatch(name):
        expected = f"a queue name: letters, digits, '_', '-', '.', with an optional 'project/' in front, at most {MAX_QUEUE_NAME} characters"
        raise InvalidRequest("queue", expected, name)
    return str.__str__(name)


def check_project(project: object) -> str:
    """The name of a project; "" means no project."""
    is_text = isinstance(project, str) and len(project) <= MAX_QUEUE_NAME
    if not is_text or (project and not _PROJECT.fullmatch(str(project))):
        expected = 'the name of a project: letters, digits, "_", "-", ".", or "" for none'
        raise InvalidRequest("project", expected, project)
    return str(project)


def dead_letter_name(queue: str) -> str:
    return queue + DEAD_LETTER_SUFFIX


def taken_name(external: str) -> str:
    return external + TAKEN_SUFFIX


def is_dead_letter_name(queue: str) -> bool:
    return queue.endswith(DEAD_LETTER_SUFFIX)
