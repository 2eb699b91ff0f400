"""A closed throttle key: until a time, no consumer receives its messages."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

#: The longest time for which one message may close its throttle key, and the number of returns after which
#: another return counts as a failure. `throttle:<key>:max_closed` and `throttle:<key>:max_returns` override
#: them.
DEFAULT_MAX_CLOSED_MS = 3_600_000
DEFAULT_MAX_RETURNS = 100
#: Characters of an error that are kept with a closed key.
MAX_CLOSURE_ERROR = 200


class Closure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a throttle key is closed. Times are the store's. The key opens step by step from `until_ms` on.

    `by` is the consumer or operator whose close lasts longest, `queue` the queue of its message ("" for an
    operator). `returns` counts the messages that returned since `since_ms`.
    """

    since_ms: int
    until_ms: int
    by: str
    queue: str
    error: str
    returns: int


@dataclass(frozen=True, slots=True)
class ClosedThrottle:
    """A closed throttle key, with times in epoch milliseconds.

    After `until`, up to `at_once` probes are delivered at a time; before it, `at_once` is 0. `probes` is the
    number of probes in flight.
    """

    key: str
    since: int
    until: int
    by: str
    queue: str
    error: str
    returns: int
    at_once: int
    probes: int
