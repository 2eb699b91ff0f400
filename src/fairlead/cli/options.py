"""The options of a queue as flags, read into the options of `create_queue` and `update_queue`.

The engine checks the values. Here is only what the command line adds: short forms of policies, scripts from
files, and `off`, which removes an option.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from fairlead.cli.global_options import wrong_usage
from fairlead.cli.parameters import keyword, with_parameters

OFF = "off"


class _QueueOption(NamedTuple):
    kind: Any
    metavar: str | None
    help: str
    #: Reads the text; the second argument is the flag, for errors.
    read: Callable[[Any, str], Any] = lambda value, flag: value
    may_be_off: bool = False
    at_least: int | None = None
    flags: tuple[str, ...] = ()


def _count(help: str) -> _QueueOption:
    return _QueueOption(int, "N", help, at_least=0)


def _retention(help: str) -> _QueueOption:
    return _QueueOption(str, "DURATION", help, may_be_off=True)


def read_queue_options(**given: Any) -> dict[str, Any]:
    """Read the options that were given; Typer gives None or an empty list for the others."""
    return {name: _read(name, value) for name, value in given.items() if value not in (None, [])}


def _read(name: str, value: Any) -> Any:
    option = _OPTIONS[name]
    if option.may_be_off and value == OFF:
        return None
    return option.read(value, _flag(name))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _read_lease(text: str, flag: str) -> str:
    return f"{text}ms" if text.isascii() and text.isdigit() else text


def read_policy_text(text: str, flag: str) -> object:
    """Read `none`, `exponential,base=30s,attempts=10`, or JSON."""
    if text.lstrip()[:1] in ("{", '"'):
        return _read_json(text, flag)
    kind, _, rest = text.partition(",")
    if "=" in kind:
        return _read_fields(text, flag)
    return {"policy": kind.strip(), **_read_fields(rest, flag)} if rest else kind.strip()


def _read_by_reason(given: list[str], flag: str) -> dict[str, object]:
    if given == [OFF]:
        return {}
    found: dict[str, object] = {}
    for text in given:
        if text.lstrip().startswith("{"):
            read = _read_json(text, flag)
            found.update(read if isinstance(read, dict) else {})
            continue
        reason, equals, policy = text.partition("=")
        if not equals:
            wrong_usage(
                f"expected {flag} to be REASON=POLICY, such as timeout_exceeded=fixed,cooldown=10s; got {text!r}"
            )
        found[reason.strip()] = read_policy_text(policy, flag)
    return found


def _read_fields(text: str, flag: str) -> dict[str, object]:
    """Read `a=1,b=30s`, or a JSON object; numbers become numbers."""
    if text.lstrip().startswith("{"):
        read = _read_json(text, flag)
        return read if isinstance(read, dict) else {}
    fields: dict[str, object] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            wrong_usage(f"expected {flag} to be a list such as name=value,name=value; got {text!r}")
        fields[name.strip()] = _number(value.strip())
    return fields


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _read_json(text: str, flag: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as wrong:
        wrong_usage(f"expected {flag} to be JSON: {wrong}")


def _read_script(text: str, flag: str) -> str:
    """Return a script, from a file unless the text is one: every script has a function or several lines."""
    if "function" in text or "\n" in text:
        return text
    path = Path(text)
    if not path.is_file():
        wrong_usage(f"expected {flag} to be a file or the text of a Lua script; there is no file {text!r}")
    return path.read_text(encoding="utf-8")


_OPTIONS: dict[str, _QueueOption] = {
    "visibility_timeout": _QueueOption(
        str, "DURATION", "How long a lease lasts, such as 30s; a bare number is milliseconds.", _read_lease
    ),
    "retry": _QueueOption(
        str,
        "POLICY",
        "Retry policy: none, immediate, 'fixed,cooldown=30s,attempts=5', or JSON.",
        read_policy_text,
    ),
    "retry_in_stream": _QueueOption(
        str,
        "POLICY",
        "Retry policy for messages of a stream. off: the policy of --retry.",
        read_policy_text,
        may_be_off=True,
    ),
    "retry_on": _QueueOption(
        list[str],
        "REASON=POLICY",
        "Retry policy for one failure reason; may be repeated. off: none.",
        _read_by_reason,
    ),
    "failure_breaker": _QueueOption(
        str,
        "SETTING",
        "After many failures of one reason, delay retries: 'failures=50,within=1m,pause=5m'. off: never.",
        _read_fields,
        may_be_off=True,
    ),
    "on_enqueue": _QueueOption(
        str,
        "FILE|LUA",
        "Lua script that assigns fairness key, weight, throttle keys and stream. off: none.",
        _read_script,
        may_be_off=True,
    ),
    "on_failure": _QueueOption(
        str,
        "FILE|LUA",
        "Lua script that decides between a retry and a dead letter. off: none.",
        _read_script,
        may_be_off=True,
    ),
    "max_attempts": _count("A message dies on its N-th failure, whatever a policy decides. 0: no limit."),
    "max_deliveries": _count("A message dies instead of being delivered more than N times. 0: no limit."),
    "max_messages": _count("Maximum of messages in the queue. 0: no limit."),
    "max_bytes": _count("Maximum bytes of headers and payloads in the queue. 0: no limit."),
    "max_unsettled_per_consumer": _count("Maximum of messages that one consumer holds. 0: no limit."),
    "max_unsettled_per_key": _count("Maximum of leased messages of one fairness key. 0: no limit."),
    "poison_after": _count("Attempts from which a live message is reported as poison. 0: never."),
    "quantum": _QueueOption(int, "N", "Messages that a fairness key of weight 1 gets per turn.", at_least=1),
    "ttl": _retention("Time to live of a message that is not leased. off: no limit."),
    "expired_to_dead": _QueueOption(
        bool,
        None,
        "Whether a message becomes a dead letter or is dropped when its time to live ends.",
        flags=("--expired-to-dead/--expired-dropped",),
    ),
    "dead_retention": _retention("How long dead letters are kept. off: no limit."),
    "retain_completed": _retention("How long completed messages are kept for inspection. off: not at all."),
    "dedup": _QueueOption(
        str,
        "DURATION|live|kept",
        "How long a dedup key is remembered: a time, while its message is live, or also while it is retained.",
    ),
    "ordering": _QueueOption(
        str,
        "release|strict|none",
        "Order in streams. release: a released message may pass one that waits. strict: never. none: no order.",
    ),
}


def _parameter(name: str, option: _QueueOption) -> Any:
    info = typer.Option(*option.flags, metavar=option.metavar, help=option.help, min=option.at_least)
    return keyword(name, Annotated[option.kind | None, info], None)


with_parameters(
    read_queue_options,
    [_parameter(name, option) for name, option in _OPTIONS.items()],
    name="read_queue_options",
    doc=read_queue_options.__doc__,
)
