"""Gives the first engine's package the names that the generator of runs imports and that are newer."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import fairlead.request

#: Modules and names of today, and where the first engine has them.
FORMER_NAMES = {
    ("fairlead.hooks", "OnEnqueueCall"): ("fairlead.hooks", "EnqueueCall"),
    ("fairlead.hooks", "OnFailureCall"): ("fairlead.hooks", "FailureCall"),
    ("fairlead.runbook.model", "dump_runbook"): ("fairlead.runbook.stored", "dump_runbook"),
    ("fairlead.verbs.consumers", "ConsumersBeginSlice"): ("fairlead.verbs.consumers", "ConsumersTakeUp"),
}


class Missing:
    """Stands in for a verb that the first engine does not have. The runs of the comparison draw none."""


def is_first_engine() -> bool:
    return find_spec("fairlead.broker") is not None


def lend_names() -> None:
    """Call this before the generator is imported. Does nothing in today's package."""
    if not is_first_engine():
        return
    from fairlead.model.facts import Intent  # type: ignore[import-not-found]

    fairlead.request.Caller.claim_token = None  # type: ignore[method-assign, assignment]
    _add_module("fairlead.model.intent", Intent=Intent)
    _add_module("fairlead.verbs.sessions", OpenSession=Missing)
    _add_module("fairlead.verbs.throttles", CloseThrottle=Missing, OpenThrottle=Missing, Throttles=Missing)
    for (module, name), (former_module, former_name) in FORMER_NAMES.items():
        setattr(import_module(module), name, getattr(import_module(former_module), former_name))


def _add_module(name: str, **names: Any) -> None:
    module = ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
