"""The broker that a command acts on: a broker in this process on a data directory, or a server."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import typer

import fairlead
from fairlead.cli import credentials
from fairlead.cli.global_options import DEFAULT_WAIT, current_options, in_project, wrong_usage
from fairlead.config.load import load_redaction
from fairlead.errors import (
    ConfigKeyNotFound,
    ConsumerNotFound,
    FairleadError,
    QueueNotFound,
    ServerUnreachable,
    StoreLocked,
    TlsFailed,
)
from fairlead.model.durations import to_ms
from fairlead.request import Caller

if TYPE_CHECKING:
    from fairlead.client.client import Client
    from fairlead.middleware.stack import AdmittedCaller

    #: Both have the same verbs, so commands need not know which one they have.
    Target = AdmittedCaller | Client
else:
    Target = Any

#: How long a server may take for one call: an operation on millions of messages is slow.
_TIMEOUT = "5m"
#: When a command that waits for a server prints so at a terminal.
_SILENCE_S = 1.0


@contextmanager
def open_target(*, create: bool = False, patience: str = "") -> Iterator[Target]:
    """Open the broker or client that `--data` or `--addr` names; it is closed when the block ends.

    A data directory that does not exist is created only with `create`: a mistyped name must not look like an
    empty broker.
    """
    options = current_options()
    where = options.target()
    opened: AbstractContextManager[Target]
    if isinstance(where, Path):
        opened = _open_local(where, create)
    else:
        opened = _connect(where, options.wait or patience or DEFAULT_WAIT)
    with opened as target:
        try:
            yield target
        except QueueNotFound as unknown:
            _suggest_queue(target, unknown)
            raise
        except (ConfigKeyNotFound, ConsumerNotFound) as unknown:
            _suggest_name(target, unknown)
            raise


@contextmanager
def _open_local(path: Path, create: bool) -> Iterator[Target]:
    """Everybody who can open the directory may do everything in it; the audit records the user."""
    with open_directory(path, create=create) as broker:
        yield as_local_user(broker)


def as_local_user(broker: fairlead.Broker) -> AdmittedCaller:
    from fairlead.decide.redact import Redaction
    from fairlead.middleware.stack import AdmittedCaller, Layers

    redact = load_redaction(os.environ)
    return AdmittedCaller(Layers(broker, Redaction(redact.headers, redact.json_paths)), local_caller())


def local_caller() -> Caller:
    """The user of this process, as the audit records it."""
    return Caller(None, f"local:{_user()}", "data directory")


def open_directory(path: Path, *, create: bool = False) -> fairlead.Broker:
    # The import brings the engine, which a command at a server does not need.
    from fairlead.store.rocks.format import FORMAT_FILE

    if not create and not (path / FORMAT_FILE).exists():
        wrong_usage(
            f"expected {path} to be a data directory, which it is not; create one with: fairlead --data {path} queue create NAME"
        )
    try:
        return fairlead.open(path)
    except StoreLocked as locked:
        locked.add_note("if a server has the directory open, use the server: --addr HOST:PORT")
        raise


def _user() -> str:
    """The name of the user id of this process; the environment could name another user."""
    try:
        import pwd
    except ImportError:
        return getpass.getuser()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _connect(addr: str, wait: str) -> Client:
    wait_ms = to_ms(wait, "--wait")
    notice = Timer(_SILENCE_S, typer.echo, [f"no answer from {addr} yet; trying for {wait}"], {"err": True})
    notice.daemon = True
    if sys.stderr.isatty() and wait_ms > _SILENCE_S * 1000:
        notice.start()
    try:
        return fairlead.connect(
            addr, retry_for=wait, timeout=_TIMEOUT, api_key=credentials.api_key(), tls=credentials.tls()
        )
    except ServerUnreachable as unreachable:
        if not isinstance(unreachable, TlsFailed):
            unreachable.add_note(f"tried for {wait}; --wait DURATION tries longer")
        if current_options().addr is None:
            unreachable.add_note("name the server with --addr HOST:PORT, or a data directory with --data DIR")
        raise
    finally:
        notice.cancel()


def _suggest_queue(target: Target, unknown: QueueNotFound) -> None:
    try:
        names = [name for name in queue_names(target) if name.startswith(in_project(""))]
    except FairleadError:
        return
    near = nearest(unknown.queue, names)
    if near:
        unknown.add_note(f"did you mean {near}?")
    elif names:
        unknown.add_note("list the queues with: fairlead queue list")
    else:
        project = current_options().project
        where = f" in project {project!r}" if project else ""
        unknown.add_note(
            f"there are no queues{where} yet; create this one with: fairlead queue create {unknown.queue}"
        )


def _suggest_name(target: Target, unknown: ConfigKeyNotFound | ConsumerNotFound) -> None:
    if isinstance(unknown, ConfigKeyNotFound):
        near, otherwise = nearest(unknown.key, list(target.config.list())), ""
    else:
        names = [info.name for info in target.consumers.list() if info.queue == unknown.queue]
        near, otherwise = nearest(unknown.name, names), "list the consumers with: fairlead consumer list"
    if near or otherwise:
        unknown.add_note(f"did you mean {near}?" if near else otherwise)


def queue_names(target: Target) -> list[str]:
    return [queue.name for queue in target.queues()]


def nearest(given: str, known: Sequence[str]) -> str:
    """Return the names most similar to the given one, such as `'orders' or 'order'`, or "" when none is
    similar.
    """
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(name.lower(), name)
    return " or ".join(
        repr(folded[match]) for match in get_close_matches(given.lower(), list(folded), n=3, cutoff=0.6)
    )
