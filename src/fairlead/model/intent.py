"""The stored state of a purge, a deletion or a redrive that takes several transactions."""

from __future__ import annotations

from typing import Literal

import msgspec


class Intent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A long operation in durable, bounded steps.

    `cutoff` freezes the selection: the operation changes only messages with a place up to it. `cursor` is the
    position that it has reached.
    """

    intent_id: int
    kind: Literal["purge", "delete", "redrive"]
    queue_id: int
    created_ms: int
    cutoff: int
    cursor: int = 0
    done: int = 0
    limit: int = 0
    rate: float = 0.0
    clear_progress: bool = False
    filter: dict[str, object] = {}
