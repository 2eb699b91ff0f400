"""The effect of a message that closes its throttle key: how long the key stays closed, and whether the
message returns without an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.model.config_keys import closing_entries
from fairlead.model.durations import to_ms
from fairlead.model.throttle import DEFAULT_MAX_CLOSED_MS, DEFAULT_MAX_RETURNS, Closure


class ClosingBounds(msgspec.Struct, frozen=True):
    """`max_closed_ms` limits how long one message may close the key. `max_returns` limits how often a message
    returns without an attempt; any further return counts as a failure.
    """

    max_closed_ms: int = DEFAULT_MAX_CLOSED_MS
    max_returns: int = DEFAULT_MAX_RETURNS


def bounds_of(config: Mapping[str, str], throttle_key: str) -> ClosingBounds:
    closed, returns = (config.get(entry) for entry in closing_entries(throttle_key))
    return ClosingBounds(
        DEFAULT_MAX_CLOSED_MS if closed is None else to_ms(closed, "max_closed"),
        DEFAULT_MAX_RETURNS if returns is None else int(returns),
    )


def closed_again(before: Closure | None, new: Closure) -> Closure:
    """The closure of a key that is closed already: the later of both times counts, whoever asked for it."""
    if before is None:
        return new
    later = new if new.until_ms > before.until_ms else before
    return msgspec.structs.replace(later, since_ms=before.since_ms, returns=before.returns + new.returns)
