"""The parts of messages that are hidden from people: headers by name, and values in JSON payloads by path.

A path is `$`, followed by any of `.name` (a member of an object) and `[*]` (every element of a list);
directly after `$` also `..name` (a member of that name at any depth). A name contains none of `. [ ] * $ , '
"` and no blanks. `$` alone is the whole payload, JSON or not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fairlead.errors import InvalidRequest

REDACTED = "[redacted]"
DEFAULT_HEADERS = ("authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key")
#: Names and paths that may be redacted. The operator of the server sets them, and each is tested on every
#: message shown.
MAX_NAMES = 100
_MAX_CHARACTERS = 200

_NAME = r"""[^.\[\]*$,'"\s]+"""
_STEP = re.compile(rf"\.\.(?P<below>{_NAME})|\.(?P<member>{_NAME})|(?P<each>\[\*\])")
_EXPECTED = "a path such as $.card.number, $.items[*].iban, $..password, or $ for the whole payload"


class Member(NamedTuple):
    name: str


class Below(NamedTuple):
    """A member of that name at any depth."""

    name: str


class Each(NamedTuple):
    """Every element of a list."""


Step = Member | Below | Each


def read_json_path(given: object) -> tuple[Step, ...]:
    if not isinstance(given, str) or not given.startswith("$") or len(given) > _MAX_CHARACTERS:
        raise InvalidRequest("redact.json_paths", _EXPECTED, given)
    steps: list[Step] = []
    at = 1
    while at < len(given):
        found = _STEP.match(given, at)
        if found is None or (found["below"] and steps):
            raise InvalidRequest("redact.json_paths", _EXPECTED, given)
        below, member = found["below"], found["member"]
        if below:
            steps.append(Below(below))
        else:
            steps.append(Member(member) if member else Each())
        at = found.end()
    return tuple(steps)


def read_header_name(given: object) -> str:
    """The name in lower case. A `*` at the end stands for any ending."""
    if (
        not isinstance(given, str)
        or not 0 < len(given) <= _MAX_CHARACTERS
        or "*" in given[:-1]
        or "," in given
        or given != given.strip()
    ):
        raise InvalidRequest(
            "redact.headers",
            "the name of a header, such as authorization, or its beginning, such as x-secret-*",
            given,
        )
    return given.lower()
