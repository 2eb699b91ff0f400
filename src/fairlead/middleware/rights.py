"""The rights of one caller. `authorize` asks the verb (`request.py`), the verb asks this module, and this
module asks `decide/rights.py`.

Checks read only the caller's grants and the names in the request, so that a refusal does not reveal whether a
queue exists. Messages of other callers' queues are answered as if they did not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.decide.rights import rights_on
from fairlead.errors import Forbidden, InvalidRequest
from fairlead.model.access import EVERY_RIGHT, EVERYTHING, Grant, KeyRecord, Right
from fairlead.model.checks import check_text
from fairlead.model.delivery import Delivery
from fairlead.model.handles import read_handle
from fairlead.model.ids import find_id, show_id
from fairlead.model.limits import MAX_CLAIM_TOKEN_BYTES, MAX_CONSUMER_BYTES
from fairlead.model.names import check_queue_name
from fairlead.model.settle import LeaseRef, Release, SettleResult
from fairlead.model.views import MessageInfo
from fairlead.request import Caller

if TYPE_CHECKING:
    from fairlead.engine.broker import Broker

#: Replaces the id of a message that the caller may not see: no message has it.
_NOBODY = bytes(16)


class Rights:
    def __init__(self, broker: Broker, caller: Caller) -> None:
        self._broker = broker
        self._caller = caller

    def own_key(self) -> KeyRecord | None:
        """The caller's current key. Raises `Unauthenticated` once it was revoked or has expired."""
        key_id = self._caller.key_id
        return None if key_id is None else self._broker.key_ring.current(key_id)

    def grants(self) -> Sequence[Grant]:
        own = self.own_key()
        return EVERY_RIGHT if own is None else own.grants

    def may(self, right: Right, queue: str) -> bool:
        key_id = self._caller.key_id
        return key_id is None or self._broker.key_ring.allows(key_id, right, queue)

    def sees(self, queue: str) -> bool:
        """Whether the caller has any right on the queue."""
        return bool(rights_on(self.grants(), queue))

    def sees_everything(self) -> bool:
        return any(grant.pattern == EVERYTHING for grant in self.grants())

    # Checks, which raise Forbidden

    def need(self, right: Right, queue: object) -> None:
        # An invalid name may match a pattern; the engine refuses it.
        if type(queue) is str and self.may(right, queue):
            return
        if not self.may(right, check_queue_name(queue)):
            raise Forbidden(right, str(queue))

    def need_pattern(self, right: Right, pattern: str) -> None:
        """`pattern` may be `*`: the right on all queues."""
        if not self.may(right, pattern):
            raise Forbidden(right, pattern)

    def need_some(self, queue: object) -> None:
        if not self.sees(check_queue_name(queue)):
            raise Forbidden("some right", str(queue))

    def need_everywhere(self, right: Right | None = None) -> None:
        """Need the right on all queues that exist or may exist; None: any right."""
        if not any(grant.pattern == EVERYTHING and right in (None, grant.right) for grant in self.grants()):
            raise Forbidden(right or "some right", EVERYTHING)

    def need_for_filter(self, given: object, queue: object) -> None:
        """A filter by header needs the right to read: otherwise a caller could guess values one by one."""
        if getattr(given, "header", None) is not None:
            self.need(Right.READ_PAYLOAD, queue)

    # Names that no other key can say

    def scoped_consumer(self, consumer: str) -> str:
        return self._scoped(consumer, "consumer", MAX_CONSUMER_BYTES, may_be_empty=True)

    def scoped_token(self, token: str | None) -> str | None:
        return None if token is None else self._scoped(token, "token", MAX_CLAIM_TOKEN_BYTES)

    def _scoped(self, name: str, field: str, max_bytes: int, *, may_be_empty: bool = False) -> str:
        """The key's id and the name. If both are too long together, a hash replaces the end."""
        key_id = self._caller.key_id
        if key_id is None:
            return name
        if not name and may_be_empty and type(name) is str:
            return f"{key_id}/"
        text = f"{key_id}/{check_text(name, field, max_bytes, may_be_empty=may_be_empty)}"
        if len(text) <= max_bytes and text.isascii():
            return text
        scoped = text.encode()
        if len(scoped) > max_bytes:
            end = sha256(scoped).hexdigest().encode()
            scoped = scoped[: max_bytes - len(end)] + end
        return scoped.decode(errors="ignore")

    # Messages

    def visible_id(self, message_id: str, queue: str | None) -> str:
        """The id that `message_id` means among the queues that the caller sees."""
        if queue is not None:
            self.need_some(queue)
        if self.sees_everything():
            return message_id
        return self._broker.full_id(message_id, queue, self.sees)

    def visible_place(self, after: str | None) -> str | None:
        """`after` itself, or the id of no message if it names one that the caller does not see."""
        raw_id = None if after is None else find_id(after)
        if raw_id is None or self.sees_everything():
            return after
        name = self._broker.queues_of([raw_id])[0]
        return after if name is not None and self.sees(name) else show_id(_NOBODY)

    def own_items(self, items: Any) -> Any:
        """Replaces deliveries that the caller may not consume with a null handle, so they answer `not_found`.

        The engine refuses values that are not a list.
        """
        is_listed = type(items) is list or (
            isinstance(items, Sequence) and not isinstance(items, (str, bytes))
        )
        if not is_listed or self._consumes_everything():
            return items
        ids = [_id_of(item) for item in items]
        known_ids = [raw_id for raw_id in ids if raw_id is not None]
        leased_in = self._broker.queues_of_leases(known_ids)
        if leased_in and all(self.may(Right.CONSUME, name) for name in leased_in):
            return items
        places = iter(self._broker.queues_of(known_ids))
        names = [next(places) if raw_id is not None else None for raw_id in ids]
        may = {name: self.may(Right.CONSUME, name) for name in set(names) if name is not None}
        if all(may.values()):
            return items
        return [
            item if name is None or may[name] else msgspec.structs.replace(item, delivery=_NO_DELIVERY)
            for item, name in zip(items, names, strict=True)
        ]

    def with_given_ids(self, items: Sequence[Any], results: Sequence[SettleResult]) -> list[SettleResult]:
        """Each result with the id that the caller asked about."""
        if _NOBODY not in [result.raw_id for result in results]:
            return results if type(results) is list else [*results]
        return [
            result
            if result.raw_id != _NOBODY
            else msgspec.structs.replace(result, raw_id=_id_of(item) or _NOBODY)
            for item, result in zip(items, results, strict=False)
        ]

    def still_own(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Without deliveries of queues that the caller may no longer consume; those return to their places."""
        if len(deliveries) == 1 and self.may(Right.CONSUME, deliveries[0].queue):
            return [*deliveries]
        allowed = {queue: self.may(Right.CONSUME, queue) for queue in {one.queue for one in deliveries}}
        if all(allowed.values()):
            return [*deliveries]
        self.release([one for one in deliveries if not allowed[one.queue]])
        return [one for one in deliveries if allowed[one.queue]]

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that the caller never received. Its key may have ended, so no right is needed."""
        self._broker.settle([Release(delivery, keep_order=True) for delivery in deliveries])

    def readable(self, infos: Sequence[MessageInfo]) -> dict[str, bool]:
        """For each queue of these messages, whether the caller may read their contents."""
        return {queue: self.may(Right.READ_PAYLOAD, queue) for queue in {info.queue for info in infos}}

    def readable_parts(self, infos: Sequence[MessageInfo]) -> list[MessageInfo]:
        readable = self.readable(infos)
        return [info if readable[info.queue] else _hide(info) for info in infos]

    # What verbs must know of the engine before they run

    def now_ms(self) -> int:
        return self._broker.clock.now_ms()

    def queue_names(self, queue_ids: Sequence[int]) -> list[str | None]:
        return self._broker.queue_names(queue_ids)

    def queue_of_intent(self, intent_id: int) -> str | None:
        """The queue of a long operation that the caller sees, `*` for one being deleted, or None."""
        from fairlead.verbs.dead_letters import Intents

        request = Intents()
        for intent in request.visible(self._broker.do(request), self):
            if intent.intent_id == intent_id:
                return self._broker.queue_names([intent.queue_id])[0] or EVERYTHING
        return None

    def all_keys(self) -> Sequence[KeyRecord]:
        return self._broker.key_ring.records()

    def find_key(self, key_id: object) -> KeyRecord | None:
        return self._broker.key_ring.find(key_id)

    def kinds_of_write(self, token: str, queue: str) -> set[bool]:
        """Whether a staged write has dead letters (True) and other messages (False)."""
        return self._broker.kinds_of_write(token, queue)

    def _consumes_everything(self) -> bool:
        return self.may(Right.CONSUME, EVERYTHING)


_NO_DELIVERY = LeaseRef(_NOBODY, -1)


def _id_of(item: object) -> bytes | None:
    try:
        return read_handle(getattr(item, "delivery", None))[0]
    except InvalidRequest:
        return None


def _hide(info: MessageInfo) -> MessageInfo:
    """Metadata only: the headers without their values."""
    hidden = ("payload", "headers", "carry", *(["errors"] if "errors" in info.hidden else []))
    return replace(info, payload=b"", headers=dict.fromkeys(info.headers, ""), carry=b"", hidden=hidden)
