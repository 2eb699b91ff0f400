"""`fairlead serve`."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import fairlead
from fairlead.cli.arrow import import_arrow_alone
from fairlead.cli.error_output import print_error
from fairlead.cli.global_options import current_options, wants_json
from fairlead.config import ServerSettings
from fairlead.config.load import SETTINGS, LoadedSettings, load_with_sources
from fairlead.errors import FairleadError, SettingInvalid
from fairlead.server import logs
from fairlead.server.arrow_memory import limit_arrow_memory
from fairlead.server.bootstrap import key_in_environment
from fairlead.server.fila import packages as fila_packages
from fairlead.server.repeats import Repeats
from fairlead.server.serve import Server, run
from fairlead.wire.statuses import status_of


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def _default(setting: str) -> str:
    return f"Default: {SETTINGS[setting].default}."


def serve(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Data directory, created if it does not exist.", show_default=False),
    ] = None,
    resp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Address of the Redis protocol door, for small calls, or off. {_default('resp')}",
        ),
    ] = None,
    flight: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Address of the Arrow Flight door, or off. {_default('flight')}"
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Address of the gRPC door, for fila.v1 clients, or off. {_default('grpc')}",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help=f"Address of the HTTP door, for health and metrics, or off. {_default('http')}",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Settings file in TOML. Default: the file in FAIRLEAD_CONFIG.",
            show_default=False,
        ),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            metavar="fsync|os",
            help=f"What a confirmed call survives: a power cut, or a crash of the server. {_default('durability')}",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            metavar="debug|info|warning|error", help=f"Least important events to log. {_default('log.level')}"
        ),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="text|json", help=f"Format of the log on stderr. {_default('log.format')}"),
    ] = None,
    insecure_public: Annotated[
        bool,
        typer.Option(
            "--insecure-public", help="Allow other machines to connect although keys or TLS are missing."
        ),
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set any other setting, such as limits.max_calls=64; may be repeated.",
        ),
    ] = None,
) -> None:
    """Serve a data directory until SIGTERM or Ctrl-C. Port 0 picks a free port and prints it.

    A stop accepts no more calls, lets calls in flight finish, and exits with 0; leases stay. Flags take
    precedence over the environment (FAIRLEAD_*), which takes precedence over the file.
    docs/reference/settings.md lists all settings.
    """
    flags: dict[str, object] = {
        "data": data or current_options().flag("data"),
        "resp": resp,
        "flight": flight,
        "grpc": grpc,
        "http": http,
        "durability": durability,
        "log.level": log_level,
        "log.format": log_format,
        "insecure_public": insecure_public or None,
    }
    loaded = load_with_sources(config, os.environ, flags | _split(setting or []))
    settings = loaded.settings
    bootstrap_key = key_in_environment(os.environ, settings.auth)
    # RocksDB makes files that other users can read, unless the umask of the process forbids it.
    os.umask(os.umask(0) | 0o077)
    logs.set_up(settings.log, repeats=Repeats())
    if "flight" in settings.addresses():
        # Before pyarrow is imported: pyarrow reads the limit only then. The Flight door reports a missing
        # pyarrow.
        with suppress(ModuleNotFoundError):
            limit_arrow_memory(settings.limits.max_arrow_bytes)
    import_arrow_alone()
    run_and_exit(Server(_with_doors_that_open(loaded), bootstrap_key=bootstrap_key))


def _with_doors_that_open(loaded: LoadedSettings) -> ServerSettings:
    """The settings, without the gRPC door if it cannot open. Imports gRPC only where the door is wanted."""
    why = "" if loaded.settings.grpc == "off" else fila_packages.why_unusable()
    if not why:
        return loaded.settings
    settings = fila_packages.settings_without(loaded, why)
    logs.event(
        logging.getLogger("fairlead.serve"),
        logging.INFO,
        f"the gRPC door, for clients of fila.v1, is off; to open the door: {fila_packages.INSTALL}",
        why=why,
    )
    return settings


def run_and_exit(server: Server) -> NoReturn:
    """Run the server; the process ends with `os._exit` in every case."""
    try:
        run(server, ready=lambda: _announce(server))
    except FairleadError as error:
        print_error(error)
        _exit(status_of(error).exit_code)
    except ModuleNotFoundError as missing:
        typer.echo(
            f"error: a server needs {missing.name}; install it with: pip install 'fairlead[server]'", err=True
        )
        _exit(1)
    except Exception:
        # A defect must end the process too, so that a supervisor notices it.
        logging.getLogger("fairlead.serve").exception("the server failed unexpectedly")
        _exit(1)
    _exit(0)


def _split(given: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            raise SettingInvalid("command line", "--set", f"expected NAME=VALUE, got {one!r}")
        found[name.strip()] = value
    return found


def _announce(server: Server) -> None:
    """Print the first lines on stdout: the addresses, with the ports that were picked."""
    data = server.settings.data
    if wants_json():
        record = {
            "fairlead": fairlead.__version__,
            "data": str(data),
            "pid": os.getpid(),
            "addresses": server.addresses,
        }
        typer.echo(json.dumps(record))
    else:
        typer.echo(f"fairlead {fairlead.__version__} serving {data}")
        for name, address in server.addresses.items():
            typer.echo(f"  {name:<7} {address}")
    sys.stdout.flush()


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed. sys.exit could hang: pyarrow's Flight server cannot always be shut down while a
    # client keeps an idle stream open, and the interpreter would wait for its threads.
    os._exit(code)
