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
        Path | None, typer.Option(help="Data directory; made if there is none.", show_default=False)
    ] = None,
    resp: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"Door for small calls, which speaks Redis, or off. {_default('resp')}"
        ),
    ] = None,
    flight: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Arrow Flight door, or off. {_default('flight')}")
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help=f"gRPC door for fila.v1 clients, or off. {_default('grpc')}"),
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Health and metrics, or off. {_default('http')}")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file, in TOML; FAIRLEAD_CONFIG names one too.", show_default=False),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            metavar="fsync|os", help=f"What a confirmed call has survived. {_default('durability')}"
        ),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="debug|info|warning|error", help=_default("log.level"))
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option(metavar="text|json", help=f"Form of the log on stderr. {_default('log.format')}"),
    ] = None,
    insecure_public: Annotated[
        bool, typer.Option("--insecure-public", help="Let others reach it although keys or TLS are missing.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, such as limits.max_calls=64."),
    ] = None,
) -> None:
    """Serve a data directory until SIGTERM or Ctrl-C; port 0 picks a free port and prints it.

    A stop takes no more work, lets calls in flight finish, and exits with 0; leases stay. Settings come from
    flags, then the environment (FAIRLEAD_*), then the file; docs/reference/settings.md has them all.
    """
    flags: dict[str, object] = {
        "data": data or current_options().data,
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
    # RocksDB lets everybody read its files unless the process says otherwise.
    os.umask(os.umask(0) | 0o077)
    logs.set_up(settings.log, repeats=Repeats())
    if "flight" in settings.addresses():
        # First of all: pyarrow reads its ceiling when it is loaded, and never again. Where it is not
        # installed, its door says so.
        with suppress(ModuleNotFoundError):
            limit_arrow_memory(settings.limits.max_arrow_bytes)
    import_arrow_alone()
    run_and_exit(Server(_with_doors_that_open(loaded), bootstrap_key=bootstrap_key))


def _with_doors_that_open(loaded: LoadedSettings) -> ServerSettings:
    """Imports gRPC only where its door is wanted."""
    why = "" if loaded.settings.grpc == "off" else fila_packages.why_unusable()
    if not why:
        return loaded.settings
    settings = fila_packages.settings_without(loaded, why)
    logs.event(
        logging.getLogger("fairlead.serve"),
        logging.INFO,
        f"the gRPC door, for clients of fila.v1, is off; to open it: {fila_packages.INSTALL}",
        why=why,
    )
    return settings


def run_and_exit(server: Server) -> NoReturn:
    """From here on the process ends with `_exit`, whatever happens."""
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
        # Also a defect must end the process, for a supervisor to see it.
        logging.getLogger("fairlead.serve").exception("the server has failed in a way that nobody foresaw")
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
    """The first lines on stdout: where to connect, with the ports that were picked."""
    data = server.settings.data
    if wants_json():
        typer.echo(
            json.dumps(
                {
                    "fairlead": fairlead.__version__,
                    "data": str(data),
                    "pid": os.getpid(),
                    "addresses": server.addresses,
                }
            )
        )
    else:
        typer.echo(f"fairlead {fairlead.__version__} serving {data}")
        for name, address in server.addresses.items():
            typer.echo(f"  {name:<7} {address}")
    sys.stdout.flush()


def _exit(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is closed by now. Not sys.exit: pyarrow's Flight server cannot always be shut down while a
    # client keeps an idle stream open, and the interpreter would wait for its threads for ever.
    os._exit(code)
