"""The plan of a claim: messages and buckets for the engine, and a change of state that only the scheduler
reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from fairlead.records.chunk import LaneName
from fairlead.schedule.throttle import Bucket

if TYPE_CHECKING:
    from fairlead.schedule.draft import Draft
    from fairlead.schedule.rounds import Rounds


class ClaimPlan(msgspec.Struct, frozen=True, gc=False):
    """Valid until the scheduler or a bucket changes; `Scheduler.apply` carries it out.

    A plan for fewer messages is the beginning of a plan for more: a caller that finds the messages too large
    plans again with a lower limit.
    """

    #: In the order of delivery.
    numbers: Sequence[int]
    #: Lanes whose next messages are only on disk, and how many of them the claim would take, as far as is
    #: known. While there are any, the plan cannot be carried out: promote them and plan again.
    needs: Mapping[LaneName, int]
    #: The buckets that gave tokens, in their future state.
    buckets: Mapping[str, Bucket]
    change: Draft | Rounds
    version: int
