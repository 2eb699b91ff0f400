"""The checks of `fairlead doctor` that look at this machine and at the packages it has."""

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

#: Packages, and what of them is imported.
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

#: Extras that many do well without.
_OPTIONAL = ("fila", "otel")
_MIN_OPEN_FILES = 1024
#: No build of fairlead is older: a clock before this is wrong.
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
            f"{shown} is before fairlead was written",
            "set the clock, and keep it set with NTP",
        )
    return _finding("clock", "ok", shown)


def open_files(soft_limit: int) -> Finding:
    if soft_limit == resource.RLIM_INFINITY:
        return _finding("open files", "ok", "no limit")
    if soft_limit < _MIN_OPEN_FILES:
        advice = "RocksDB keeps 512 files open and every connection needs one: ulimit -n 4096, or LimitNOFILE= in the unit"
        return _finding(
            "open files", "warn", f"at most {soft_limit:,}, less than {_MIN_OPEN_FILES:,}", advice
        )
    return _finding("open files", "ok", f"at most {soft_limit:,}")


def hook_host(script: str = _HOOK) -> Finding:
    """Makes a broker in memory run a real script in the real process."""
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
                f"a script that sets the key to 'somebody' led to {key!r}: {why}",
                "see docs/explanation/hooks.md",
            )
    except FairleadError as error:
        return _finding(
            "hook host",
            "bad",
            error.message,
            "queues with Lua hooks cannot be made; is lupa installed for this Python?",
        )
    finally:
        broker.close()
    return _finding(
        "hook host", "ok", f"started and ran a Lua hook in {(time.perf_counter() - began) * 1000:.0f} ms"
    )


def hook_confinement(offered: Confinement) -> Finding:
    """What this machine offers to hold a hook host should its Lua have a hole."""
    if offered.filtered:
        return _finding("hook confinement", "ok" if not offered.missing else "info", str(offered))
    advice = "a hole in Lua would be a hole in the broker's account: take scripts only from people you trust, or set lua.confinement to require"
    return _finding("hook confinement", "warn", str(offered), advice)


def packages() -> Iterator[Finding]:
    yield extra("needed", CORE)
    for name, contents in EXTRAS.items():
        found = extra(name, contents)
        yield with_grpc_door(found, why_unusable()) if name == "fila" else found


def _is_absent(module: str, trouble: ImportError) -> bool:
    """Neither present nor broken: also where other packages share its namespace, as that of google.protobuf."""
    name = trouble.name if isinstance(trouble, ModuleNotFoundError) else None
    return name is not None and f"{module}.".startswith(f"{name}.")


def with_grpc_door(found: Finding, why: str) -> Finding:
    """The packages may all be there, and too old."""
    if not why:
        return found
    return replace(
        found,
        level="warn" if found.level == "ok" else found.level,
        found=f"{found.found}; a server here has no gRPC door for clients of fila.v1: {why}",
        advice=INSTALL,
    )


def extra(name: str, contents: Mapping[str, str]) -> Finding:
    """Imports what an extra brings: a package that is there may still not work."""
    there, missing, broken = [], [], []
    for package, module in contents.items():
        try:
            import_module(module)
            there.append(f"{package} {metadata.version(package)}")
        except ImportError as trouble:
            # PackageNotFoundError is one too: what can be imported without being installed is of unknown
            # version.
            if isinstance(trouble, metadata.PackageNotFoundError):
                there.append(package)
            elif _is_absent(module, trouble):
                missing.append(package)
            else:
                broken.append(f"{package} cannot be imported ({trouble})")
    found = [", ".join(there), f"missing: {', '.join(missing)}" if missing else "", "; ".join(broken)]
    level: Level = (
        "bad"
        if broken or (missing and name == "needed")
        else "ok"
        if not missing
        else "info"
        if name in _OPTIONAL
        else "warn"
    )
    install = "pip install fairlead" if name == "needed" else f"pip install 'fairlead[{name}]'"
    return Finding(
        "packages",
        name,
        level,
        "; ".join(part for part in found if part),
        install if missing or broken else "",
    )
