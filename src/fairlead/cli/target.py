"""Where a command acts: on a broker in this process over a data directory, or on a server."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import typer

import fairlead
from fairlead.cli import credentials
from fairlead.cli.global_options import PATIENCE, current_options, in_project, wrong_usage
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

    #: They have the same verbs, so no command asks which one it has.
    Target = AdmittedCaller | Client
else:
    Target = Any

#: How long a server may take for one command: an operation on millions of messages takes its time.
_TIMEOUT = "5m"
#: After how long it says at a terminal what it is waiting for, if it waits longer than this.
_SILENCE_S = 1.0


@contextmanager
def open_target(*, create: bool = False, patience: str = "") -> Iterator[Target]:
    """The broker or client that `--data` or `--addr` names, closed when the block ends.

    A data directory that does not exist is made only with `create`: a slip in its name must not look like an
    empty broker.
    """
    where = current_options().target()
    with (
        _opened(where, create)
        if isinstance(where, Path)
        else _connect(where, current_options().wait or patience or PATIENCE) as target
    ):
        try:
            yield target
        except QueueNotFound as unknown:
            _suggest(target, unknown)
            raise
        except (ConfigKeyNotFound, ConsumerNotFound) as unknown:
            _suggest_name(target, unknown)
            raise


@contextmanager
def _opened(path: Path, create: bool) -> Iterator[Target]:
    """Whoever can open the directory may do everything in it, and the audit says that they did."""
    with open_directory(path, create=create) as broker:
        yield as_local_user(broker)


def as_local_user(broker: fairlead.Broker) -> AdmittedCaller:
    from fairlead.decide.redact import Redaction
    from fairlead.middleware.stack import AdmittedCaller, Layers

    redact = load_redaction(os.environ)
    return AdmittedCaller(Layers(broker, Redaction(redact.headers, redact.json_paths)), local_caller())


def local_caller() -> Caller:
    """Whoever can open the directory."""
    return Caller(None, f"local:{_user()}", "data directory")


def open_directory(path: Path, *, create: bool = False) -> fairlead.Broker:
    from fairlead.store.rocks.format import (
        FORMAT_FILE,
    )  # brings the engine, which a command at a server does not need

    if not create and not (path / FORMAT_FILE).exists():
        wrong_usage(
            f"expected {path} to be a data directory, found none; `fairlead --data {path} queue create NAME` makes one"
        )
    try:
        return fairlead.open(path)
    except StoreLocked as locked:
        locked.add_note("if a server has it open, talk to the server instead: --addr HOST:PORT")
        raise


def _user() -> str:
    """By number where the system has numbers: the environment says what somebody told it."""
    try:
        import pwd
    except ImportError:
        return getpass.getuser()
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _connect(addr: str, patience: str) -> Client:
    patience_ms = to_ms(patience, "--wait")
    waiting = Timer(
        _SILENCE_S, typer.echo, [f"no answer from {addr} yet; trying for {patience}"], {"err": True}
    )
    waiting.daemon = True
    if sys.stderr.isatty() and patience_ms > _SILENCE_S * 1000:
        waiting.start()
    try:
        return fairlead.connect(
            addr, retry_for=patience, timeout=_TIMEOUT, api_key=credentials.api_key(), tls=credentials.tls()
        )
    except ServerUnreachable as unreachable:
        if not isinstance(unreachable, TlsFailed):
            unreachable.add_note(f"tried for {patience}; --wait DURATION tries longer")
        if current_options().addr is None and current_options().addr_from_env is None:
            unreachable.add_note("say which server with --addr HOST:PORT, or which directory with --data DIR")
        raise
    finally:
        waiting.cancel()


def _suggest(target: Target, unknown: QueueNotFound) -> None:
    try:
        names = [name for name in queue_names(target) if name.startswith(in_project(""))]
    except FairleadError:
        return
    near = nearest(unknown.queue, names)
    if near:
        unknown.add_note(f"did you mean {near}?")
    elif names:
        unknown.add_note("see which there are with: fairlead queue list")
    else:
        there = f" in project {current_options().project!r}" if current_options().project else ""
        unknown.add_note(f"there is no queue{there} yet; make it with: fairlead queue create {unknown.queue}")


def _suggest_name(target: Target, unknown: ConfigKeyNotFound | ConsumerNotFound) -> None:
    if isinstance(unknown, ConfigKeyNotFound):
        near, otherwise = nearest(unknown.key, list(target.config.list())), ""
    else:
        names = [info.name for info in target.consumers.list() if info.queue == unknown.queue]
        near, otherwise = nearest(unknown.name, names), "see which there are with: fairlead consumer list"
    if near or otherwise:
        unknown.add_note(f"did you mean {near}?" if near else otherwise)


def queue_names(target: Target) -> list[str]:
    return [queue.name for queue in target.queues()]


def nearest(given: str, known: list[str]) -> str:
    """The names someone may have meant, as in `'orders' or 'order'`; "" when none is near."""
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(name.lower(), name)
    return " or ".join(
        repr(folded[match]) for match in get_close_matches(given.lower(), list(folded), n=3, cutoff=0.6)
    )
