"""Reading what names a delivery, and the flags said about it."""

from __future__ import annotations

from fairlead.errors import InvalidRequest
from fairlead.model.delivery import Delivery
from fairlead.model.ids import find_id
from fairlead.model.settle import LeaseRef

_MAX_PROGRESS = (1 << 63) - 1


def read_handle(handle: object) -> tuple[bytes, int]:
    """The raw id and the claim that a `Delivery`, `DeliveryRef` or `LeaseRef` stands for."""
    if isinstance(handle, Delivery):
        return handle.message.id, handle.claim_id
    if isinstance(handle, LeaseRef):
        if type(handle.raw_id) is not bytes or len(handle.raw_id) != 16 or type(handle.claim_id) is not int:
            raise InvalidRequest("delivery", "a LeaseRef of 16 bytes and a whole number", handle)
        return handle.raw_id, handle.claim_id
    raw_id = find_id(getattr(handle, "id", None))
    if raw_id is None:
        raise InvalidRequest("delivery", "a Delivery, or a DeliveryRef with a message id", handle)
    try:
        return raw_id, int(getattr(handle, "lease", ""), 16)
    except (TypeError, ValueError):
        # A token that is none of ours fences like any other stale one.
        return raw_id, -1


def check_progress(progress: object) -> int:
    if isinstance(progress, bool) or not isinstance(progress, int) or not 0 <= progress <= _MAX_PROGRESS:
        raise InvalidRequest("progress", "64 bit flags, 0 or greater", progress)
    return int(progress)
