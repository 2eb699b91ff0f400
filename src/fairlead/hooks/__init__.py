"""The Lua hooks of queues: `on_enqueue` and `on_failure`, run in a process that can be killed.

Promises: a script can neither harm, block nor slow the broker beyond one kill; whatever it does, every call
gets a decision, and results are plain values that were checked on this side. Calls share nothing: each starts
from the script alone, so the same call gives the same answer in any host. Must not: know queues, messages or
stores (the broker translates), or run Lua in this process. `host.py`, `wire.py`, `calls.py`, `confine.py` and
`seccomp.py` are what the host process sees of fairlead. Start at `hooks.py`, then `sandbox.lua`: what scripts
can reach, `host.py`: how they are run, and `confine.py`: what the process can reach should Lua itself have a
hole.
"""

from fairlead.config import HookSettings
from fairlead.hooks.calls import (
    HOOK_FUNCTIONS,
    EnqueueDecision,
    FailureDecision,
    HookFunction,
    OnEnqueueCall,
    OnFailureCall,
)
from fairlead.hooks.hooks import Hooks
from fairlead.model.views import HookStats

__all__ = [
    "HOOK_FUNCTIONS",
    "EnqueueDecision",
    "FailureDecision",
    "HookFunction",
    "HookSettings",
    "HookStats",
    "Hooks",
    "OnEnqueueCall",
    "OnFailureCall",
]
