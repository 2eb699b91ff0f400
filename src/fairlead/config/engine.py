"""The settings of a broker, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_READ_AHEAD_ROWS

_MAX_NUMBER = 1 << 62


def is_absolute_or_empty(path: object) -> bool:
    return isinstance(path, str) and (not path or Path(path).is_absolute())


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Limits of every hook call, named as the server's `lua.` settings.

    `default_timeout_ms` limits a call in instructions (10,000 per millisecond) and in CPU time.
    `kill_after_ms` is how long a hook process may run without a result before it is killed.
    `default_memory_limit_bytes` is the memory of a call in addition to its loaded script. `confinement`
    decides about hook processes whose system calls the kernel cannot filter: `require` runs no hooks, `best`
    runs them with a warning. `off` never filters.
    """

    default_timeout_ms: int = 10
    default_memory_limit_bytes: int = 1024 * 1024
    circuit_breaker_threshold: int = 3
    circuit_breaker_cooldown_ms: int = 10_000
    kill_after_ms: int = 100
    confinement: Literal["require", "best", "off"] = "best"

    def __post_init__(self) -> None:
        if self.confinement not in ("require", "best", "off"):
            raise InvalidRequest("lua.confinement", "require, best or off", self.confinement)
        for setting in fields(self):
            if setting.name == "confinement":
                continue
            value = getattr(self, setting.name)
            if type(value) is not int or value < 1:
                raise InvalidRequest(f"lua.{setting.name}", "a whole number of at least 1", value)


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds on memory and disk of a broker, for all its queues together.

    `read_ahead_rows` is the number of ready messages in memory, at most 400,000. `active_lanes` is the number
    of (fairness key, throttle keys) pairs that may have ready messages, and `lanes_per_queue` the number for
    one queue, so that one queue cannot use all of them. `body_cache_bytes` bounds recent message bodies in
    memory, and `block_cache_bytes` RocksDB's cache. `max_queues` does not count dead-letter queues.
    `max_staged_bytes` bounds staged writes on disk that are not published yet. Requests that can grow the
    store are refused when the free space would fall below `disk_reserve_bytes`, so that requests that free
    space always fit; a value that is too small for this guarantee is refused when the store is opened.
    Checkpoints are written only in `checkpoint_dir`, an absolute path, or anywhere if it is empty; a server
    always has one.
    """

    read_ahead_rows: int = MAX_READ_AHEAD_ROWS
    active_lanes: int = 1_000_000
    lanes_per_queue: int = 500_000
    max_queues: int = 10_000
    max_staged_bytes: int = 16 * 1024 * 1024 * 1024
    body_cache_bytes: int = 64 * 1024 * 1024
    block_cache_bytes: int = 64 * 1024 * 1024
    disk_reserve_bytes: int = 256 * 1024 * 1024
    checkpoint_dir: str = ""
    lua: HookSettings = HookSettings()

    def __post_init__(self) -> None:
        for setting in fields(self):
            if setting.name not in ("checkpoint_dir", "lua"):
                self._check_number(setting.name)
        if not is_absolute_or_empty(self.checkpoint_dir):
            raise InvalidRequest("checkpoint_dir", "an absolute path, or nothing", self.checkpoint_dir)
        if not isinstance(self.lua, HookSettings):
            raise InvalidRequest("lua", "a fairlead.HookSettings", self.lua)

    def _check_number(self, name: str) -> None:
        value = getattr(self, name)
        most = MAX_READ_AHEAD_ROWS if name == "read_ahead_rows" else _MAX_NUMBER
        if type(value) is not int or not 0 <= value <= most:
            raise InvalidRequest(name, f"a whole number from 0 to {most}", value)
