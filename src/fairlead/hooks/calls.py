"""What goes into a hook and what comes out of it, as plain values."""

from __future__ import annotations

from typing import Literal

import msgspec

HookFunction = Literal["on_enqueue", "on_failure"]
Outcome = Literal["ran", "failed", "bypassed", "absent"]
HOOK_FUNCTIONS: tuple[HookFunction, ...] = ("on_enqueue", "on_failure")


class OnEnqueueCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    headers: dict[str, str]
    payload_size: int


class OnFailureCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`attempts` counts this failure already; `progress` is the 64 bits of the message."""

    headers: dict[str, str]
    id: str
    attempts: int
    error: str
    reason: str
    progress: int


class EnqueueDecision(msgspec.Struct, frozen=True, gc=False):
    """What to lay over the caller's message: None keeps what the caller gave.

    After `failed` and `bypassed` the fields hold the defaults (key `default`, weight 1, no throttle keys),
    and the caller's stream stays. `absent`: the queue has no such script (any more); all fields are None.
    `notes` says what was corrected or ignored of the script's result.
    """

    outcome: Outcome
    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: tuple[str, ...] | None = None
    stream: str | None = None
    error: str = ""
    notes: tuple[str, ...] = ()


class FailureDecision(msgspec.Struct, frozen=True, gc=False):
    """What the hook decided. Only after `ran` does it count; else the queue's policies decide, as if there
    were no hook.
    """

    outcome: Outcome
    action: Literal["retry", "dlq"] = "retry"
    delay_ms: int = 0
    error: str = ""
    notes: tuple[str, ...] = ()
