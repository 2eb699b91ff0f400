"""`fairlead doctor`: check the installation, a data directory and a server, with advice for each problem."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fairlead.cli import credentials
from fairlead.cli.certificate_checks import certificates
from fairlead.cli.data_checks import data_directory
from fairlead.cli.findings import Finding
from fairlead.cli.global_options import DEFAULT_ADDR, GlobalOptions, current_options
from fairlead.cli.machine_checks import machine, packages
from fairlead.cli.output import clean, console, show
from fairlead.cli.security_checks import security
from fairlead.cli.server_checks import server
from fairlead.cli.spark_checks import spark
from fairlead.client.addresses import read_endpoint
from fairlead.client.tls import Tls
from fairlead.config import Settings
from fairlead.config.load import SETTINGS
from fairlead.model.addresses import join_address, split_address

_PORTS = {door: split_address(SETTINGS[door].default)[1] for door in ("flight", "grpc", "http")}
_STYLES = {"ok": "green", "info": "blue", "warn": "bold yellow", "bad": "bold red"}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    flight: Annotated[
        str | None,
        typer.Option(
            "--flight",
            metavar="HOST:PORT",
            help=f"Address of the server's Flight door. Default: port {_PORTS['flight']} of its host.",
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            "--grpc",
            metavar="HOST:PORT",
            help=f"Address of the server's gRPC door. Default: port {_PORTS['grpc']} of its host.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help=f"Address of the server's HTTP door. Default: port {_PORTS['http']} of its host.",
        ),
    ] = None,
) -> None:
    """Check this machine, the packages, Spark, a data directory (--data), a server (--addr) and its
    certificates (--tls-ca).

    Each line of the report is ok, info, warn or bad, with advice where there is a problem. The exit code is 1
    if a line is bad.
    """
    asked = current_options()
    with console(stderr=True).status("checking"):
        found = list(examine(asked, {"flight": flight, "grpc": grpc, "http": http}))
    bad = any(finding.level == "bad" for finding in found)
    show({"ok": not bad, "checks": found}, lambda: findings_view(found))
    if bad:
        raise typer.Exit(1)


def examine(asked: GlobalOptions, given: Mapping[str, str | None]) -> Iterator[Finding]:
    data, addr = asked.data, asked.addr
    yield from _carefully("machine", machine())
    yield from _carefully("packages", packages())
    yield from _carefully("spark", spark(os.environ))
    if data is None:
        yield Finding("data", "directory", "info", "none given", "give --data DIR to check a data directory")
    else:
        yield from _carefully("data", data_directory(data, Settings()))
    at = read_endpoint(addr or DEFAULT_ADDR)
    tls = credentials.tls() or (Tls() if at.is_tls else None)
    others = {
        door: given[door] or join_address(at.host or "127.0.0.1", port) for door, port in _PORTS.items()
    }
    key = credentials.api_key()
    yield from _carefully("server", server(at, others, asked=addr is not None, tls=tls, api_key=key))
    yield from _carefully("security", security(data, at, tls, asked, os.environ))
    yield from _carefully("certificates", certificates(tls, {"resp": str(at), **others}))


def _carefully(area: str, checks: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings; turn an unexpected exception into one, so that the other checks still run."""
    try:
        yield from checks
    except Exception as trouble:
        yield Finding(area, "check", "bad", f"the check failed: {type(trouble).__name__}: {trouble}")


def findings_view(found: Sequence[Finding]) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    area = ""
    for finding in found:
        text = Text(clean(finding.found))
        if finding.advice:
            text.append(
                f"\n→ {clean(finding.advice)}", style="dim" if finding.level in ("ok", "info") else "bold"
            )
        first = Text("" if finding.area == area else finding.area, style="bold")
        area = finding.area
        table.add_row(first, Text(finding.level, style=_STYLES[finding.level]), finding.name, text)
    return table
