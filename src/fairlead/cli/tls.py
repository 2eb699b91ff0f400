"""`fairlead tls`: a certificate authority of your own, to try TLS."""

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
    from fairlead.testing.authority import Authority, Issued

_ALWAYS = ("localhost", "127.0.0.1", "::1")
_CA, _SERVER, _CLIENT = "ca", "server", "client"


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Certificates to try TLS with.")
    group.command("init")(init)
    app.add_typer(group, name="tls")


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory for the files.")] = Path(
        "fairlead-tls"
    ),
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="Add a name or address of the server to localhost; may be repeated.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option(min=1, max=397, metavar="DAYS", help="How long the certificates are valid.")
    ] = 397,
    renew: Annotated[
        bool, typer.Option("--renew", help="Sign new certificates with the authority in DIR.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace all files in DIR, also the authority.")
    ] = False,
) -> None:
    """Create a local authority, and certificates that it signs for a server and a client.

    Use them to try TLS, for tests, and for machines of your own: everybody who has ca.key can impersonate
    your server. A running server loads renewed files by itself.
    """
    directory = directory.absolute()
    files = _files(directory)
    existing = [file for file in files if file.exists()]
    _check_usage(existing, renew=renew, force=force)
    before = _hosts_before(directory) if renew else []
    hosts = list(dict.fromkeys([*_ALWAYS, *before, *(host or ())]))
    authority = _authority(directory, renew=renew)
    try:
        made = {_SERVER: authority.for_server(hosts, days=days), _CLIENT: authority.for_client(days=days)}
    except ValueError as wrong:
        wrong_usage(f"expected --host to be a host name or an address: {wrong}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not existing:
        directory.chmod(0o700)
    _write_all(directory, made if renew else {_CA: authority.issued, **made})
    ends = f"{made[_SERVER].ends:%Y-%m-%d}"
    names = {file.name: str(file) for file in files}
    steps = _next_steps(directory, hosts, ends, renewed=renew)
    show(
        {"directory": str(directory), "files": names, "hosts": hosts, "ends": ends},
        lambda: Text("\n".join(map(clean, steps.split("\n")))),
    )


def _files(directory: Path) -> list[Path]:
    return [directory / f"{name}.{kind}" for name in (_CA, _SERVER, _CLIENT) for kind in ("pem", "key")]


def _check_usage(existing: list[Path], *, renew: bool, force: bool) -> None:
    if renew and force:
        wrong_usage("expected --renew, which keeps the authority, or --force, which replaces it; not both")
    if existing and not (renew or force):
        file = existing[0]
        wrong_usage(
            f"expected no {file.name} in {file.parent}, there is one; give --renew to sign new certificates, or --force to replace all files"
        )


def _write_all(directory: Path, made: dict[str, Issued]) -> None:
    for name, issued in made.items():
        # The key first: a server that reads between the two finds files that do not match, and waits for the
        # rest.
        _write(directory / f"{name}.key", issued.key, 0o600)
        _write(directory / f"{name}.pem", issued.cert, 0o644)


def _authority(directory: Path, *, renew: bool) -> Authority:
    """A new authority, or to renew certificates the one in the directory."""
    from fairlead.testing.authority import Authority

    if not renew:
        return Authority()
    try:
        return Authority.load((directory / "ca.pem").read_bytes(), (directory / "ca.key").read_bytes())
    except FileNotFoundError as missing:
        wrong_usage(
            f"expected an authority in {directory}, found no {Path(missing.filename).name}; create one without --renew"
        )
    except ValueError:
        wrong_usage(
            f"expected ca.pem and ca.key in {directory} to be an authority's certificate and key in PEM; replace them with --force"
        )


def _hosts_before(directory: Path) -> list[str]:
    """The hosts of the certificate in the directory, which --renew keeps."""
    from fairlead.testing.authority import hosts_of

    try:
        return hosts_of((directory / "server.pem").read_bytes())
    except (FileNotFoundError, ValueError):
        return []


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically; other users can never read a secret one, not even while it is written."""
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
        return f"renewed server.pem and client.pem in {directory} for {', '.join(hosts)}, until {ends}; a running server loads them by itself"
    return f"""\
created in {directory}, valid until {ends}:
  ca.pem                  the authority: clients trust the certificates that it signs
  ca.key                  signs certificates; keep it secret, or delete it when you need no more certificates
  server.pem, server.key  for {", ".join(hosts)}
  client.pem, client.key  for a client, where the server asks for a certificate

serve with these files:
  fairlead serve --data ./data --set tls.cert={at("server.pem")} --set tls.key={at("server.key")}
and connect:
  fairlead --tls-ca {at("ca.pem")} queue list
  fairlead.connect("localhost:5554", tls={str(directory / "ca.pem")!r})

to accept only clients with a certificate, serve with this setting too:
  --set tls.client_ca={at("ca.pem")}
and connect:
  fairlead --tls-ca {at("ca.pem")} --tls-cert {at("client.pem")} --tls-key {at("client.key")} queue list"""
