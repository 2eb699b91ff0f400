"""Settings of a server, as one frozen value."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, NewType

from fairlead.config.engine import HookSettings, Settings
from fairlead.errors import InvalidRequest, SettingInvalid
from fairlead.model.addresses import is_loopback_host, split_address
from fairlead.model.redaction import DEFAULT_HEADERS, MAX_NAMES, read_header_name, read_json_path

_MAX_NUMBER = 1 << 62

#: "127.0.0.1:5554", "[::1]:5554", port 0 for any free one; or "off".
Address = NewType("Address", str)


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What a server may have in hand. A call beyond it is refused with `Overloaded`, and nothing was carried
    out.

    Channels are of the Flight door, streams of the gRPC door; each open one keeps a thread. Limits on
    connections hold for each door but the one for HTTP by itself, and close the ones that have been silent longest.
    docs/reference/limits.md says more.
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
    """How many queues, and how many throttle keys, have series of their own: what a monitoring system must be
    able to hold.
    """

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
    """Files in PEM that every door uses; all empty: no TLS. With `client_ca` a client must show a certificate
    signed by it.

    They are read again when they change. Absolute, because a server is rarely started where somebody thinks.
    """

    cert: str = ""
    key: str = ""
    client_ca: str = ""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if not isinstance(value, str) or (value and not Path(value).is_absolute()):
                raise InvalidRequest(f"tls.{setting.name}", "an absolute path", value)

    @property
    def on(self) -> bool:
        return bool(self.cert)


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Who may do what: with `off` whoever reaches a door may do anything. An empty `bootstrap_key_file` is
    the one in the data directory.
    """

    mode: Literal["off", "keys"] = "off"
    bootstrap_key_file: str = ""


@dataclass(frozen=True, slots=True)
class RedactSettings:
    """What operators' views leave out of messages. Whoever claims or drains a message gets it as it is."""

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
    """Everything `fairlead serve` can be told."""

    data: Path
    durability: Literal["fsync", "os"] = "fsync"
    resp: Address = Address("127.0.0.1:5554")
    #: Absolute, because a server is rarely started where somebody thinks; empty: no Unix socket.
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
        if not isinstance(self.resp_socket, str) or (
            self.resp_socket and not Path(self.resp_socket).is_absolute()
        ):
            raise InvalidRequest("resp_socket", "an absolute path", self.resp_socket)
        for path, what in contradictions(self.addresses(), self.insecure_public, self.tls, self.auth):
            raise SettingInvalid("settings", path, what)

    def addresses(self) -> dict[str, Address]:
        """Of the doors that are not off."""
        return {door: address for door in DOORS if (address := getattr(self, door)) != "off"}

    def engine(self) -> Settings:
        """The part the broker reads. Whoever may ask for a checkpoint must not be able to write anywhere on
        this machine.
        """
        return replace(
            self.store,
            lua=self.lua,
            checkpoint_dir=self.store.checkpoint_dir or f"{self.data.absolute()}.checkpoints",
        )


DOORS = ("resp", "flight", "grpc", "http")

#: Holds a bootstrap key that the operator chose. A secret, so no setting: those are shown, and may be options.
BOOTSTRAP_KEY_VARIABLE = "FAIRLEAD_AUTH_BOOTSTRAP_KEY"


def _check_numbers(
    settings: LimitSettings | MetricSettings, table: str, *, may_be_zero: Collection[str]
) -> None:
    for setting in fields(settings):
        value, least = getattr(settings, setting.name), 0 if setting.name in may_be_zero else 1
        if type(value) is not int or not least <= value <= _MAX_NUMBER:
            raise InvalidRequest(f"{table}.{setting.name}", f"a whole number of at least {least}", value)


def contradictions(
    addresses: Mapping[str, Address], insecure_public: bool, tls: TlsSettings, auth: AuthSettings
) -> Iterator[tuple[str, str]]:
    if not addresses:
        yield ", ".join(DOORS), "expected at least one door to be open, all are off"
    if tls.cert and not tls.key:
        yield "tls.key", "expected the private key of tls.cert, got none"
    if not tls.cert and (tls.key or tls.client_ca):
        yield (
            "tls.cert",
            f"expected a certificate, because {'tls.key' if tls.key else 'tls.client_ca'} is set, got none",
        )
    missing = _lacks(tls, auth)
    for door, address in addresses.items():
        if missing and not insecure_public and not listens_on_loopback(address):
            yield (
                door,
                (
                    f"expected a loopback address, or TLS and keys, got {address}, which others may reach, with {missing};"
                    " or give --insecure-public (or insecure_public = true) if your network keeps strangers away"
                ),
            )


def _lacks(tls: TlsSettings, auth: AuthSettings) -> str:
    """What a server must have before strangers may reach it, and how to have it; "" when nothing is missing."""
    lacking = []
    if not tls.on:
        lacking.append("no TLS (set tls.cert and tls.key; `fairlead tls init` makes some to begin with)")
    if auth.mode == "off" and not (tls.on and tls.client_ca):
        lacking.append('no keys (set auth.mode = "keys", or tls.client_ca for client certificates)')
    return " and ".join(lacking)


def listens_on_loopback(address: str) -> bool:
    return is_loopback_host(split_address(address, may_pick_port=True)[0])
