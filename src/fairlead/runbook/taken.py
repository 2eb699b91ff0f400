"""The engine's queue for what is taken from an external one; docs/decisions/0012-external-queues.md says why
it is so.
"""

from __future__ import annotations

from typing import Any

#: A completed item is kept for longer than any list that began before it was completed can still be used.
TAKEN_OPTIONS: dict[str, Any] = {
    "dedup": "kept",
    "retain_completed": "5m",
    "retry": "none",
    "dead_retention": "7d",
    "visibility_timeout": "5m",
    "ordering": "none",
}
