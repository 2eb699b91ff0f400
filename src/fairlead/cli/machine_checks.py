"""The checks of `fairlead doctor` on this machine and its Python packages."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata

from fairlead.cli.findings import Finding, Level
from fairlead.engine.broker import Broker
from fairlead.errors import FairleadError
from fairlead.hooks.confine import Confinement, available
from fairlead.server.fila.packages import INSTALL, why_unusable
from fairlead.store.kv.dictionary import DictionaryStore

#: Packages, and the module of each that is imported.
CORE = {
    "rocksdict": "rocksdict",
    "msgspec": "msgspec",
    "lupa": "lupa",
    "google-re2": "re2",
    "google-crc32c": "google_crc32c",
}
EXTRAS = {
    "client": {"hiredis": "hiredis"},
    "bulk": {"pyarrow": "pyarrow.flight"},
    "server": {
        "pyarrow": "pyarrow.flight",
        "prometheus-client": "prometheus_client",
        "hiredis": "hiredis",
        "uvloop": "uvloop",
        "starlette": "starlette",
        "uvicorn": "uvicorn",
        "h11": "h11",
        "typer": "typer",
        "rich": "rich",
        "cryptography": "cryptography.x509",
        "python-hcl2": "hcl2",
    },
    "fila": {
        "grpcio": "grpc",
        "grpcio-health-checking": "grpc_health.v1",
        "grpcio-reflection": "grpc_reflection.v1alpha",
        "protobuf": "google.protobuf",
    },
    "otel": {
        "opentelemetry-sdk": "opentelemetry.sdk.trace",
        "opentelemetry-exporter-otlp-proto-grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    },
}

#: Extras that most installations do not need.
_OPTIONAL = ("fila", "otel")
_MIN_OPEN_FILES = 1024
#: Every build of fairlead is later: a clock before this time is wrong.
_MIN_CLOCK_S = 1_735_689_600
_HOOK = "function on_enqueue(msg) return { fairness_key = msg.headers.who } end"
_finding = partial(Finding, "machine")


def machine() -> Iterator[Finding]:
    yield _finding(
        "python", "ok", f"{platform.python_version()} {platform.python_implementation()} at {sys.executable}"
    )
    yield clock(time.time())
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield hook_host()
    yield hook_confinement(available())


def clock(now_s: float) -> Finding:
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < _MIN_CLOCK_S:
        return _finding(
            "clock",
            "bad",
            f"{shown} is before the first version of fairlead",
            "set the clock, and synchronize it with NTP",
        )
    return _finding("clock", "ok", shown)


def open_files(soft_limit: int) -> Finding:
    if soft_limit == resource.RLIM_INFINITY:
        return _finding("open files", "ok", "no limit")
    if soft_limit < _MIN_OPEN_FILES:
        advice = "RocksDB keeps 512 files open and every connection needs one: set ulimit -n 4096, or LimitNOFILE= in the unit"
        return _finding(
            "open files", "warn", f"at most {soft_limit:,}, less than {_MIN_OPEN_FILES:,}", advice
        )
    return _finding("open files", "ok", f"at most {soft_limit:,}")


def hook_host(script: str = _HOOK) -> Finding:
    """Run a real script in a real hook process, with a broker in memory."""
    broker = Broker(DictionaryStore())
    began = time.perf_counter()
    try:
        broker.create_queue("doctor", on_enqueue=script)
        broker.enqueue("doctor", b"", headers={"who": "somebody"})
        key = broker.peek("doctor")[0].fairness_key
        if key != "somebody":
            why = broker.stats("doctor").hooks[0].last_error
            return _finding(
                "hook host",
                "bad",
                f"a script that sets the key to 'somebody' gave {key!r}: {why}",
                "see docs/explanation/hooks.md",
            )
    except FairleadError as error:
        return _finding(
            "hook host",
            "bad",
            error.message,
            "queues with Lua hooks cannot be created; check that lupa is installed for this Python",
        )
    finally:
        broker.close()
    return _finding(
        "hook host", "ok", f"started and ran a Lua hook in {(time.perf_counter() - began) * 1000:.0f} ms"
    )


def hook_confinement(offered: Confinement) -> Finding:
    """Report how far this machine confines a hook process, in case Lua has a security hole."""
    if offered.filtered:
        return _finding("hook confinement", "ok" if not offered.missing else "info", str(offered))
    advice = "a security hole in Lua would open the broker's account: use only trusted scripts, or set lua.confinement to require"
    return _finding("hook confinement", "warn", str(offered), advice)


def packages() -> Iterator[Finding]:
    yield extra("needed", CORE)
    for name, contents in EXTRAS.items():
        found = extra(name, contents)
        yield with_grpc_door(found, why_unusable()) if name == "fila" else found


def _is_absent(module: str, trouble: ImportError) -> bool:
    """Whether the module is missing, not broken; also where other packages share its namespace, as
    google.protobuf.
    """
    name = trouble.name if isinstance(trouble, ModuleNotFoundError) else None
    return name is not None and f"{module}.".startswith(f"{name}.")


def with_grpc_door(found: Finding, why: str) -> Finding:
    """Add why the gRPC door cannot open: all packages may be present but too old."""
    if not why:
        return found
    return replace(
        found,
        level="warn" if found.level == "ok" else found.level,
        found=f"{found.found}; a server on this machine has no gRPC door for clients of fila.v1: {why}",
        advice=INSTALL,
    )


def extra(name: str, contents: Mapping[str, str]) -> Finding:
    """Import the packages of an extra: an installed package may still fail to import."""
    present, missing, broken = [], [], []
    for package, module in contents.items():
        try:
            import_module(module)
            present.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            present.append(package)  # Importable without being installed: the version is unknown.
        except ImportError as trouble:
            if _is_absent(module, trouble):
                missing.append(package)
            else:
                broken.append(f"{package} cannot be imported ({trouble})")
    if not (missing or broken):
        return Finding("packages", name, "ok", ", ".join(present))
    found = [", ".join(present), f"missing: {', '.join(missing)}" if missing else "", *broken]
    text = "; ".join(filter(None, found))
    install = "pip install fairlead" if name == "needed" else f"pip install 'fairlead[{name}]'"
    return Finding("packages", name, _level(name, is_broken=bool(broken)), text, install)


def _level(name: str, *, is_broken: bool) -> Level:
    """The level of an extra with missing or broken packages."""
    if is_broken or name == "needed":
        return "bad"
    return "info" if name in _OPTIONAL else "warn"
