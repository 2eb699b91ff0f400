"""Runbooks in force: the text of each project's, kept in the store, so that workers and producers need no
file.

What a runbook says is for workers and the command line; the engine keeps to one thing it says: an external
queue lives elsewhere, and whoever asks the engine for it is told so.
"""

from __future__ import annotations

import logging
import re

from fairlead.broker.core import Core
from fairlead.errors import InvalidRequest, RunbookNotFound
from fairlead.model.checks import check_text
from fairlead.model.facts import RunbookSaved
from fairlead.model.limits import MAX_QUEUE_NAME, MAX_RUNBOOK_BYTES
from fairlead.model.names import NAME_PART
from fairlead.runbook.model import Runbook, full_name
from fairlead.runbook.stored import load_runbook

_PROJECT = re.compile(NAME_PART)

_log = logging.getLogger("fairlead.runbooks")


class Runbooks:
    """`broker.runbooks`. A project is text; "" is the runbook of no project."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def save(self, project: str, text: str) -> None:
        """From now on this is in force. `text` is what `dump_runbook` makes; its queues are made and changed
        by others.
        """
        check_project(project)
        check_text(text, "text", MAX_RUNBOOK_BYTES)
        runbook = load_runbook(text)
        if (runbook.project or "") != project:
            raise InvalidRequest("text", f"the runbook of project {project!r}", runbook.project)
        core = self._core
        with core.lock:
            core.check_open()
            core.commit([RunbookSaved(project, text)])
            core.external[project] = external_queues(runbook)
            commit = core.store.last_commit
        core.confirm(commit)

    def get(self, project: str) -> str:
        """Raises `RunbookNotFound`."""
        check_project(project)
        found = self.list()
        if project not in found:
            raise RunbookNotFound(project)
        return found[project]

    def list(self) -> dict[str, str]:
        """Texts by project, in order of the projects."""
        with self._core.lock:
            self._core.check_open()
            return self._core.store.runbooks()


def load_external(core: Core) -> None:
    """At open. A text that cannot be read, because a later version wrote it, stands in nobody's way."""
    for project, text in core.store.runbooks().items():
        try:
            core.external[project] = external_queues(load_runbook(text))
        except InvalidRequest as unreadable:
            _log.warning("the runbook of project %r cannot be read: %s", project, unreadable)


def external_queues(runbook: Runbook) -> frozenset[str]:
    return frozenset(
        full_name(runbook.project, queue.name)
        for queue in runbook.queues.values()
        if queue.kind == "external"
    )


def check_project(project: object) -> None:
    if (
        not isinstance(project, str)
        or len(project) > MAX_QUEUE_NAME
        or (project and not _PROJECT.fullmatch(project))
    ):
        raise InvalidRequest(
            "project", 'the name of a project: letters, digits, "_", "-", ".", or "" for none', project
        )
