"""The calls and decisions of hooks, as plain values."""

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
    """`attempts` includes this failure. `progress` is the 64 bits of the message."""

    headers: dict[str, str]
    id: str
    attempts: int
    error: str
    reason: str
    progress: int


class EnqueueDecision(msgspec.Struct, frozen=True, gc=False):
    """The fields that replace those of the caller's message; None keeps the caller's.

    After `failed` and `bypassed` the fields hold the defaults (key `default`, weight 1, no throttle keys),
    and the caller's stream stays. `absent`: the queue has no such script, and all fields are None. `notes`
    name values of the script that were corrected or ignored.
    """

    outcome: Outcome
    fairness_key: str | None = None
    weight: int | None = None
    throttle_keys: tuple[str, ...] | None = None
    stream: str | None = None
    error: str = ""
    notes: tuple[str, ...] = ()


class FailureDecision(msgspec.Struct, frozen=True, gc=False):
    """The decision counts only with the outcome `ran`; otherwise the queue's policies decide, as without a
    hook.
    """

    outcome: Outcome
    action: Literal["retry", "dlq"] = "retry"
    delay_ms: int = 0
    error: str = ""
    notes: tuple[str, ...] = ()
