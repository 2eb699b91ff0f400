"""`fairlead tls`: an authority of one's own, to try TLS with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fairlead.cli.global_options import wrong_usage
from fairlead.cli.output import clean, show

if TYPE_CHECKING:
    from fairlead.testing.authority import Authority

_ALWAYS = ("localhost", "127.0.0.1", "::1")
_CA, _SERVER, _CLIENT = "ca", "server", "client"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Certificates to try TLS with.")
    group.command("init")(init)
    app.add_typer(group, name="tls")


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")] = Path(
        "fairlead-tls"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A name or address of the server, besides localhost."),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=397, metavar="DAYS", help="How long the certificates are valid.")
    ] = 397,
    renew: Annotated[
        bool, typer.Option("--renew", help="Sign new certificates with the authority that is in DIR.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is in DIR, the authority too.")
    ] = False,
) -> None:
    """Make a local authority, and certificates of a server and a client that it signs.

    For trying TLS out, for tests and for machines of your own; whoever has ca.key can pretend to be your
    server. A running server takes renewed files up by itself.
    """
    directory = directory.absolute()
    if renew and force:
        wrong_usage("expected --renew, which keeps the authority, or --force, which does not")
    hosts = list(dict.fromkeys([*_ALWAYS, *(_hosts_before(directory) if renew else ()), *(host or ())]))
    files = [directory / f"{name}.{kind}" for name in (_CA, _SERVER, _CLIENT) for kind in ("pem", "key")]
    there = [file for file in files if file.exists()]
    if there and not (renew or force):
        wrong_usage(
            f"expected no {there[0].name} in {directory}, there is one; give --renew to sign new certificates, --force to begin anew"
        )
    authority = _load(directory) if renew else _new()
    try:
        made = {_SERVER: authority.for_server(hosts, days=days), _CLIENT: authority.for_client(days=days)}
    except ValueError as wrong:
        wrong_usage(f"expected --host to be a host name or an address: {wrong}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not there:
        directory.chmod(0o700)
    for name, issued in made.items() if renew else {_CA: authority.issued, **made}.items():
        # The key first: a server that looks between the two finds a pair that does not fit, and waits for the
        # other half.
        _write(directory / f"{name}.key", issued.key, 0o600)
        _write(directory / f"{name}.pem", issued.cert, 0o644)
    ends = made[_SERVER].ends
    show(
        {
            "directory": str(directory),
            "files": {file.name: str(file) for file in files},
            "hosts": hosts,
            "ends": f"{ends:%Y-%m-%d}",
        },
        lambda: Text(
            "\n".join(
                clean(line)
                for line in _next_steps(directory, hosts, f"{ends:%Y-%m-%d}", renewed=renew).split("\n")
            )
        ),
    )


def _new() -> Authority:
    from fairlead.testing.authority import Authority

    return Authority()


def _load(directory: Path) -> Authority:
    from fairlead.testing.authority import Authority

    try:
        return Authority.load((directory / "ca.pem").read_bytes(), (directory / "ca.key").read_bytes())
    except FileNotFoundError as missing:
        wrong_usage(
            f"expected an authority in {directory} to renew with, found no {Path(missing.filename).name}; make one without --renew"
        )
    except ValueError:
        wrong_usage(
            f"expected ca.pem and ca.key in {directory} to be an authority's certificate and key in PEM; begin anew with --force"
        )


def _hosts_before(directory: Path) -> list[str]:
    """What was named once need not be named again."""
    from fairlead.testing.authority import hosts_of

    try:
        return hosts_of((directory / "server.pem").read_bytes())
    except (FileNotFoundError, ValueError):
        return []


def _write(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, and never for a moment readable by more than it should be."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
        os.fchmod(opened.fileno(), mode)
        opened.write(content)
    os.replace(new, path)


def _next_steps(directory: Path, hosts: list[str], ends: str, *, renewed: bool) -> str:
    def at(name: str) -> str:
        return shlex.quote(str(directory / name))

    if renewed:
        return f"renewed server.pem and client.pem in {directory} for {', '.join(hosts)}, until {ends}; a running server takes them up by itself"
    return f"""\
made in {directory}, valid until {ends}:
  ca.pem                  the authority: clients trust whom it has signed
  ca.key                  signs; keep it to yourself, or delete it when you need no more certificates
  server.pem, server.key  for {", ".join(hosts)}
  client.pem, client.key  for a client, where the server asks for a certificate

serve with it:
  fairlead serve --data ./data --set tls.cert={at("server.pem")} --set tls.key={at("server.key")}
and talk to it:
  fairlead --tls-ca {at("ca.pem")} queue list
  fairlead.connect("localhost:5554", tls={str(directory / "ca.pem")!r})

to let in only clients with a certificate, serve with this too:
  --set tls.client_ca={at("ca.pem")}
and talk to it:
  fairlead --tls-ca {at("ca.pem")} --tls-cert {at("client.pem")} --tls-key {at("client.key")} queue list"""
