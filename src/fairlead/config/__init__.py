"""Settings as frozen values, and the only reader of settings files and environment.

`Settings` and `HookSettings` belong to a broker, also in process; `ServerSettings` to `fairlead serve`. Of a
server's settings the field is the definition: its path is its name in the file (`lua.kill_after_ms`), in the
environment (`FAIRLEAD_LUA_KILL_AFTER_MS`) and behind `--set`; a name ending in `_ms` also takes a duration
("30s"), one ending in `_bytes` a size ("64MiB"). Promises that no setting is silently ignored. Must not: know
what the settings do. Start at `server.py`, then `load.py`.
"""

from fairlead.config.engine import HookSettings, Settings
from fairlead.config.server import (
    Address,
    AuthSettings,
    LimitSettings,
    LogSettings,
    MetricSettings,
    RedactSettings,
    ServerSettings,
    TlsSettings,
    TracingSettings,
)

__all__ = [
    "Address",
    "AuthSettings",
    "HookSettings",
    "LimitSettings",
    "LogSettings",
    "MetricSettings",
    "RedactSettings",
    "ServerSettings",
    "Settings",
    "TlsSettings",
    "TracingSettings",
]
