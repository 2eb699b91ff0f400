"""Settings of a broker, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from fairlead.errors import InvalidRequest
from fairlead.model.limits import MAX_READ_AHEAD_ROWS

_MAX_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Limits of every hook call, named as in the server's `lua.` settings.

    `default_timeout_ms` is counted in instructions (10,000 a millisecond) and in CPU time, per call;
    `kill_after_ms` is how long a host may go without a result before it is killed.
    `default_memory_limit_bytes` is what a call may use above what its loaded script takes. `confinement` is
    what to do where the kernel cannot filter the system calls of a host: `require` runs no hooks, `best` does
    without and says so; `off` does without everywhere.
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
    """Bounds on memory and disk; every broker has one copy for all its queues.

    `read_ahead_rows` is how many ready messages are held in memory, at most 400,000, `active_lanes` how many (fairness
    key, throttle keys) pairs may have some, `lanes_per_queue` how many of those one queue may have, so that
    one cannot crowd out the others. `body_cache_bytes` is how much of recent bodies is held,
    `block_cache_bytes` RocksDB's share. There may be `max_queues` queues, dead-letter queues not counted, and
    `max_staged_bytes` on disk that are staged and not published yet. Requests that can grow the store are
    refused when the disk would go below `disk_reserve_bytes`, so that requests that free space always fit; a
    value that cannot keep this promise is refused when the store is opened. Checkpoints are written in
    `checkpoint_dir` only, an absolute path, or anywhere if it is empty; a server always has one.
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
        for name in [
            setting.name for setting in fields(self) if setting.name not in ("checkpoint_dir", "lua")
        ]:
            value, most = (
                getattr(self, name),
                MAX_READ_AHEAD_ROWS if name == "read_ahead_rows" else _MAX_NUMBER,
            )
            if type(value) is not int or not 0 <= value <= most:
                raise InvalidRequest(name, f"a whole number from 0 to {most}", value)
        if not isinstance(self.checkpoint_dir, str) or (
            self.checkpoint_dir and not Path(self.checkpoint_dir).is_absolute()
        ):
            raise InvalidRequest("checkpoint_dir", "an absolute path, or nothing", self.checkpoint_dir)
        if not isinstance(self.lua, HookSettings):
            raise InvalidRequest("lua", "a fairlead.HookSettings", self.lua)
