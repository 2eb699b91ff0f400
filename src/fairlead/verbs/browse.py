"""Reading a whole queue, page by page, without claiming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from fairlead.fields import PageLimit, QueueName, View
from fairlead.model.limits import MAX_SPLITS
from fairlead.model.views import MessageInfo
from fairlead.request import Request, verb

if TYPE_CHECKING:
    from fairlead.middleware.rights import Rights


@verb("browse")
class Browse(Request[list[MessageInfo]], frozen=True):
    """Read all messages of a queue without claiming them, page by page in the order of ids: from `low` on,
    before `high`, after `after`.

    `view="dead"` reads its dead letters. A page may be shorter than `limit`; an empty page is the end. A
    message that exists throughout is returned exactly once, whatever happens to it meanwhile.
    """

    repeatable = True
    shows_messages = True
    slow = True

    queue: QueueName
    view: View = "messages"
    low: Annotated[str, Meta(description="The first id; empty: no bound.")] = ""
    high: Annotated[str, Meta(description="The id behind the last; empty: no bound.")] = ""
    limit: PageLimit = 1000
    after: Annotated[
        str, Meta(description="The id of the last message of the page before; empty: from the start.")
    ] = ""

    def visible(self, answer: list[MessageInfo], rights: Rights) -> list[MessageInfo]:
        return rights.readable_parts(answer)


@verb("browse_splits")
class BrowseSplits(Request[list[tuple[str, str]]], frozen=True):
    """Up to `n` ranges (low, high) for `browse`, of about equal size, that together cover the queue; "" means
    no bound.
    """

    repeatable = True
    slow = True

    queue: QueueName
    view: View = "messages"
    n: Annotated[int, Meta(description="How many ranges at most.", ge=1, le=MAX_SPLITS)] = 1
