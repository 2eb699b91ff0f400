"""The message that a text names: a full id, the beginning of an id, or within a queue its last characters, or
the first message of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairlead.engine.infos import names_of
from fairlead.engine.met import STEP_MESSAGES, Met, bounded, meet, meet_ids, step
from fairlead.engine.walk_ids import walk_ids
from fairlead.errors import AmbiguousId, InvalidRequest, MessageNotFound
from fairlead.model.checks import check_text
from fairlead.model.ids import find_id, show_id
from fairlead.model.limits import MAX_KEY_BYTES, SCAN_LIMIT

if TYPE_CHECKING:
    from fairlead.engine.engine import Engine

#: The number of listed matches of an ambiguous id.
_MAX_MATCHES = 5
#: An id with this prefix names the first live message of a stream.
_STREAM = "stream:"
_HEX = frozenset("0123456789abcdef-")
_ID_BYTES = 16

IsVisible = Callable[[str], bool]


def find_raw_id(engine: Engine, text: str, queue_name: str | None) -> bytes:
    """Raises `MessageNotFound` and `AmbiguousId`. A full id need not belong to a message."""
    if _is_stream(text):
        return _first_of_stream(engine, text, queue_name)
    raw_id = find_id(text)
    return _search(engine, text, queue_name, _all_visible) if raw_id is None else raw_id


def full_id(engine: Engine, text: str, queue_name: str | None, is_visible: IsVisible) -> str:
    """The result of `find` among the messages of visible queues, as if there were no others."""
    raw_id = _first_of_stream(engine, text, queue_name) if _is_stream(text) else find_id(text)
    if raw_id is None:
        return show_id(_search(engine, text, queue_name, is_visible))
    (name,) = queues_of(engine, [raw_id])
    if name is None or not is_visible(name):
        raise MessageNotFound(text)
    return show_id(raw_id)


def queues_of_leases(engine: Engine, raw_ids: Sequence[bytes]) -> set[str]:
    """The queues of these messages if all of them are leased, as those of a settle usually are; empty
    otherwise, and for very many. It takes a fraction of the time of `queues_of`, because memory has every
    lease.
    """
    if len(raw_ids) > STEP_MESSAGES:
        return set()
    found: set[int] = set()
    with engine.lock:
        memory = engine.memory
        for raw_id in raw_ids:
            held = memory.find_lease(raw_id)
            if held is None:
                return set()
            found.add(held[1].terms.queue_id)
        queues = [memory.by_id.get(queue_id) for queue_id in found]
    # None: the queue is being deleted.
    return set() if None in queues else {queue.name for queue in queues if queue is not None}


def queues_of(engine: Engine, raw_ids: Sequence[bytes]) -> list[str | None]:
    """The queue that each message is in now; None if there is no such message."""
    name_of = names_of(engine)
    found: list[str | None] = []
    for start in range(0, len(raw_ids), STEP_MESSAGES):
        some = raw_ids[start : start + STEP_MESSAGES]
        # Also while the server is stopping, because a settle needs it.
        with engine.transaction() as tx:
            met = meet_ids(tx, some)
        found += [name_of(met[raw_id].state.queue_id) if raw_id in met else None for raw_id in some]
    return found


def _is_stream(text: object) -> bool:
    return isinstance(text, str) and text.startswith(_STREAM)


def _first_of_stream(engine: Engine, text: str, queue_name: str | None) -> bytes:
    """The first live message of a stream, which the others wait for."""
    if queue_name is None:
        raise InvalidRequest("id", f"given with a queue when it begins with {_STREAM}", text)
    name = check_text(text.removeprefix(_STREAM), "stream", MAX_KEY_BYTES)
    with step(engine) as tx:
        stream = tx.queue(queue_name).streams.find(name)
        found = [] if stream is None else meet(tx, stream.numbers[:1])
    if not found:
        raise MessageNotFound(text)
    return found[0].raw_id


def _all_visible(name: str) -> bool:
    return True


def _search(engine: Engine, text: str, queue_name: str | None, is_visible: IsVisible) -> bytes:
    digits = _digits(text)
    matches = _by_beginning(engine, digits, is_visible)
    if queue_name is not None:
        matches += _by_end(engine, queue_name, digits, is_visible)
    found = list(dict.fromkeys(matches))
    if not found:
        raise MessageNotFound(text)
    if len(found) > 1:
        raise AmbiguousId(text, [show_id(match) for match in found[:_MAX_MATCHES]])
    return found[0]


def _digits(text: object) -> str:
    if not isinstance(text, str) or len(text) < 4 or not _HEX.issuperset(text.lower()):
        raise InvalidRequest("id", "a message id, at least its first or last 4 characters", text)
    return text.lower().replace("-", "")


def _by_beginning(engine: Engine, digits: str, is_visible: IsVisible) -> list[bytes]:
    """The first matches in the order of ids. Visits no more than SCAN_LIMIT messages of each queue."""
    with step(engine) as tx:
        queues = [(queue.record.queue_id, queue.name) for queue in tx.memory.by_id.values()]
    low = bytes.fromhex(digits.ljust(2 * _ID_BYTES, "0")[: 2 * _ID_BYTES])
    high = bytes.fromhex(digits.ljust(2 * _ID_BYTES, "f")[: 2 * _ID_BYTES])
    matches: list[bytes] = []
    for queue_id, name in queues:
        if is_visible(name):
            matches += _between(engine, queue_id, low, high)
    return sorted(matches)[:_MAX_MATCHES]


def _between(engine: Engine, queue_id: int, low: bytes, high: bytes) -> list[bytes]:
    """First by the first halves of ids, which are in the order of the walk; then exactly."""
    pages = walk_ids(engine, queue_id, low[:8], _behind(high[:8]))
    found = []
    for met in bounded(pages, SCAN_LIMIT):
        if low <= met.raw_id <= high:
            found.append(met.raw_id)
        if len(found) == _MAX_MATCHES:
            break
    return found


def _behind(prefix: bytes) -> bytes | None:
    """The next first half of an id after that one; None if there is none."""
    following = int.from_bytes(prefix, "big") + 1
    return following.to_bytes(8, "big") if following < 1 << 64 else None


def _by_end(engine: Engine, queue_name: str, digits: str, is_visible: IsVisible) -> list[bytes]:
    with step(engine) as tx:
        queue_id = tx.queue(queue_name).record.queue_id
    if not is_visible(queue_name):
        return []

    def matches(met: Met) -> bool:
        return met.raw_id.hex().endswith(digits)

    return [met.raw_id for met in bounded(walk_ids(engine, queue_id), SCAN_LIMIT) if matches(met)]
