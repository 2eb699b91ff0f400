"""Sizes of the engine by name, so that a test can make them small: a few messages then need several steps.

`monkeypatch.setattr(size("publish_step_messages"), 3)` in a test; `set_sizes` in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

_PLACES = {
    # Long operations: purge, delete, redrive.
    "operation_step_messages": "engine.operations.STEP_MESSAGES",
    "scan_page_messages": "engine.walk.STEP_MESSAGES",
    "operator_scan_messages": "engine.choose.SCAN_LIMIT",
    "operator_step_messages": "engine.act.STEP_MESSAGES",
    # Timer.
    "timer_step_messages": "engine.moves.STEP_MESSAGES",
    "timer_sleep_ms": "engine.timer.MAX_SLEEP_MS",
    "session_kept_ms": "decide.sessions.SESSION_KEPT_MS",
    # Streams.
    "let_by_per_stream": "decide.fronts.MAX_LET_BY",
    # Numbered claims.
    "claim_piece_messages": "engine.work.consumer_claims.PIECE",
    "close_step_messages": "engine.work.consumer_claims.PIECE",
    "close_step_outcomes": "engine.consumer_steps.OUTCOMES_STEP",
    "close_step_hook_calls": "engine.hooking.HOOKED_STEP",
    "release_step_messages": "engine.consumer_steps.RELEASE_STEP",
    "read_page_messages": "engine.work.consumer_read.PAGE_MESSAGES",
    "read_page_bytes": "engine.work.consumer_read.PAGE_BYTES",
    "touches_per_ttl": "engine.work.consumer_read.TOUCHES",
    "recorded_bytes": "engine.work.consumers.MAX_RECORDED_BYTES",
    # Staged writes.
    "publish_step_messages": "engine.work.publish_steps.STEP_MESSAGES",
    "staged_part_messages": "engine.work.staging.PART_MESSAGES",
    "chunks_per_write": "engine.work.staging.MAX_WRITE_CHUNKS",
    "staged_chunks": "engine.work.staging.MAX_STAGED_CHUNKS",
    # Views.
    "browse_page_bytes": "engine.work.look.PAGE_BYTES",
    "browse_step_messages": "engine.walk_ids.STEP_MESSAGES",
    # Bounds of stored records.
    "config_keys": "engine.work.config.MAX_CONFIG_KEYS",
    "config_characters": "engine.work.config.MAX_CONFIG_CHARACTERS",
    "api_keys": "engine.work.keys.MAX_KEYS",
    "audit_records": "engine.audit_trail.MAX_AUDIT_RECORDS",
    "audit_page_records": "engine.audit_trail._FORGET_EVERY",
    # Disk.
    "disk_reserve_bytes": "store.rocks.reserve.DISK_RESERVE_BYTES",
    "min_disk_reserve_bytes": "store.rocks.reserve.MIN_DISK_RESERVE_BYTES",
    "disk_reserve_floor_bytes": "store.rocks.reserve.FLOOR_BYTES",
}


def size(name: str) -> str:
    """The location of the size, as a dotted name for `monkeypatch.setattr`."""
    return f"fairlead.{_PLACES[name]}"


def read_size(name: str) -> Any:
    module, attribute = _find(name)
    return getattr(module, attribute)


def set_sizes(**sizes: int) -> None:
    """Change sizes for the rest of this process."""
    for name, value in sizes.items():
        module, attribute = _find(name)
        setattr(module, attribute, value)


@contextmanager
def sized(**sizes: int) -> Iterator[None]:
    """Change sizes inside the `with` block."""
    with ExitStack() as stack:
        for name, value in sizes.items():
            stack.enter_context(patch(size(name), value))
        yield


def _find(name: str) -> tuple[Any, str]:
    module, _, attribute = size(name).rpartition(".")
    return import_module(module), attribute
