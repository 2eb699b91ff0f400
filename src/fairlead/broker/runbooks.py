"""Runbooks in force: the text of each project's, kept in the store, so that workers and producers need no
file.

What a runbook says is for workers and the command line; the engine keeps to one thing it says: an external
queue lives elsewhere, and whoever asks the engine for it is told so.
"""

from __future__ import annotations

import logging

from fairlead.broker.core import Core
from fairlead.errors import InvalidRequest, RunbookNotFound
from fairlead.model.checks import check_text
from fairlead.model.facts import RunbookSaved
from fairlead.model.limits import MAX_RUNBOOK_BYTES
from fairlead.model.names import check_project
from fairlead.runbook.model import external_queues
from fairlead.runbook.stored import load_runbook

_log = logging.getLogger("fairlead.runbooks")


def save_runbook(core: Core, project: str, text: str) -> None:
    check_project(project)
    check_text(text, "text", MAX_RUNBOOK_BYTES)
    runbook = load_runbook(text)
    if (runbook.project or "") != project:
        raise InvalidRequest("text", f"the runbook of project {project!r}", runbook.project)
    with core.lock:
        core.check_open()
        core.commit([RunbookSaved(project, text)])
        core.external[project] = external_queues(runbook)
        commit = core.store.last_commit
    core.confirm(commit)


def get_runbook(core: Core, project: str) -> str:
    check_project(project)
    found = list_runbooks(core)
    if project not in found:
        raise RunbookNotFound(project)
    return found[project]


def list_runbooks(core: Core) -> dict[str, str]:
    with core.lock:
        core.check_open()
        return core.store.runbooks()


def load_external(core: Core) -> None:
    """At open. A text that cannot be read, because a later version wrote it, stands in nobody's way."""
    for project, text in core.store.runbooks().items():
        try:
            core.external[project] = external_queues(load_runbook(text))
        except InvalidRequest as unreadable:
            _log.warning("the runbook of project %r cannot be read: %s", project, unreadable)
