"""The settings of a server, as one frozen value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, NewType

from fairlead.config.engine import HookSettings, Settings, is_absolute_or_empty
from fairlead.errors import InvalidRequest, SettingInvalid
from fairlead.model.addresses import is_loopback_host, split_address
from fairlead.model.redaction import DEFAULT_HEADERS, MAX_NAMES, read_header_name, read_json_path

_MAX_NUMBER = 1 << 62

#: Such as "127.0.0.1:5554" or "[::1]:5554", with port 0 for any free port; or "off".
Address = NewType("Address", str)


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits on calls and connections of a server. A call beyond a limit fails with `Overloaded` and has no
    effect.

    The Flight door has channels, the gRPC door streams; each open one uses a thread. Limits on connections
    apply to each door separately, except the HTTP door, and close the connections that have been idle
    longest. docs/reference/limits.md has the details.
    """

    max_calls: int = 256
    max_inflight_bytes: int = 512 * 1024 * 1024
    max_channels: int = 4096
    max_channels_per_connection: int = 1024
    max_streams: int = 1000
    max_streams_per_connection: int = 250
    max_connections: int = 4096
    max_connections_per_address: int = 1024
    max_arriving_bytes: int = 1024 * 1024 * 1024
    max_arrow_bytes: int = 1024 * 1024 * 1024
    greeting_ms: int = 20_000
    idle_ms: int = 3_600_000
    drain_grace_ms: int = 10_000

    def __post_init__(self) -> None:
        _check_numbers(self, "limits", may_be_zero=("drain_grace_ms",))


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """The number of queues and of throttle keys that have time series of their own in /metrics."""

    max_queues: int = 200
    max_throttle_keys: int = 100

    def __post_init__(self) -> None:
        _check_numbers(self, "metrics", may_be_zero=("max_queues", "max_throttle_keys"))


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """OpenTelemetry spans of calls; an empty `otlp_endpoint` means off."""

    otlp_endpoint: str = ""
    service_name: str = "fairlead"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files that every door uses; all empty: no TLS. With `client_ca` a client must show a certificate
    that one of its authorities signed.

    Changed files are read again. The paths are absolute, because the working directory of a server is easy to
    mistake.
    """

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if not is_absolute_or_empty(value):
                raise InvalidRequest(f"tls.{setting.name}", "an absolute path", value)

    @property
    def on(self) -> bool:
        return bool(self.cert)


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Whether calls need an API key: with `off`, everybody who reaches a door may do everything.

    An empty `bootstrap_key_file` means the file in the data directory.
    """

    mode: Literal["off", "keys"] = "off"
    bootstrap_key_file: str = ""


@dataclass(frozen=True, slots=True)
class RedactSettings:
    """Headers and values of payloads that operators' views leave out. A claim or drain returns them."""

    headers: tuple[str, ...] = DEFAULT_HEADERS
    json_paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for setting in fields(self):
            if len(given := getattr(self, setting.name)) > MAX_NAMES:
                raise InvalidRequest(
                    f"redact.{setting.name}", f"a list of at most {MAX_NAMES}", f"{len(given)} names"
                )
        for name in self.headers:
            read_header_name(name)
        for path in self.json_paths:
            read_json_path(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """All settings of `fairlead serve`."""

    data: Path
    durability: Literal["fsync", "os"] = "fsync"
    resp: Address = Address("127.0.0.1:5554")
    #: An absolute path; empty: no Unix socket.
    resp_socket: str = ""
    flight: Address = Address("127.0.0.1:5556")
    grpc: Address = Address("127.0.0.1:5555")
    http: Address = Address("127.0.0.1:5557")
    insecure_public: bool = False
    tls: TlsSettings = field(default_factory=TlsSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    redact: RedactSettings = field(default_factory=RedactSettings)
    log: LogSettings = field(default_factory=LogSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    metrics: MetricSettings = field(default_factory=MetricSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    store: Settings = field(default_factory=Settings)
    lua: HookSettings = field(default_factory=HookSettings)

    def __post_init__(self) -> None:
        if not is_absolute_or_empty(self.resp_socket):
            raise InvalidRequest("resp_socket", "an absolute path", self.resp_socket)
        for path, what in contradictions(self.addresses(), self.insecure_public, self.tls, self.auth):
            raise SettingInvalid("settings", path, what)

    def addresses(self) -> dict[str, Address]:
        """The addresses of the doors that are not off."""
        return {door: address for door in DOORS if (address := getattr(self, door)) != "off"}

    def engine(self) -> Settings:
        """The settings of the broker. Its checkpoint directory is never empty: a client that may ask for a
        checkpoint must not be able to write anywhere on this machine.
        """
        return replace(
            self.store,
            lua=self.lua,
            checkpoint_dir=self.store.checkpoint_dir or f"{self.data.absolute()}.checkpoints",
        )


DOORS = ("resp", "flight", "grpc", "http")

#: Holds a bootstrap key that the operator chose. Not a setting, because settings are shown and may be flags.
BOOTSTRAP_KEY_VARIABLE = "FAIRLEAD_AUTH_BOOTSTRAP_KEY"


def _check_numbers(
    settings: LimitSettings | MetricSettings, table: str, *, may_be_zero: Collection[str]
) -> None:
    for setting in fields(settings):
        value = getattr(settings, setting.name)
        least = 0 if setting.name in may_be_zero else 1
        if type(value) is not int or not least <= value <= _MAX_NUMBER:
            raise InvalidRequest(f"{table}.{setting.name}", f"a whole number of at least {least}", value)


def contradictions(
    addresses: Mapping[str, Address], insecure_public: bool, tls: TlsSettings, auth: AuthSettings
) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong) for settings that contradict each other."""
    if not addresses:
        yield ", ".join(DOORS), "expected at least one door to be open, all are off"
    yield from _tls_contradictions(tls)
    missing = "" if insecure_public else _missing_protection(tls, auth)
    if not missing:
        return
    for door, address in addresses.items():
        if not listens_on_loopback(address):
            yield (
                door,
                f"expected a loopback address, or TLS and keys, got {address}, which other machines can reach, with {missing};"
                " or give --insecure-public (or insecure_public = true) if your network keeps strangers away",
            )


def _tls_contradictions(tls: TlsSettings) -> Iterator[tuple[str, str]]:
    if tls.cert and not tls.key:
        yield "tls.key", "expected the private key of tls.cert, got none"
    if not tls.cert and (tls.key or tls.client_ca):
        cause = "tls.key" if tls.key else "tls.client_ca"
        yield "tls.cert", f"expected a certificate, because {cause} is set, got none"


def _missing_protection(tls: TlsSettings, auth: AuthSettings) -> str:
    """The protection that a public server lacks, and how to set it up; "" when nothing is missing."""
    lacking = []
    if not tls.on:
        lacking.append("no TLS (set tls.cert and tls.key; `fairlead tls init` makes files to start with)")
    if auth.mode == "off" and not (tls.on and tls.client_ca):
        lacking.append('no keys (set auth.mode = "keys", or tls.client_ca for client certificates)')
    return " and ".join(lacking)


def listens_on_loopback(address: str) -> bool:
    return is_loopback_host(split_address(address, may_pick_port=True)[0])
