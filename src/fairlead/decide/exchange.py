"""Requests under an id: which ids are taken, what is kept of an answer, and when the parts of an exchange take
effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import InvalidRequest, RequestExpired
from fairlead.model.answered import Kept
from fairlead.model.ids import find_id, id_time_ms, show_id
from fairlead.model.limits import MAX_ANSWERED, MAX_BATCH_MESSAGES, MAX_REQUEST_AGE_MS
from fairlead.model.settle import Complete, Extend, Fail, Release, Settlement, SettleResult, Start

#: An answer is kept for twice as long as its request may be repeated: an id may be from ahead by as much as it
#: may be old.
REQUEST_KEPT_MS = 2 * MAX_REQUEST_AGE_MS

#: When each kind of item takes effect.
_ORDER: dict[type, int] = {Extend: 0, Start: 0, Complete: 1, Fail: 2, Release: 3}


def keep(settled: Sequence[SettleResult], ids: list[bytes]) -> Kept:
    return Kept([result.raw_id if result.outcome == "completed" else result for result in settled], ids)


def read_kept(kept: Kept, request_id: bytes, *, items: int, messages: int) -> list[SettleResult]:
    """The results of the items. Refuses an id that another request had, with so many other parts."""
    if len(kept.settled) != items or len(kept.ids) != messages:
        raise request_id_taken(request_id, "this one belongs to another request")
    return [
        SettleResult(result, "completed") if isinstance(result, bytes) else result for result in kept.settled
    ]


def request_id_taken(request_id: bytes, why: str) -> InvalidRequest:
    return InvalidRequest("request_id", f"a new one, because {why}", show_id(request_id))


def order_of_effects(items: Sequence[Settlement]) -> Sequence[int]:
    """Indexes of the items: extends, completes, fails, releases take effect in this order."""
    if len(set(map(type, items))) < 2:
        return range(len(items))
    return sorted(range(len(items)), key=lambda at: _ORDER.get(type(items[at]), 0))


def check_items(items: object) -> list[Settlement]:
    if type(items) is list:
        # Nearly always: asking the abstract class costs more than the copy.
        return items.copy()
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise InvalidRequest("items", "a list of Complete, Fail, Release, Extend, Start", type(items))
    return list(items)


def check_item_count(items: Sequence[Settlement]) -> None:
    if len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(items)} items")


def check_request_id(request_id: str | None, wall_ms: int) -> bytes | None:
    """By the wall clock: the id carries that of another machine."""
    if request_id is None:
        return None
    raw_id = find_id(request_id)
    if raw_id is None or raw_id[6] >> 4 != 7:
        raise InvalidRequest("request_id", "a UUIDv7", request_id)
    age_ms = wall_ms - id_time_ms(raw_id)
    if not -MAX_REQUEST_AGE_MS <= age_ms <= MAX_REQUEST_AGE_MS:
        raise RequestExpired(str(request_id), age_ms)
    return raw_id


def check_answered(answered: Sequence[str], request_id: bytes | None) -> list[bytes]:
    is_list = isinstance(answered, Sequence) and not isinstance(answered, (str, bytes))
    if not is_list or len(answered) > MAX_ANSWERED:
        raise InvalidRequest("answered", f"a list of at most {MAX_ANSWERED} request ids", answered)
    received: dict[bytes, None] = {}
    for name in answered:
        raw_id = find_id(name)
        if raw_id is None or raw_id[6] >> 4 != 7 or raw_id == request_id:
            raise InvalidRequest("answered", "UUIDv7 ids of other requests than this one", name)
        received[raw_id] = None
    return list(received)
