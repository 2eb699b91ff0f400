"""Redrive of dead letters, and the running long operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from fairlead.fields import DryRun, Filter, Ids, QueueName
from fairlead.model.access import EVERYTHING, Right
from fairlead.model.intent import Intent
from fairlead.model.limits import MAX_REDRIVE_COUNT, MAX_REDRIVE_RATE
from fairlead.model.views import RedriveResult
from fairlead.request import Request, Room, verb
from fairlead.verbs.operate import Operation

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("redrive")
class Redrive(Operation[RedriveResult], frozen=True):
    """Return dead letters to their queue, the longest dead first, each in a new life without attempts.

    A dry run counts exactly the messages that would return. With `rate` (messages a second) the redrive
    continues in the background, also after a restart.
    """

    right = Right.REDRIVE
    room = Room.WEIGHS

    queue: QueueName
    ids: Ids = None
    filter: Filter = None
    count: Annotated[
        int | None, Meta(description="At most so many, the longest dead first.", ge=1, le=MAX_REDRIVE_COUNT)
    ] = None
    dry_run: DryRun = False
    rate: Annotated[
        float | None, Meta(description="So many a second, in the background.", gt=0, le=MAX_REDRIVE_RATE)
    ] = None
    clear_progress: Annotated[bool, Meta(description="Forget which steps were already done.")] = False


@verb("intents")
class Intents(Request[list[Intent]], frozen=True):
    """The running long operations."""

    repeatable = True

    def visible(self, answer: list[Intent], rights: Rights) -> list[Intent]:
        everything = rights.sees_everything()
        names = rights.queue_names([intent.queue_id for intent in answer])
        return [
            intent if rights.may(Right.READ_PAYLOAD, name or EVERYTHING) else _without_header(intent)
            for intent, name in zip(answer, names, strict=True)
            if everything or (name and rights.sees(name))
        ]


@verb("cancel_intent")
class CancelIntent(Request[bool], frozen=True):
    """Stop a running redrive. Returns False if there is none with that id."""

    audited = True
    room = Room.FITS

    intent_id: Annotated[int, Meta(description="The number that the list of intents shows.")]

    def authorize(self, rights: Rights) -> CancelIntent:
        """For a caller who may not see the operation, the answer is the same as if it did not exist."""
        if type(self.intent_id) is not int:
            # The engine refuses it.
            return self
        queue = rights.queue_of_intent(self.intent_id)
        if queue is None:
            return msgspec.structs.replace(self, intent_id=-1)
        rights.need_pattern(Right.REDRIVE, queue)
        return _CancelFoundIntent(self.intent_id, queue)

    def is_audited(self) -> bool:
        return False

    def audit_details(self) -> Mapping[str, object]:
        return {"intent": self.intent_id}


class _CancelFoundIntent(CancelIntent, frozen=True):
    """Carries the operation's queue from the check of the right to the audit: the operation may end in
    between, and its queue cannot be looked up again.
    """

    queue_field = "queue"

    queue: str

    def is_audited(self) -> bool:
        return True


def _without_header(intent: Intent) -> Intent:
    """Hide the header value that a redrive selects by, because the caller who wrote it had the right to read."""
    header = intent.filter.get("header")
    if not isinstance(header, (list, tuple)) or not header:
        return intent
    return msgspec.structs.replace(intent, filter=intent.filter | {"header": [header[0], ""]})
