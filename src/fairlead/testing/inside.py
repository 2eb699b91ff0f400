"""Parts of today's engine, for the few tests that replace or call one of them.

Every import from here is a debt: another engine has other parts, and such a test is then rewritten. Use
`engine`, `steps`, `storage` and `sizes` where they serve.
"""

from __future__ import annotations

from typing import Any

from fairlead import look_budget
from fairlead.broker import (
    browse,
    consumer_claims,
    consumer_close,
    consumers,
    enqueue,
    exchange,
    intents,
    keys,
    moves,
    publish,
    room,
    runbooks,
    runtime_config,
    scan,
    staging,
    streams,
    timers,
)
from fairlead.broker.broker import Broker
from fairlead.model import answered, facts, shown_times
from fairlead.store.rocks import layout, marks

__all__ = [
    "answered",
    "browse",
    "consumer_claims",
    "consumer_close",
    "consumers",
    "core_of",
    "enqueue",
    "exchange",
    "facts",
    "intents",
    "keys",
    "layout",
    "look_budget",
    "marks",
    "moves",
    "publish",
    "room",
    "runbooks",
    "runtime_config",
    "scan",
    "shown_times",
    "staging",
    "streams",
    "timers",
]


def core_of(broker: Broker) -> Any:
    return broker._core
