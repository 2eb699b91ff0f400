"""Generates the reference of runbooks from the table of keys that the checker uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairlead.runbook.keys import EXTERNAL, HOOK_KEYS, NAMED_STEP, PERSISTED, PIPELINE, RUNBOOK, WORKER
from fairlead.runbook.kinds import KeySpec
from fairlead.runbook.policies import POLICY_KEYS

TABLES: dict[str, Mapping[str, KeySpec]] = {
    "runbook_top": RUNBOOK.keys,
    "runbook_persisted": PERSISTED.keys,
    "runbook_hooks": HOOK_KEYS,
    "runbook_external": EXTERNAL.keys,
    "runbook_pipeline": PIPELINE.keys,
    "runbook_step": NAMED_STEP.table.keys,
    "runbook_worker": WORKER.keys,
}


def keys_table(keys: Mapping[str, KeySpec]) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, key in keys.items():
        default = "**required**" if key.required else key.default
        yield f"| `{name}` | {_cell(key.kind.words)} | {_cell(default)} | {_cell(key.meaning)} |"


def policy_table() -> Iterator[str]:
    yield "| key | value | meaning |"
    yield "|---|---|---|"
    for name, (kind, meaning) in POLICY_KEYS.items():
        yield f"| `{name}` | {_cell(kind.words)} | {_cell(meaning)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
