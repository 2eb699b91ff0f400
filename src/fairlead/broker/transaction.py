"""What a verb runs in."""

from __future__ import annotations

import msgspec

from fairlead.broker.core import Core
from fairlead.decide.access import rights_on
from fairlead.model.access import KeyRecord
from fairlead.request import Caller


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """One request at work: the engine it runs on, and who asks."""

    core: Core
    caller: Caller

    def sees(self, queue: str) -> bool:
        """Whether the caller has any right on the queue."""
        own = self.own_key()
        return own is None or bool(rights_on(own.grants, queue))

    def own_key(self) -> KeyRecord | None:
        """The caller's key as it is now; None for a caller without one, who may do everything."""
        key_id = self.caller.key_id
        return None if key_id is None else self.core.keys.current(key_id)
