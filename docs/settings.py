"""Generates the table of settings in docs/reference/settings.md and the example file in deploy/."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from fairlead.config.load import SETTINGS, Setting
from fairlead.model.durations import show_ms

EXAMPLE = Path(__file__).parents[1] / "deploy" / "fairlead.toml"

MEANINGS = {
    "data": "data directory, created if it does not exist; used by one server at a time",
    "durability": "what a confirmed call survives: `fsync` a power cut, `os` a crash of the server",
    "resp": "address of the Redis protocol door, for `fairlead.connect`, or `off`; port 0 picks a free port",
    "resp_socket": "absolute path of a Unix socket of the same door, for the user of the server only; empty: no socket",
    "flight": "address of the Arrow Flight door, for Spark and other record batches, or `off`",
    "grpc": "address of the gRPC door, for clients of fila.v1, or `off`; without the extra `fila` the door is off, and a given address is refused",
    "http": "address of the HTTP door, for health and metrics, or `off`",
    "insecure_public": "allow addresses that are not loopback although keys or TLS are missing",
    "tls.cert": "certificate of the server in PEM, followed by the certificates above it; used by every door,"
    " and read again when the file changes; empty: no TLS",
    "tls.key": "private key of the certificate in PEM, without a passphrase; only the server may be able to read it",
    "tls.client_ca": "authorities in PEM: each client must show a certificate that one of them signed; empty: no client certificates",
    "auth.mode": "whether calls need an API key",
    "auth.bootstrap_key_file": "file with the key with every right, created at the first start; empty: `bootstrap.key` in the data directory",
    "redact.headers": "headers that find, peek and explain do not show; a `*` at the end stands for any ending; claims and drains return all headers",
    "redact.json_paths": "values in payloads and carries that they do not show: paths such as `$.card.number`, `$.items[*].iban`,"
    " `$..password`; `$` is the whole payload",
    "log.level": "the least important events to log",
    "log.format": "format of the log, one event per line",
    "limits.max_calls": "maximum of calls in progress; claims that wait do not count",
    "limits.max_inflight_bytes": "maximum bytes of requests in progress; one larger request may run alone",
    "limits.max_channels": "maximum of open channels of the Flight door",
    "limits.max_channels_per_connection": "maximum of open channels of one connection",
    "limits.max_streams": "maximum of open consume streams of the gRPC door",
    "limits.max_streams_per_connection": "maximum of open streams of one connection",
    "limits.max_connections": "maximum of connections of each door except HTTP; beyond it, the connection that has been idle longest is closed",
    "limits.max_connections_per_address": "maximum of connections of one address",
    "limits.max_arriving_bytes": "maximum bytes of requests that are incomplete or still in memory, at the Flight door and at the Redis protocol"
    " door; beyond it, the connection with the most bytes is closed",
    "limits.max_arrow_bytes": "memory that Arrow may use to build answers",
    "limits.greeting_ms": "how long a new connection may take to open a channel at the Flight door,"
    " or to send a whole command at the Redis protocol door",
    "limits.idle_ms": "how long a connection may send nothing",
    "limits.drain_grace_ms": "how long a stop waits for calls in flight",
    "metrics.max_queues": "maximum of queues with a label of their own in `/metrics`; the others share `__other__`",
    "metrics.max_throttle_keys": "maximum of throttle keys whose tokens are shown",
    "tracing.otlp_endpoint": "destination of OpenTelemetry spans, such as `http://127.0.0.1:4317`; empty: off",
    "tracing.service_name": "name of this server in traces",
    "store.read_ahead_rows": "ready messages in memory, over all queues; at most 400,000",
    "store.active_lanes": "maximum of (fairness key, throttle keys) pairs with ready messages; beyond it: `TooManyLanes`",
    "store.lanes_per_queue": "maximum of such pairs of one queue",
    "store.max_queues": "maximum of queues, dead-letter queues not counted; beyond it: `LimitReached`",
    "store.max_staged_bytes": "maximum bytes on disk of staged writes that are not published; beyond it: `LimitReached`",
    "store.body_cache_bytes": "memory for recent bodies, so that a message that is claimed soon need not be read",
    "store.block_cache_bytes": "memory for RocksDB's block cache",
    "store.disk_reserve_bytes": "free space below which requests that can grow the store are refused, so that requests that free space always"
    " fit; at least 64MiB ([a full disk](../explanation/durability.md#a-full-disk))",
    "store.checkpoint_dir": "the only directory for checkpoints and backups; empty: the data directory's name with `.checkpoints`",
    "lua.default_timeout_ms": "time limit of a hook call, in instructions and in CPU time",
    "lua.default_memory_limit_bytes": "memory limit of a hook call, in addition to its loaded script",
    "lua.circuit_breaker_threshold": "consecutive failures after which a hook is switched off for a time",
    "lua.circuit_breaker_cooldown_ms": "how long the hook stays switched off",
    "lua.kill_after_ms": "how long a hook process may run without a result before it is killed",
    "lua.confinement": "filter for the system calls of hook processes: where the kernel has none, `best` warns and `require` runs no hooks",
}


def settings_table() -> Iterator[str]:
    yield "| setting | environment | default | meaning |"
    yield "|---|---|---|---|"
    for path, setting in SETTINGS.items():
        default = "must be given" if setting.default is None else f"`{written(setting)}`"
        yield f"| `{path}` | `{setting.variable}` | {default} | {MEANINGS[path]}{_choices(setting)} |"


def example_file() -> str:
    lines = [
        "# Settings of fairlead serve: fairlead serve --config fairlead.toml",
        "# Every setting is here with its default; made by: make docs",
    ]
    table = ""
    for path, setting in SETTINGS.items():
        above, _, name = path.rpartition(".")
        if above != table:
            table = above
            lines += ["", f"[{table}]"]
        lines += [
            "",
            *textwrap.wrap(
                (MEANINGS[path] + _choices(setting)).replace("`", ""),
                118,
                initial_indent="# ",
                subsequent_indent="# ",
            ),
        ]
        lines.append(f"#{name} = {written(setting)}")
    return "\n".join(lines) + "\n"


def written(setting: Setting) -> str:
    """The default as written in a settings file."""
    value = "/var/lib/fairlead" if setting.default is None else setting.default
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{name}"' for name in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and setting.path.endswith("_bytes") and value % (1 << 20) == 0:
        return f'"{value >> 20}MiB"'
    if isinstance(value, int):
        return f'"{show_ms(value)}"' if setting.path.endswith("_ms") else str(value)
    return f'"{value}"'


def _choices(setting: Setting) -> str:
    if get_origin(setting.hint) is not Literal or setting.path == "durability":
        return ""
    return ": " + ", ".join(f"`{choice}`" for choice in get_args(setting.hint))
