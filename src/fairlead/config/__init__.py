"""Settings as frozen values, and the only reader of settings files and of the environment.

`Settings` and `HookSettings` belong to a broker, also in process; `ServerSettings` to `fairlead serve`. The
fields of `ServerSettings` define the settings of a server: the path of a field is its name in the file
(`lua.kill_after_ms`), in the environment (`FAIRLEAD_LUA_KILL_AFTER_MS`) and after `--set`. A setting whose
name ends in `_ms` also takes a duration ("30s"), and one in `_bytes` a size ("64MiB"). No setting is silently
ignored. This folder must not know what the settings do. Start with `server.py`, then `load.py`.
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
