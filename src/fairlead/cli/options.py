"""The options of a queue as flags, each read into what `create_queue` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.global_options import wrong_usage

OFF = "off"


def read_queue_options(
    visibility_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long a lease lasts: 30s, 5m; a bare number is milliseconds."
        ),
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="What follows a failure: none, immediate, 'fixed,cooldown=30s,attempts=5', or JSON.",
        ),
    ] = None,
    retry_in_stream: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="The policy for messages of a stream. off: as --retry."),
    ] = None,
    retry_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REASON=POLICY", help="A policy for one failure reason; may be repeated. off: none."
        ),
    ] = None,
    failure_breaker: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING",
            help="'failures=50,within=1m,pause=5m': make more failures of a reason wait. off: none.",
        ),
    ] = None,
    on_enqueue: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|LUA", help="Script that assigns key, weight, throttle keys and stream. off: none."
        ),
    ] = None,
    on_failure: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|LUA", help="Script that decides between retry and dead letter. off: none."
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Dead on this failure, whatever a policy says. 0: off."),
    ] = None,
    max_deliveries: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Dead instead of one more delivery. 0: off.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Most messages the queue takes. 0: no bound.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Most bytes of headers and payload. 0: no bound.")
    ] = None,
    max_unsettled_per_consumer: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Most messages one consumer holds. 0: no bound.")
    ] = None,
    max_unsettled_per_key: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Most messages of one key out at once. 0: no bound."),
    ] = None,
    poison_after: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Attempts from which a live message is reported as poison."),
    ] = None,
    quantum: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Messages a key of weight 1 gets per turn.")
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time to live of a message that nobody holds. off: for ever."),
    ] = None,
    expired_to_dead: Annotated[
        bool | None,
        typer.Option(
            "--expired-to-dead/--expired-dropped", help="Where a message goes when its time to live ends."
        ),
    ] = None,
    dead_retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a dead letter is kept. off: for ever.")
    ] = None,
    retain_completed: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long a completed message is kept to be looked at. off: not at all."
        ),
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(metavar="DURATION|live|kept", help="How long a dedup key is remembered.")
    ] = None,
    ordering: Annotated[
        str | None, typer.Option(metavar="release|strict|none", help="How streams order.")
    ] = None,
) -> dict[str, Any]:
    """Only what was given. What it means is checked by the engine, except for the forms that only the command
    line has.
    """
    given: dict[str, Any] = {
        "visibility_timeout": visibility_timeout and _with_ms(visibility_timeout),
        "max_attempts": max_attempts,
        "max_deliveries": max_deliveries,
        "max_messages": max_messages,
        "max_bytes": max_bytes,
        "max_unsettled_per_consumer": max_unsettled_per_consumer,
        "max_unsettled_per_key": max_unsettled_per_key,
        "poison_after": poison_after,
        "quantum": quantum,
        "expired_to_dead": expired_to_dead,
        "dedup": dedup,
        "ordering": ordering,
    }
    found = {name: value for name, value in given.items() if value is not None}
    if retry is not None:
        found["retry"] = read_policy_text(retry, "--retry")
    if retry_in_stream is not None:
        found["retry_in_stream"] = (
            None if retry_in_stream == OFF else read_policy_text(retry_in_stream, "--retry-in-stream")
        )
    if retry_on:
        found["retry_on"] = _read_by_reason(retry_on)
    if failure_breaker is not None:
        found["failure_breaker"] = (
            None if failure_breaker == OFF else _read_fields(failure_breaker, "--failure-breaker")
        )
    for name, script in (("on_enqueue", on_enqueue), ("on_failure", on_failure)):
        if script is not None:
            found[name] = None if script == OFF else _read_script(script, "--" + name.replace("_", "-"))
    for name, duration in (
        ("ttl", ttl),
        ("dead_retention", dead_retention),
        ("retain_completed", retain_completed),
    ):
        if duration is not None:
            found[name] = None if duration == OFF else duration
    return found


def _with_ms(text: str) -> str:
    return f"{text}ms" if text.isascii() and text.isdigit() else text


def read_policy_text(text: str, option: str) -> object:
    """`none`, `exponential,base=30s,attempts=10`, or the JSON of either."""
    if text.lstrip()[:1] in ("{", '"'):
        return _read_json(text, option)
    kind, _, rest = text.partition(",")
    if "=" in kind:
        return _read_fields(text, option)
    return {"policy": kind.strip(), **_read_fields(rest, option)} if rest else kind.strip()


def _read_by_reason(given: list[str]) -> dict[str, object]:
    if given == [OFF]:
        return {}
    found: dict[str, object] = {}
    for text in given:
        if text.lstrip().startswith("{"):
            read = _read_json(text, "--retry-on")
            found.update(read if isinstance(read, dict) else {})
            continue
        reason, equals, policy = text.partition("=")
        if not equals:
            wrong_usage(
                f"expected --retry-on to be REASON=POLICY, such as timeout_exceeded=fixed,cooldown=10s; got {text!r}"
            )
        found[reason.strip()] = read_policy_text(policy, "--retry-on")
    return found


def _read_fields(text: str, option: str) -> dict[str, object]:
    """`a=1,b=30s`, or a JSON object. What is a number becomes one."""
    if text.lstrip().startswith("{"):
        read = _read_json(text, option)
        return read if isinstance(read, dict) else {}
    fields: dict[str, object] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            wrong_usage(f"expected {option} to be a list such as name=value,name=value; got {text!r}")
        fields[name.strip()] = _number(value.strip())
    return fields


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _read_json(text: str, option: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as wrong:
        wrong_usage(f"expected {option} to be JSON: {wrong}")


def _read_script(text: str, option: str) -> str:
    """A script is told from the name of a file by what no file name has, and every script: a call or a
    definition.
    """
    if "function" in text or "\n" in text:
        return text
    path = Path(text)
    if not path.is_file():
        wrong_usage(f"expected {option} to be a file or the text of a Lua script; there is no file {text!r}")
    return path.read_text(encoding="utf-8")
