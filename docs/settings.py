"""The settings of a server, as the table of docs/reference/settings.md and as the example file in deploy/."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from fairlead.config.load import SETTINGS, Setting
from fairlead.model.durations import show_ms

EXAMPLE = Path(__file__).parents[1] / "deploy" / "fairlead.toml"

MEANINGS = {
    "data": "data directory; made if there is none; one server at a time",
    "durability": "what a confirmed call has survived: `fsync` a power cut, `os` a crash of the server",
    "resp": "address of the door that speaks Redis, for `fairlead.connect`, or `off`; port 0 picks a free one",
    "resp_socket": "absolute path of a Unix socket on which that door listens, too; only for the user of the server; empty is none",
    "flight": "address of the Arrow Flight door, for Spark and other record batches, or `off`",
    "grpc": "address of the gRPC door, for clients of fila.v1, or `off`; without the extra `fila` it is off, and an address that is given is refused",
    "http": "address of health and metrics, or `off`",
    "insecure_public": "allow addresses that are not loopback although keys or TLS are missing",
    "tls.cert": "certificate of this server in PEM, those above it behind it; for every door, read again when it changes; empty is no TLS",
    "tls.key": "its private key in PEM, without a passphrase, which nobody but the server may read",
    "tls.client_ca": "certificates in PEM: a client must then show one that is signed by one of these",
    "auth.mode": "whether calls need an API key",
    "auth.bootstrap_key_file": "file with the key that may do everything, made at the first start; empty is `bootstrap.key` in the data directory",
    "redact.headers": "headers that find, peek and explain do not show; a `*` at the end stands for any ending; claims and drains get all",
    "redact.json_paths": "nor these values in payloads and carries: paths such as `$.card.number`, `$.items[*].iban`, `$..password`; `$` is all",
    "log.level": "the least important events that are logged",
    "log.format": "one event a line either way",
    "limits.max_calls": "calls at work at a time, claims that wait not counted",
    "limits.max_inflight_bytes": "bytes of requests at work at a time; one larger request passes alone",
    "limits.max_channels": "open channels of the Flight door",
    "limits.max_channels_per_connection": "of which one connection may have so many",
    "limits.max_streams": "open consume streams of the gRPC door",
    "limits.max_streams_per_connection": "of which one connection may have so many",
    "limits.max_connections": "connections of each door but the one for HTTP; beyond, the longest silent is closed",
    "limits.max_connections_per_address": "of which one address may have so many",
    "limits.max_arriving_bytes": "bytes of requests that have come in part or are still held, at the Flight door and at the one that speaks Redis;"
    " beyond, the connection with the most is closed",
    "limits.max_arrow_bytes": "memory Arrow may use to build answers",
    "limits.greeting_ms": "how long a new connection may take to open a channel at the Flight door,"
    " or to say a whole command at the one that speaks Redis",
    "limits.idle_ms": "how long a connection may say nothing at all",
    "limits.drain_grace_ms": "how long a stop waits for calls in flight",
    "metrics.max_queues": "queues that have a label of their own in `/metrics`; the rest share `__other__`",
    "metrics.max_throttle_keys": "throttle keys whose tokens are shown",
    "tracing.otlp_endpoint": "where OpenTelemetry spans are sent, such as `http://127.0.0.1:4317`; empty is off",
    "tracing.service_name": "the name this server has in traces",
    "store.read_ahead_rows": "ready messages held in memory, over all queues; at most 400,000",
    "store.active_lanes": "(fairness key, throttle keys) pairs that may have ready messages; beyond is `TooManyLanes`",
    "store.lanes_per_queue": "of which one queue may have so many",
    "store.max_queues": "queues there may be, dead-letter queues not counted; beyond is `LimitReached`",
    "store.max_staged_bytes": "what staged writes may take on disk until they are published; beyond is `LimitReached`",
    "store.body_cache_bytes": "recent bodies held in memory, so that a message claimed soon is not read back",
    "store.block_cache_bytes": "RocksDB's cache of blocks",
    "store.disk_reserve_bytes": "free space below which requests that can grow the store are refused, so that requests that free space always"
    " fit; at least 64MiB ([a full disk](../explanation/durability.md#a-full-disk))",
    "store.checkpoint_dir": "the only directory that checkpoints and backups are written to; empty is the data directory's name with `.checkpoints`",
    "lua.default_timeout_ms": "time of one hook call, counted in instructions and in CPU time",
    "lua.default_memory_limit_bytes": "memory of one hook call above what its loaded script takes",
    "lua.circuit_breaker_threshold": "failures in a row after which a hook is switched off for a while",
    "lua.circuit_breaker_cooldown_ms": "how long it stays off",
    "lua.kill_after_ms": "how long a host process may go without a result before it is killed",
    "lua.confinement": "whether the system calls of hook hosts are filtered: `best` warns where the kernel cannot, `require` runs no hooks there",
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
    """As it stands in a settings file."""
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
