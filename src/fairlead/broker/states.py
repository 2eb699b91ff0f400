"""What happened to leased messages so far."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker.core import Core
from fairlead.model.lane import Flag
from fairlead.model.lease import Lease
from fairlead.model.message import MessageState


def states_of(core: Core, leases: Sequence[Lease]) -> list[MessageState | None]:
    """Per lease its stored state, one read for all; those that have none are not looked up."""
    touched = [lease.id for lease in leases if lease.row[26] & Flag.STATE]
    if not touched:
        return [None] * len(leases)
    states = dict(zip(touched, core.store.states(touched), strict=True))
    return [states.get(lease.id) for lease in leases]
