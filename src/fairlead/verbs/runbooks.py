"""The runbooks in force. Saving needs the right admin on the whole project; reading needs any right on
anything in it, because workers and producers read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.decide.rights import covers
from fairlead.errors import Forbidden
from fairlead.fields import Project
from fairlead.model.access import EVERYTHING, Grant, Right
from fairlead.model.limits import MAX_RUNBOOK_BYTES
from fairlead.model.names import check_project
from fairlead.request import Request, Room, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("runbooks.save")
class RunbooksSave(Request[None], frozen=True):
    """Put a project's runbook into force. `text` is the output of `dump_runbook`; the queues are created and
    changed separately.
    """

    audited = True
    repeatable = True
    room = Room.GROWS
    slow = True

    project: Project
    text: Annotated[
        str, Meta(description="The runbook in its stored form.", min_length=1, max_length=MAX_RUNBOOK_BYTES)
    ]

    def authorize(self, rights: Rights) -> RunbooksSave:
        pattern = _pattern_of(check_project(self.project))
        if not covers(rights.grants(), Grant(Right.ADMIN, pattern)):
            raise Forbidden(Right.ADMIN, pattern)
        return self

    def audit_details(self) -> Mapping[str, object]:
        return {"project": self.project, "characters": len(self.text) if isinstance(self.text, str) else 0}


@verb("runbooks.get")
class RunbooksGet(Request[str], frozen=True):
    """The runbook of a project. Raises `RunbookNotFound`."""

    repeatable = True

    project: Project

    def authorize(self, rights: Rights) -> RunbooksGet:
        if not _sees(rights, check_project(self.project)):
            raise Forbidden("some right", _pattern_of(self.project))
        return self


@verb("runbooks.list")
class RunbooksList(Request[dict[str, str]], frozen=True):
    """The texts of all runbooks by project, sorted by project."""

    repeatable = True

    def visible(self, answer: dict[str, str], rights: Rights) -> dict[str, str]:
        return {project: text for project, text in answer.items() if _sees(rights, project)}


def _sees(rights: Rights, project: str) -> bool:
    patterns = [grant.pattern for grant in rights.grants()]
    return any(pattern == EVERYTHING or pattern.rpartition("/")[0] == project for pattern in patterns)


def _pattern_of(project: str) -> str:
    """The pattern for everything in a project. Queues without a project are not separate from others, so they
    need the pattern for everything.
    """
    return f"{project}/*" if project else EVERYTHING
