"""The items of an exchange, and the order in which they take effect."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_BATCH_MESSAGES
from fairlead.model.settle import Complete, Extend, Fail, Release, Settlement, Start

#: The rank of each kind of item in the order of effects.
_ORDER: dict[type, int] = {Extend: 0, Start: 0, Complete: 1, Fail: 2, Release: 3}


def order_of_effects(items: Sequence[Settlement]) -> Sequence[int]:
    """The indexes of the items in the order of their effects: extensions, completions, failures, releases."""
    if len(set(map(type, items))) < 2:
        return range(len(items))
    return sorted(range(len(items)), key=lambda at: _ORDER.get(type(items[at]), 0))


def check_items(items: object) -> list[Settlement]:
    if type(items) is list:
        # The usual case. Testing against the abstract class would cost more than the copy.
        return items.copy()
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise InvalidRequest("items", "a list of Complete, Fail, Release, Extend, Start", type(items))
    return list(items)


def check_item_count(items: Sequence[Settlement]) -> None:
    if len(items) > MAX_BATCH_MESSAGES:
        raise InvalidRequest("items", f"at most {MAX_BATCH_MESSAGES} in one call", f"{len(items)} items")
