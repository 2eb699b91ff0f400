"""Views of messages without claims: by place, by id, and a whole queue page by page.

The lock is held for one step of a walk at a time. Bodies are read without it: a message that goes meanwhile
is shown as it was met, or left out.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

from fairlead.decide.arguments import check_count
from fairlead.engine.find_ids import find_raw_id
from fairlead.engine.infos import show_all
from fairlead.engine.met import Met, bounded, meet_ids, step
from fairlead.engine.queue import Queue
from fairlead.engine.transaction import StepsTable, Transaction
from fairlead.engine.walk import Where, walk
from fairlead.engine.walk_ids import walk_ids
from fairlead.errors import InvalidRequest, MessageNotFound
from fairlead.model.checks import check_text
from fairlead.model.ids import find_id, show_id
from fairlead.model.limits import MAX_KEY_BYTES, MAX_PAGE, MAX_SPLITS
from fairlead.model.message import record_bytes
from fairlead.model.views import MessageInfo
from fairlead.request import Caller
from fairlead.verbs.browse import Browse, BrowseSplits
from fairlead.verbs.inspect import Find, Peek

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead.engine.engine import Engine

#: Bytes of the bodies in a page of `browse`, which has at least one message.
PAGE_BYTES = 2 * 1024 * 1024
#: Messages that are sampled to find even splits.
_SAMPLED = 1_000_000
_PLACES: tuple[Where, ...] = ("ready", "waiting", "leased", "done")


def peek(engine: Engine, request: Peek, caller: Caller) -> list[MessageInfo]:
    """Show messages. A page may be shorter than `limit`, because all looks share MAX_LOOK_BYTES."""
    check_count(request.limit, "limit", most=MAX_PAGE)
    where = _place(request.where)
    key = None if request.key is None else check_text(request.key, "key", MAX_KEY_BYTES)
    with step(engine) as tx:
        queue_id = tx.queue(request.queue).record.queue_id
    after = None if request.after is None else _full_id(request.after, "after", "a full message id")
    found = list(bounded(walk(engine, queue_id, where, after, key=key), request.limit))
    with engine.looks.look() as look:
        count = look.admit([met.size + record_bytes(met.state) for met in found])
        return show_all(engine, found[:count])


def find(engine: Engine, request: Find, caller: Caller) -> MessageInfo:
    raw_id = find_raw_id(engine, request.message_id, request.queue)
    with engine.transaction() as tx:
        met = meet_ids(tx, [raw_id]).get(raw_id)
    if met is None:
        raise MessageNotFound(request.message_id)
    with engine.looks.look() as look:
        look.admit([met.size + record_bytes(met.state)])
        shown = show_all(engine, [met])
    if not shown:
        raise MessageNotFound(request.message_id)
    return shown[0]


def browse(engine: Engine, request: Browse, caller: Caller) -> list[MessageInfo]:
    """Show all messages by id. An id never changes: a message that exists throughout is shown exactly once,
    wherever it moves.
    """
    check_count(request.limit, "limit", most=MAX_PAGE)
    low = _bound(request.low, "low")
    after = _bound(request.after, "after")
    high = _bound(request.high, "high") or None
    with step(engine) as tx:
        queue_id = _viewed(tx, request.queue, request.view).record.queue_id
    met = chain.from_iterable(walk_ids(engine, queue_id, low, high, after=after))
    while page := _next_page(met, request.limit):
        shown = show_all(engine, page)
        # An empty answer is the end, so a page whose messages are all gone is not returned.
        if shown:
            return shown
    return []


def browse_splits(engine: Engine, request: BrowseSplits, caller: Caller) -> list[tuple[str, str]]:
    """As even as the sampled messages show, and fewer if there are few."""
    check_count(request.n, "n", most=MAX_SPLITS)
    with step(engine) as tx:
        queue_id = _viewed(tx, request.queue, request.view).record.queue_id
    ids = [met.raw_id for met in bounded(walk_ids(engine, queue_id), _SAMPLED)]
    cuts = sorted({ids[at] for part in range(1, request.n) if (at := len(ids) * part // request.n)})
    return [*pairwise(["", *map(show_id, cuts), ""])]


def _next_page(met: Iterator[Met], limit: int) -> list[Met]:
    page: list[Met] = []
    size = 0
    for one in met:
        page.append(one)
        size += one.size
        if len(page) == limit or size >= PAGE_BYTES:
            break
    return page


def _viewed(tx: Transaction, name: str, view: str) -> Queue:
    if view not in ("messages", "dead"):
        raise InvalidRequest("view", '"messages" or "dead"', view)
    queue = tx.queue(name)
    return tx.memory.by_id[queue.record.dlq_id] if view == "dead" and queue.record.dlq_id else queue


def _place(text: object) -> Where:
    for where in _PLACES:
        if where == text:
            return where
    raise InvalidRequest("where", '"ready", "waiting", "leased" or "done"', text)


def _bound(text: str, field: str) -> bytes:
    return b"" if text == "" else _full_id(text, field, "a full message id, or nothing")


def _full_id(text: str, field: str, wanted: str) -> bytes:
    raw_id = find_id(text)
    if raw_id is None:
        raise InvalidRequest(field, wanted, text)
    return raw_id


WORK_IN_STEPS: StepsTable = {
    Peek: peek,
    Find: find,
    Browse: browse,
    BrowseSplits: browse_splits,
}
