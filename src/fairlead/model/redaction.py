"""What nobody gets to see where people look at messages: headers by name, and values in JSON by path.

A path is `$` and then any of `.name` (a member of an object) and `[*]` (every element of a list); right after
`$` also `..name` (a member of that name at any depth). A name has none of `. [ ] * $ , ' "` and no blanks.
`$` alone is the whole, JSON or not.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fairlead.errors import InvalidRequest

REDACTED = "[redacted]"
DEFAULT_HEADERS = ("authorization", "cookie", "proxy-authorization", "set-cookie", "x-api-key")
#: What can be redacted at all: names and paths come from whoever runs a server, and are asked about every
#: message shown.
MOST_NAMES = 100
_MOST_CHARACTERS = 200

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
    if not isinstance(given, str) or not given.startswith("$") or len(given) > _MOST_CHARACTERS:
        raise InvalidRequest("redact.json_paths", _EXPECTED, given)
    steps: list[Step] = []
    at = 1
    while at < len(given):
        found = _STEP.match(given, at)
        if found is None or (found["below"] and steps):
            raise InvalidRequest("redact.json_paths", _EXPECTED, given)
        below, member = found["below"], found["member"]
        steps.append(Below(below) if below else Member(member) if member else Each())
        at = found.end()
    return tuple(steps)


def read_header_name(given: object) -> str:
    """In lower case. A `*` at the end stands for any ending."""
    if (
        not isinstance(given, str)
        or not 0 < len(given) <= _MOST_CHARACTERS
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
