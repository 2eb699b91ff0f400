"""The Lua hooks of queues, `on_enqueue` and `on_failure`, run in a process that can be killed.

Guarantees: a script cannot harm, block or delay the broker by more than one kill. Every call gets a decision,
whatever the script does. Results are plain values that are checked on this side. Calls share nothing: each
starts from the script alone, so the same call gives the same result in any host process.

Must not: know queues, messages or stores (the broker translates), or run Lua in this process. Of fairlead,
the host process imports only `host.py`, `wire.py`, `calls.py`, `confine.py`, `seccomp.py` and
`fairlead.processes`.

Where to start: `hooks.py`; then `sandbox.lua` for what scripts can reach, `host.py` for how they run,
`confine.py` for what the process can reach if Lua itself has a hole.
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
