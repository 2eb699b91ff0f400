"""`fairlead key`: API keys and their rights.

A secret is printed once, alone on stdout, so that a script can read it; text about it goes to stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from fairlead.cli.confirm import Yes, confirm
from fairlead.cli.from_table import from_verb
from fairlead.cli.global_options import current_options, wants_json, wrong_usage
from fairlead.cli.key_arguments import find_key, key_argument, read_grant_arguments, show_grants
from fairlead.cli.output import age, clean, cut, now_ms, pairs, print_note, show, show_json, table, when
from fairlead.cli.target import Target, local_caller, open_directory, open_target
from fairlead.errors import KeyNotFound
from fairlead.middleware.audit import recorded
from fairlead.model.access import EVERY_RIGHT, KeyInfo, NewKey, Right
from fairlead.server.bootstrap import BOOTSTRAP, BOOTSTRAP_FILE, renew_bootstrap_key
from fairlead.server.secret_file import SecretFile
from fairlead.verbs.keys import KeysSetGrants

_GRANT_HELP = f"Rights on queues, such as produce:orders.* or produce,consume:orders. Rights: {', '.join(Right)}; or all."
To = Annotated[
    Path | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="Write the secret to this file, readable only by its owner, instead of printing it.",
    ),
]


def _grants(kind: Callable[..., Any], *names: str, help: str, metavar: str = "RIGHT:PATTERN") -> Any:
    return kind(*names, metavar=metavar, help=help, callback=read_grant_arguments)


def register(app: typer.Typer) -> None:
    key = typer.Typer(no_args_is_help=True, help="API keys: who may do what at a server.")
    key.command("create")(create)
    key.command("list")(list_all)
    key.command("show")(show_one)
    key.command("grant")(grant)
    key.command("rotate")(rotate)
    key.command("revoke")(revoke)
    key.command("bootstrap")(bootstrap)
    app.add_typer(key, name="key")


@from_verb(
    "keys.create",
    params={"grants": _grants(typer.Option, "--grant", "-g", help=_GRANT_HELP)},
    without=("expires_in", "expires_at"),
)
def create(
    request: Any,
    every: Annotated[
        bool, typer.Option("--all", help="Give every right on every queue, and on the keys of all others.")
    ] = False,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="DURATION|DATE",
            help="When the key expires, such as 30d, or 2030-12-31 (00:00 UTC). Default: never.",
        ),
    ] = None,
    to: To = None,
) -> None:
    """Create a key and show its secret, which is never shown again.

    You can give only rights that your own key has, on queues where it also has admin, and for no longer than
    your key lasts.
    """
    if every and request.grants:
        wrong_usage("expected --all or --grant, not both")
    if every:
        request = replace(request, grants=[str(right) for right in EVERY_RIGHT])
    request = replace(request, **_end(expires))
    with (
        open_target(create=True) as target,
        SecretFile(to, exclusive=True) if to is not None else nullcontext() as file,
    ):
        _show_secret(target.do(request), file, "created")


@from_verb("keys.list")
def list_all(
    request: Any,
    name: Annotated[
        str, typer.Argument(metavar="PREFIX", help="List only keys whose names begin with it.")
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum of keys in the table; JSON has all."),
    ] = 200,
) -> None:
    """List the keys that your own key may change, and your own key."""
    with open_target() as target:
        found = [info for info in target.do(request) if info.name.startswith(name)]
    show(found, lambda: _listed(found, limit))


def _listed(found: list[KeyInfo], limit: int) -> RenderableType:
    """Bounded, because the layout of a table takes a third of a millisecond a row."""
    if not found:
        return "there are no keys yet; create one with: fairlead key create NAME --grant RIGHT:PATTERN"
    lines = table("id", "name", "rights", "last used", "expires", flexible=("name", "rights"))
    for info in found[:limit]:
        lines.add_row(
            info.id, cut(clean(info.name)), cut(show_grants(info.grants)), _last_use(info), _ends(info)
        )
    if len(found) <= limit:
        return lines
    return Group(lines, f"{len(found) - limit:,} more; list them with --limit or a PREFIX of their names")


@from_verb("keys.show", params={"key_id": key_argument()})
def show_one(request: Any) -> None:
    """Show one key; without KEY, the key that you use."""
    with open_target() as target:
        try:
            info = find_key(target, request.key_id) if request.key_id else target.do(request)
        except KeyNotFound:
            if request.key_id:
                raise
            _show_no_key()
            return
    created = f"{when(info.created_at)} by {clean(info.created_by)}"
    rows: list[tuple[str, RenderableType]] = [
        ("id", info.id),
        ("name", clean(info.name)),
        ("rights", show_grants(info.grants)),
        ("created", created),
        ("last used", _last_use(info)),
        ("expires", _ends(info)),
    ]
    show(info, lambda: pairs(rows))


def _show_no_key() -> None:
    why = "the server asks for none, so everybody who reaches it may do everything"
    if isinstance(current_options().target(), Path):
        why = "everybody who can open the data directory may do everything"
    show({"id": None, "grants": [str(one) for one in EVERY_RIGHT]}, f"no key: {why}")


@from_verb(
    "keys.change_grants",
    params={
        "key_id": key_argument(),
        "add": _grants(typer.Argument, help=_GRANT_HELP, metavar="[RIGHT:PATTERN]..."),
        "remove": _grants(typer.Option, help="Remove this right; the key must have it."),
    },
)
def grant(
    request: Any,
    only: Annotated[
        bool,
        typer.Option("--only", help="Give exactly these rights and remove all others; without rights, all."),
    ] = False,
) -> None:
    """Add rights to a key, or remove some. The change applies from the key's next call on."""
    if only and request.remove:
        wrong_usage("expected --only or --remove, not both")
    if not (request.add or request.remove or only):
        wrong_usage("expected rights to add, --remove RIGHT:PATTERN, or --only")
    with open_target() as target:
        key_id = find_key(target, request.key_id).id
        set_or_change = KeysSetGrants(key_id, request.add) if only else replace(request, key_id=key_id)
        info = target.do(set_or_change)
    show(info, f"key {_named(info)} has {show_grants(info.grants)}")


@from_verb("keys.rotate", params={"key_id": key_argument()})
def rotate(request: Any, to: To = None) -> None:
    """Replace a key by a new one with the same name, rights and expiry and another secret.

    The key may be your own. A file given with --to is replaced.
    """
    with open_target() as target, SecretFile(to) if to is not None else nullcontext() as file:
        old, keep = find_key(target, request.key_id), request.keep
        ends = f"stays valid for {keep}" if keep else "is no longer valid"
        made = target.do(replace(request, key_id=old.id))
        _show_secret(made, file, f"replaces {old.id}, which {ends}")


@from_verb("keys.revoke", params={"key_id": key_argument()})
def revoke(request: Any, yes: Yes = False) -> None:
    with open_target() as target:
        info = find_key(target, request.key_id)
        known = (
            f"{show_grants(info.grants)}, last used {_last_use(info)}{_last_with_every_right(target, info)}"
        )
        confirm(f"revoke key {_named(info)}: {known}", yes=yes)
        target.do(replace(request, key_id=info.id))
    show({"id": info.id, "revoked": True}, f"key {_named(info)} is revoked")


def bootstrap(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help=f"File from which the server reads the key. Default: {BOOTSTRAP_FILE} in the data directory.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Replace a lost bootstrap key by a new one with every right (needs --data, with no server on it).

    Other keys stay as they are.
    """
    where = current_options().target()
    if not isinstance(where, Path):
        wrong_usage(
            "expected --data DIR: this command opens the data directory itself; at a server use: fairlead key create NAME --all"
        )
    file = to or where / BOOTSTRAP_FILE
    with open_directory(where) as broker:
        old = next((info for info in broker.keys.list() if info.name == BOOTSTRAP), None)
        if old is not None or file.exists():
            old_key = f"revoke bootstrap key {old.id}" if old else "replace the bootstrap key"
            confirm(f"{old_key} and write a new key to {file}", yes=yes)
        with recorded(broker.audit_trail, local_caller(), "keys.bootstrap", details={"file": file}):
            info = renew_bootstrap_key(broker, file.absolute())
    show(
        asdict(info) | {"file": str(file)},
        f"key {_named(info)} is in {clean(str(file))}; use it with: --api-key-file {clean(str(file))}",
    )


def _show_secret(made: NewKey, file: SecretFile | None, what: str) -> None:
    record = asdict(made.info)
    if file is not None:
        try:
            file.write(made.secret)
        except OSError:
            # The key exists already, and without its secret it is useless.
            _print_secret(made, record)
            raise
        show(
            record | {"file": str(file.path)},
            f"key {_named(made.info)} {what}; its secret is in {clean(str(file.path))}",
        )
        return
    print_note(f"key {_named(made.info)} {what}: {show_grants(made.info.grants)}, {_ending(made.info)}")
    _print_secret(made, record)
    print_note(
        "The line above is the secret. It is not stored and not shown again. Use it with --api-key-file FILE or FAIRLEAD_API_KEY."
    )


def _print_secret(made: NewKey, record: dict[str, Any]) -> None:
    if wants_json():
        show_json(record | {"secret": made.secret})
    else:
        typer.echo(made.secret)


def _end(expires: str | None) -> dict[str, Any]:
    """Read --expires into fields of the request. A key with a date expires when that day begins in UTC."""
    if expires is None:
        return {}
    if "-" not in expires:
        return {"expires_in": expires}
    try:
        at = datetime.fromisoformat(expires)
    except ValueError:
        wrong_usage(
            f"expected --expires to be a duration such as 30d, or a date such as 2030-12-31, got {expires!r}"
        )
    return {"expires_at": round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)}


def _named(info: KeyInfo) -> str:
    return f"{info.id} {clean(info.name)!r}"


def _last_use(info: KeyInfo) -> str:
    return "never" if info.last_used_at is None else age(info.last_used_at)


def _ends(info: KeyInfo) -> Text:
    if info.expires_at is None:
        return Text("never")
    if info.expires_at <= now_ms():
        return Text(f"expired {age(info.expires_at)}", style="bold red")
    return Text(age(info.expires_at))


def _ending(info: KeyInfo) -> str:
    return "never expires" if info.expires_at is None else f"expires {when(info.expires_at)}"


def _last_with_every_right(target: Target, info: KeyInfo) -> str:
    """A warning before the last key with every right is revoked, else ""."""
    every = {str(grant) for grant in EVERY_RIGHT}
    holders = [
        other.id
        for other in target.keys.list()
        if every.issubset(other.grants) and (other.expires_at or now_ms() + 1) > now_ms()
    ]
    return "; no other key has every right" if holders == [info.id] else ""
