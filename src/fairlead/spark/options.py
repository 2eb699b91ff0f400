"""The options of `format("fairlead")`: one table for reading, checking and documenting them.

Spark passes options as text, with names in lower case. Options appear in plans, logs and pickles, so none is
a secret: an API key is given by the name of its file or environment variable.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, TypeAlias

from fairlead.client.addresses import read_endpoint
from fairlead.errors import InvalidRequest
from fairlead.model.addresses import split_address
from fairlead.model.durations import to_ms
from fairlead.model.limits import (
    MAX_ANSWER_BYTES,
    MAX_CLAIM,
    MAX_CONSUMER_BYTES,
    MAX_CONSUMER_TTL_MS,
    MIN_CONSUMER_TTL_MS,
)
from fairlead.model.names import check_queue_name

Direction: TypeAlias = Literal["batch read", "stream read", "batch write", "stream write", "quarantine"]

READS: tuple[Direction, ...] = ("batch read", "stream read")
WRITES: tuple[Direction, ...] = ("batch write", "stream write")
ALL: tuple[Direction, ...] = (*READS, *WRITES, "quarantine")

_MAX_PARTITIONS = 10_000
_MAX_DEFAULT_PARTITIONS = 16

#: Options of Spark itself that it passes to a sink.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
#: Names that a user would give to the secret itself.
_SECRETS = frozenset({"apikey", "api_key", "key", "token", "secret", "password", "authorization"})


class Option(NamedTuple):
    """A row of the table. `default` is the text in the documentation: "" for none, `must be given` without
    one.
    """

    name: str
    default: str
    directions: tuple[Direction, ...]
    meaning: str
    read: Callable[[str, str], Any]


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise InvalidRequest(f"option {name}", "some text", value)
    return value


def _bool(name: str, value: str) -> bool:
    if value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise InvalidRequest(f"option {name}", "true or false", value)


def _count(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        number = int(value) if re.fullmatch(r"\s*[0-9]{1,18}\s*", value) else -1
        if not least <= number <= most:
            raise InvalidRequest(f"option {name}", f"a whole number from {least} to {most}", value)
        return number

    return read


_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30}


def _size(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        found = re.fullmatch(r"\s*([0-9]{1,15})\s*(?:(b?)|([kmg])(?:i?b)?)\s*", value.lower())
        size = int(found[1]) << _UNITS[found[3] or ""] if found else -1
        if not least <= size <= most:
            raise InvalidRequest(
                f"option {name}",
                f'a number of bytes, or a size such as "64m", from {least} to {most} bytes',
                value,
            )
        return size

    return read


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value.strip().lower() in choices:
            return value.strip().lower()
        raise InvalidRequest(f"option {name}", " or ".join(f'"{choice}"' for choice in choices), value)

    return read


def _duration(name: str, value: str) -> str:
    try:
        to_ms(value, name)
    except InvalidRequest:
        raise InvalidRequest(
            f"option {name}", 'a duration such as "30s", "1h30m" or "7d", at most 10 years', value
        ) from None
    return value


def _ttl(name: str, value: str) -> str:
    if not MIN_CONSUMER_TTL_MS <= to_ms(_duration(name, value), name) <= MAX_CONSUMER_TTL_MS:
        raise InvalidRequest(f"option {name}", 'a duration from "1s" to "365d"', value)
    return value


def _address(name: str, value: str) -> str:
    try:
        read_endpoint(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"option {name}", error.expected, value) from None
    return value


def _flight_address(name: str, value: str) -> str:
    try:
        split_address(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"option {name}", error.expected, value) from None
    return value


def _queue(name: str, value: str) -> str:
    try:
        return check_queue_name(value)
    except InvalidRequest as error:
        raise InvalidRequest(f"option {name}", error.expected, value) from None


def _consumer(name: str, value: str) -> str:
    if not value.strip() or len(value.encode()) > MAX_CONSUMER_BYTES:
        raise InvalidRequest(f"option {name}", f"text of 1 to {MAX_CONSUMER_BYTES} bytes", value)
    return value


def _start(name: str, value: str) -> int:
    """Epoch milliseconds; 0 for "earliest"."""
    if value.strip().lower() == "earliest":
        return 0
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        expected = '"earliest", or for a batch read a time with its offset such as "2026-03-01T00:00:00Z"'
        raise InvalidRequest(f"option {name}", expected, value)
    return round(moment.timestamp() * 1000)


def _option(
    default: Any,
    read: Callable[[str, str], Any],
    directions: tuple[Direction, ...],
    meaning: str,
    *,
    shown: str = "",
    name: str = "",
) -> Any:
    return field(default=default, metadata={"option": Option(name, shown, directions, meaning, read)})


@dataclass(frozen=True)
class SparkOptions:
    """Options that are valid each by itself. `for_direction` checks them together for one use.

    `given` has the documented names of the options that were given.
    """

    endpoint: str = _option(
        "",
        _address,
        ALL,
        "`host:port` of the server's RESP door, as every executor reaches it; the default port is 5554",
        shown="must be given",
    )
    flight_endpoint: str = _option(
        "",
        _flight_address,
        ALL,
        "`host:port` of the server's Flight door, which carries rows, as every executor reaches it",
        shown="the address that the server advertises",
    )
    queue: str = _option(
        "",
        _queue,
        ALL,
        'the queue, `project/name` or `name`; `load("orders")` and `save("orders")` set this option too',
        shown="must be given",
    )
    consumer: str = _option(
        "",
        _consumer,
        ("stream read",),
        "name of the durable consumer, one per query; the broker keeps its open claim for `consumerTtl`",
        shown="must be given",
    )
    consumer_ttl: str = _option(
        "7d",
        _ttl,
        ("stream read",),
        "how long a query may be down before its claimed messages return to the queue",
        shown="7d",
    )
    max_messages_per_trigger: int = _option(
        20_000,
        _count(1, MAX_CLAIM),
        ("stream read",),
        "maximum messages of one micro-batch, up to 100000",
        shown="20000",
    )
    max_bytes_per_trigger: int = _option(
        MAX_ANSWER_BYTES // 4,
        _size(1, MAX_ANSWER_BYTES),
        ("stream read",),
        "maximum bytes of payloads and headers of one micro-batch, up to 256m; a larger message is a batch of its own",
        shown="64m",
    )
    num_partitions: int = _option(
        0,
        _count(1, _MAX_PARTITIONS),
        READS,
        "tasks that read at a time; in a stream read, one task reads all messages with the same stream id, in order",
        shown="the driver machine's cores, at most 16",
    )
    starting_from: int = _option(
        0,
        _start,
        READS,
        "batch reads: `earliest`, or a time with its offset, to leave out messages enqueued before it; stream reads: `earliest`",
        shown="earliest",
    )
    view: Literal["messages", "dead"] = _option(
        "messages",
        _one_of("messages", "dead"),
        ("batch read",),
        "the queue's messages, or its dead letters",
        shown="messages",
    )
    include_payload: bool = _option(True, _bool, READS, "false: the column `payload` is null", shown="true")
    include_headers: bool = _option(True, _bool, READS, "false: the column `headers` is null", shown="true")
    fail_on_data_loss: bool = _option(
        True,
        _bool,
        ("stream read",),
        "false: a claim of the checkpoint that the broker no longer has reads as empty, with a warning, instead of ending the query",
        shown="true",
    )
    operation: Literal["produce", "settle"] = _option(
        "produce",
        _one_of("produce", "settle"),
        WRITES,
        "rows are new messages, or outcomes of messages that were read",
        shown="produce",
    )
    dedupe_token: str = _option(
        "",
        _text,
        ("batch write",),
        "a second write with the same token within 7 days writes nothing; a stream makes its own tokens",
    )
    rejects: str = _option(
        "",
        _text,
        WRITES,
        "folder, reachable from every executor, for Parquet files of refused rows; without it a refused row fails the write",
    )
    api_key_file: str = _option("", _text, ALL, "file with the API key, on the driver and on every executor")
    api_key_env: str = _option(
        "", _text, ALL, "environment variable with the API key, on the driver and on every executor"
    )
    tls: bool = _option(
        False,
        _bool,
        ALL,
        "TLS with the authorities that the system trusts; any other `tls` option turns TLS on",
        shown="false",
    )
    tls_ca: str = _option("", _text, ALL, "PEM file of the trusted authorities")
    tls_cert: str = _option("", _text, ALL, "PEM file of the client certificate, together with `tls.key`")
    tls_key: str = _option("", _text, ALL, "PEM file of its private key, without a passphrase")
    tls_server_name: str = _option(
        "", _text, ALL, "name in the server's certificate, if it differs from the host of `endpoint`"
    )
    timeout: str = _option(
        "1m",
        _duration,
        ALL,
        "how long a call is repeated while the server cannot be reached; then the task or query fails",
        shown="1m",
    )
    given: frozenset[str] = frozenset()
    #: The host on which the options were read.
    driver: str = ""

    @property
    def partition_count(self) -> int:
        """Tasks that read at a time. Spark tells a source nothing about executors, so the default is the
        driver's cores.
        """
        return self.num_partitions or min(os.cpu_count() or 1, _MAX_DEFAULT_PARTITIONS)

    def for_direction(self, direction: Direction) -> SparkOptions:
        """Return the options unchanged. Raises `InvalidRequest` if one is missing, or has no meaning in this
        direction.
        """
        for name in sorted(self.given):
            if direction not in OPTIONS[name].directions:
                where = " and ".join(f"{one}s" for one in OPTIONS[name].directions)
                raise InvalidRequest(
                    f"option {name}",
                    f"left out of a {direction}: it belongs to {where}",
                    getattr(self, FIELDS[name]),
                )
        if not self.endpoint:
            raise InvalidRequest("option endpoint", "given, such as 127.0.0.1:5554", None)
        if not self.queue:
            raise InvalidRequest(
                "option queue", 'given, or the queue\'s name in load("...") or save("...")', None
            )
        if direction == "stream read" and not self.consumer:
            raise InvalidRequest(
                "option consumer",
                "given: the name under which the broker keeps this query's claims, one per query",
                None,
            )
        if direction == "stream read" and self.starting_from:
            why = 'left out or "earliest" in a stream read: a queue has no past to skip, its messages are still to be done'
            raise InvalidRequest("option startingFrom", why, "a time")
        return self


def _named(one: Field[Any]) -> str:
    """`max_bytes_per_trigger` -> maxBytesPerTrigger, `tls_server_name` -> tls.serverName."""
    prefix, rest = ("tls.", one.name[4:]) if one.name.startswith("tls_") else ("", one.name)
    first, *more = rest.split("_")
    return prefix + first + "".join(word.capitalize() for word in more)


#: By the documented name of each option: its field of `SparkOptions`, and its row of the table.
FIELDS = {_named(one): one.name for one in fields(SparkOptions) if "option" in one.metadata}
OPTIONS = {
    _named(one): one.metadata["option"]._replace(name=_named(one))
    for one in fields(SparkOptions)
    if "option" in one.metadata
}
_FOLDED = {name.lower(): name for name in OPTIONS}


def spelled_as_options(given: Mapping[str, str]) -> dict[str, str]:
    """Turn names in Python's spelling, such as `api_key_file`, into names of options."""
    names = {one: name for name, one in FIELDS.items()}
    return {names.get(name, name): value for name, value in given.items()}


def read_options(given: Mapping[str, str]) -> SparkOptions:
    """Raises `InvalidRequest` with the name of the wrong option. Values of unknown options are not shown,
    because they may be secrets.
    """
    folded = {
        str(name).lower(): str(value) for name, value in given.items() if str(name).lower() not in _OF_SPARK
    }
    queue = folded.pop("path", None)
    _refuse_unknown(folded)
    if queue is not None and folded.setdefault("queue", queue) != queue:
        raise InvalidRequest(
            "option queue", "the same as the name in load(...) or save(...), or left out", folded["queue"]
        )
    values = {
        FIELDS[_FOLDED[name]]: OPTIONS[_FOLDED[name]].read(_FOLDED[name], value)
        for name, value in folded.items()
    }
    options = SparkOptions(
        **values, given=frozenset(_FOLDED[name] for name in folded), driver=platform.node()
    )
    if options.api_key_file and options.api_key_env:
        raise InvalidRequest("options apiKeyFile and apiKeyEnv", "one of the two", "both")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InvalidRequest("options tls.cert and tls.key", "given together", "only one of them")
    return options


def _refuse_unknown(folded: Mapping[str, str]) -> None:
    unknown = sorted(set(folded) - set(_FOLDED))
    if unknown:
        advice = "; ".join(map(_advice_for_unknown, unknown))
        raise InvalidRequest("every option", f"one that fairlead knows: {advice}", ", ".join(unknown))


def _advice_for_unknown(folded: str) -> str:
    if folded == "paths":
        return "instead of a list in load(...), give one queue; read several queues one by one, and combine them with union"
    if folded.replace(".", "").replace("-", "") in _SECRETS:
        return f"instead of {folded}, which would travel in plans and logs, name the key's file with apiKeyFile or its variable with apiKeyEnv"
    near = get_close_matches(folded, list(_FOLDED), 1, 0.5)
    if near:
        return f"instead of {folded}, did you mean {_FOLDED[near[0]]}?"
    return f"there is nothing like {folded} among {', '.join(OPTIONS)}"


def options_table() -> Iterator[str]:
    """The table in docs/reference/spark.md."""
    yield "| option | for | default | meaning |"
    yield "|---|---|---|---|"
    for option in OPTIONS.values():
        is_text = not option.default or " " in option.default
        default = option.default if is_text else f"`{option.default}`"
        uses = _name_directions(option.directions)
        yield f"| `{option.name}` | {uses} | {default} | {option.meaning} |"


def _name_directions(directions: tuple[Direction, ...]) -> str:
    names = {ALL: "all", READS: "reads", WRITES: "writes"}
    return names.get(directions, ", ".join(f"{direction}s" for direction in directions))
