"""fairlead: a durable work queue that takes failure seriously.

`fairlead.open("./data")` returns a `Broker` in this process, without a server.
`fairlead.connect("host:5554")` returns a `Client` with the same verbs over the network, and
`fairlead.aio.connect` its asyncio form.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead import errors

if TYPE_CHECKING:
    from fairlead.client.client import Client
    from fairlead.client.tls import Tls, TlsChoice
    from fairlead.clock import Clock
    from fairlead.config import HookSettings, Settings
    from fairlead.decide.dead_filter import DeadFilter
    from fairlead.decide.policy_lint import PolicyLint, lint_policy
    from fairlead.engine.broker import Broker, Durability
    from fairlead.engine.verify import VerifyReport, verify
    from fairlead.model.delivery import Delivery
    from fairlead.model.durations import Duration
    from fairlead.model.failure import FailureReason, FailureRecord, Progress
    from fairlead.model.message import NewMessage
    from fairlead.model.settle import Complete, DeliveryRef, Extend, Fail, Release, SettleResult, Start
    from fairlead.salvage.repair import repair
    from fairlead.salvage.report import RepairReport
else:
    # Loaded on access: a process that only runs a step, or only talks to a server, does not wait for the
    # engine, and a queue in process needs no pyarrow.
    _MODULES = {
        "aio": (),
        "client.client": ("Client",),
        "client.tls": ("Tls",),
        "config": ("HookSettings", "Settings"),
        "decide.dead_filter": ("DeadFilter",),
        "decide.policy_lint": ("PolicyLint", "lint_policy"),
        "engine.broker": ("Broker",),
        "engine.verify": ("VerifyReport", "verify"),
        "model.delivery": ("Delivery",),
        "model.failure": ("FailureReason", "FailureRecord", "Progress"),
        "model.message": ("NewMessage",),
        "model.settle": ("Complete", "DeliveryRef", "Extend", "Fail", "Release", "SettleResult", "Start"),
        "salvage.repair": ("repair",),
        "salvage.report": ("RepairReport",),
        "worker.step": ("BatchStep", "Step", "StepFailed", "Throttled"),
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names or (module,)}

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'fairlead' has no attribute {name!r}")
        module = import_module(f"fairlead.{_MODULE_OF[name]}")
        value = globals()[name] = module if name == _MODULE_OF[name] else getattr(module, name)
        return value


__version__ = "0.1.0"

#: Without `open`: a star import must not replace the builtin.
__all__ = [
    "BatchStep",
    "Broker",
    "Client",
    "Complete",
    "DeadFilter",
    "Delivery",
    "DeliveryRef",
    "Extend",
    "Fail",
    "FailureReason",
    "FailureRecord",
    "HookSettings",
    "NewMessage",
    "PolicyLint",
    "Progress",
    "Release",
    "RepairReport",
    "Settings",
    "SettleResult",
    "Start",
    "Step",
    "StepFailed",
    "Throttled",
    "Tls",
    "VerifyReport",
    "connect",
    "errors",
    "lint_policy",
    "repair",
    "verify",
]


def open(
    path: str | Path,
    *,
    durability: Durability = "fsync",
    clock: Clock | None = None,
    settings: Settings | None = None,
) -> Broker:
    """Open a data directory, and create it if there is none. A second process that opens it gets
    `StoreLocked`.
    """
    from fairlead.config import Settings
    from fairlead.engine.broker import open_directory

    return open_directory(Path(path), clock=clock, durability=durability, settings=settings or Settings())


def connect(
    address: str,
    *,
    consumer: str | None = None,
    retry_for: Duration = "30s",
    timeout: Duration = "30s",
    heartbeat_cap: Duration | None = "10m",
    tracing: bool = False,
    api_key: str | None = None,
    tls: TlsChoice = None,
    flight: str | None = None,
) -> Client:
    """Connect to the server at `address`, and return a client once the server has answered. Raises
    `ServerUnreachable` if it has not within `retry_for`.

    `address` is `host:port`, `host` for port 5554, `fairleads://host:port` for TLS with the authorities that
    the system trusts, or `unix:///path`.

    `consumer` is the client's name at the server; the default consists of host, process and a random part.
    `retry_for` is how long a later call keeps trying while the server cannot be reached. `timeout` is how
    long a request may stay unanswered before its connection counts as dead. `heartbeat_cap` is how long the
    client keeps a delivery's lease alive after its claim; None: not at all. `api_key` is sent with every
    call. `tls` is True (the authorities that the system trusts), the path of an authority's certificate, or a
    `fairlead.Tls`; a wrong value raises `TlsFailed` at once. `tracing` creates OpenTelemetry spans for
    enqueues, exported as this program exports its own, and needs `fairlead[otel]`. Record batches travel by
    Arrow Flight, at the address that the server names, or at `flight` if that one cannot be reached; they
    need `fairlead[bulk]`.
    """
    from fairlead.client.finding import find_connect

    return find_connect()(
        address,
        consumer=consumer,
        retry_for=retry_for,
        timeout=timeout,
        heartbeat_cap=heartbeat_cap,
        tracing=tracing,
        api_key=api_key,
        tls=tls,
        flight=flight,
    )
