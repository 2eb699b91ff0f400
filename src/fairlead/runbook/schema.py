"""The JSON Schema of runbooks, for editors. It derives from the table the checker reads by, so the two cannot
drift.
"""

from __future__ import annotations

from typing import Any

from fairlead.runbook.keys import RUNBOOK
from fairlead.runbook.kinds import value_schema
from fairlead.runbook.policies import policy_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def runbook_schema() -> dict[str, Any]:
    """What it cannot say: that names refer to something, that files exist, how long a duration may be;
    `runbook check` does.
    """
    return {
        "$schema": DIALECT,
        "title": "fairlead runbook",
        "description": "Queues, pipelines and workers. `fairlead runbook check` also checks what a schema cannot.",
        **RUNBOOK.schema(),
        "$defs": {"policy": policy_schema(), "value": value_schema()},
    }
