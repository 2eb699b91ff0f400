"""`queue push` for queues of a runbook in force: what is typed becomes an item of that queue."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.cli.target import Target
from fairlead.errors import ExternalQueue, Forbidden, InvalidRequest, RunbookNotFound
from fairlead.model.names import taken_name
from fairlead.runbook.items import QueueItem, make_item, read_variables
from fairlead.runbook.model import QueueSpec
from fairlead.runbook.stored import load_runbook


def find_spec(target: Target, queue: str) -> QueueSpec | None:
    """What the runbook in force says of a queue; None when there is none, or it says nothing. Raises
    `ExternalQueue`.
    """
    project, _, name = queue.rpartition("/")
    try:
        spec = load_runbook(target.runbooks.get(project)).queues.get(name)
    except (RunbookNotFound, Forbidden, InvalidRequest):
        # Whether the queue may be used, and whether its name is one, is for the engine to say.
        return None
    if spec is not None and spec.kind == "external":
        raise ExternalQueue(queue, taken_name(queue))
    return spec


def item_of(spec: QueueSpec, queue: str, data: bytes | None, variables: Sequence[str]) -> QueueItem:
    return make_item(spec, queue, data, read_variables(queue, variables))
