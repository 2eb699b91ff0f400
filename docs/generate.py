"""Writes the tables of docs/reference/ that derive from the code: `make docs`. A test fails when a page is
behind.

Each page keeps its own prose; only the lines between `<!-- generated: NAME -->` and `<!-- end -->` are
replaced. The meanings below are the part the code cannot tell; a new limit, option or error without one is a
KeyError here.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pyarrow as pa

import fairlead.errors
from docs.commands import commands_section, exit_codes_table, shared_options
from docs.limits import fields_line, refusals_table
from docs.rows import row_types, rows_table
from docs.runbook import TABLES, keys_table, policy_table
from docs.settings import EXAMPLE, example_file, settings_table
from fairlead.decide.lifecycle import TRANSITIONS, Where
from fairlead.engine.work import WORK
from fairlead.errors import BrokenInvariant, FairleadError, Rejected, Unavailable, UserCodeError
from fairlead.fields import Field, fields_of
from fairlead.model import limits
from fairlead.model.durations import show_ms
from fairlead.model.failure import FailureReason
from fairlead.model.policy import FailureBreaker
from fairlead.model.queue import QUEUE_OPTIONS, QueueConfig
from fairlead.request import VERBS, Request, Room
from fairlead.server.metric_names import METRICS
from fairlead.server.resp.arguments import usage_of
from fairlead.spark.data_source.schema import COLUMNS, DEAD_COLUMNS
from fairlead.spark.data_source.schema import columns_table as spark_columns_table
from fairlead.spark.options import options_table as spark_options_table
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.sessions import session_rule
from fairlead.verbs.settle import Settle
from fairlead.wire import schemas, settlement_rows
from fairlead.wire.statuses import STATUSES
from fairlead.wire.subscriptions import COMMANDS as SUBSCRIPTION_COMMANDS

REFERENCE = Path(__file__).parent / "reference"

LIMITS = {
    "MAX_PAYLOAD_BYTES": "payload of one message",
    "MAX_HEADERS_BYTES": "headers of one message, packed",
    "MAX_QUEUE_NAME": "characters in a queue name, its `project/` part included",
    "MAX_KEY_BYTES": "a fairness key, a throttle key or the name of a stream, in UTF-8",
    "MAX_THROTTLE_KEYS": "throttle keys of one message",
    "MAX_CLOSED_THROTTLES": "throttle keys that are closed at a time; past it those whose time is over are forgotten, then a further one is refused",
    "MAX_DEDUP_KEY_BYTES": "a dedup key, in UTF-8",
    "MAX_CONSUMER_BYTES": "a consumer's name, in UTF-8",
    "MAX_CLAIM_TOKEN_BYTES": "a claim token, in UTF-8",
    "MAX_BATCH_MESSAGES": "messages in one `enqueue_many`, items in one `settle`",
    "MAX_BATCH_BYTES": "payloads in one `enqueue_many`",
    "MAX_REQUEST_BYTES": "one request to the Flight door, unpacked; beyond is `LimitReached`",
    "MAX_CLAIM": "messages in one `claim`",
    "MAX_ANSWER_BYTES": "messages in one `claim`, which ends about there and has at least one",
    "MAX_LOOK_BYTES": "what all `peek`, `drain` and `find` hold together; one gets a quarter of what is free, so its page may be short; "
    "`Overloaded` when one message has found no room for 10 s",
    "MAX_CONSUMERS": "durable consumers of all queues together; beyond is `LimitReached`",
    "MIN_CONSUMER_TTL_MS": "the shortest time to live of a durable consumer",
    "MAX_CONSUMER_TTL_MS": "the longest time to live of a durable consumer",
    "MAX_RECORDED_BYTES": "outcomes recorded with one numbered claim; beyond is `LimitReached`",
    "MAX_PART_BYTES": "the name of a part that outcomes are recorded under, in UTF-8",
    "MAX_ERROR_BYTES": "error text of one failure; longer text is cut and marked, not refused",
    "MAX_SHORT_ERROR_BYTES": "the error text of a failure that is stored while the disk is below its reserve; longer text is cut and marked",
    "MAX_PATTERN_BYTES": "the `error_regex` of a filter, in UTF-8",
    "MAX_PATTERN_INSTRUCTIONS": "instructions of RE2 that an `error_regex` compiles to; see [filters](filters.md#regular-expressions)",
    "MAX_CARRY_BYTES": "the value a worker carries from step to step",
    "MAX_CONFIG_KEY_BYTES": "a configuration key, in UTF-8",
    "MAX_CONFIG_VALUE_BYTES": "a configuration value, in UTF-8",
    "MAX_KEYS": "API keys; beyond is `LimitReached`",
    "MAX_KEY_NAME_BYTES": "the name of an API key, in UTF-8",
    "MAX_GRANTS": "grants of one API key",
    "MAX_AUDIT_RECORDS": "entries the audit keeps; the oldest go",
    "MAX_RUNBOOK_BYTES": "the runbook in force in a project, as it is kept",
    "MAX_CONFIG_KEYS": "configuration keys in all; beyond is `LimitReached`",
    "MAX_CONFIG_CHARACTERS": "configuration values in all; beyond is `LimitReached`",
    "MAX_SCRIPT_BYTES": "the Lua script of a hook, in UTF-8",
    "MAX_WEIGHT": "weight of a fairness key, at least 1; beyond is corrected to the bound, not refused",
    "MAX_DURATION_MS": "any duration",
    "MIN_LEASE_MS": "the shortest visibility timeout",
    "MAX_LEASE_MS": "the longest visibility timeout",
    "MAX_SESSION_NAME_BYTES": "the name of a session, in UTF-8",
    "MAX_SESSION_ANSWERS": "answers of a session that have not arrived; beyond is `SessionFull`",
    "MAX_SESSION_BYTES": "those answers together; one may exceed it",
    "SESSION_KEPT_MS": "how long a session is remembered that nobody uses, and up to an hour longer",
    "MAX_LET_BY": "single messages of a stream that are let by; past it a release keeps order, and says so",
    "MAX_READ_AHEAD_ROWS": "ready messages that memory holds, over all queues; the others are read when they are wanted",
    "STEP_MESSAGES": "messages that one call of an operator's verb changes, and ids that it takes",
    "HOLD_MESSAGES": "messages that one hold of the engine lock reads or changes: in a scan by filter, a view, a step of a purge or redrive",
    "HOLD_BYTES": "payloads, headers and failure records that one such hold reads or changes, which has at least one message",
    "MAX_PAGE": "messages in one `peek`, `browse` or `drain`, entries in one `audit.read`",
    "MAX_SPLITS": "ranges that one `browse_splits` makes",
    "MAX_NUMBER": "the number of a durable consumer's claim, or of an entry of the audit",
    "MAX_REDRIVE_RATE": "messages a second of a `redrive` with a rate",
    "MAX_REDRIVE_COUNT": "the `count` of a `redrive`",
    "COUNT_LIMIT": "how far counting on request goes before it says *more*",
    "SCAN_LIMIT": "messages of a queue one call walks through: a filter, failure metrics, the tail of an id, what waits of one key",
    "MAX_STAGING_NAME_BYTES": "the token of a staged write, or the name of one of its chunks, in UTF-8; each belongs to its queue",
    "MAX_WRITE_CHUNKS": "chunks in one staged write; beyond is `LimitReached`",
    "MAX_STAGED_CHUNKS": "chunks in all staged writes, of all queues together; beyond is `LimitReached`",
    "PUBLISHED_KEPT_MS": "how long a published write is remembered",
    "KEPT_LAST_FAILURES": "failures kept in full beside the first one; the rest are counted",
}

OPTIONS = {
    "visibility_timeout": (
        "visibility_timeout_ms",
        "how long a lease lasts; when it ends unsettled, a started delivery has failed",
    ),
    "ttl": ("ttl_ms", "time to live of a message that is ready or waiting; never ends while it is leased"),
    "dead_retention": ("dead_retention_ms", "how long a dead letter is kept"),
    "retain_completed": (
        "retain_completed_ms",
        "how long a completed message is kept to be looked at; it takes no room in the queue's bounds",
    ),
    "retry": ("retry", "what follows a failure: see [retry](#retry)"),
    "max_attempts": (
        "max_attempts",
        "hard ceiling: dead on this failure, whatever a policy or the settle call says",
    ),
    "max_deliveries": ("max_deliveries", "ends loops of releases: dead instead of one more delivery"),
    "max_messages": (
        "max_messages",
        "bound on messages in the queue; `enqueue` beyond it raises `QueueFull`",
    ),
    "max_bytes": ("max_bytes", "the same in bytes of headers and payload"),
    "max_unsettled_per_consumer": (
        "max_unsettled_per_consumer",
        "how many messages one named consumer may hold",
    ),
    "max_unsettled_per_key": (
        "max_unsettled_per_key",
        "how many messages of one fairness key may be out at a time",
    ),
    "quantum": ("quantum", "messages a key of weight 1 gets per turn; larger is coarser"),
    "dedup": (
        "dedup_window_ms",
        'how long a `dedup_key` is remembered: a window such as `"5m"`, `"live"` while its message lives, or `"kept"`: while it is retained, too',
    ),
    "expired_to_dead": (
        "expired_to_dead",
        "a message past its time to live becomes a dead letter instead of being dropped",
    ),
    "ordering": (
        "ordering",
        'how streams order: `"release"` (a release may let its message pass one that waits), `"strict"`, or `"none"`',
    ),
    "retry_in_stream": (
        "retry_in_stream",
        "the policy for messages of a stream; a queue made without `retry` and `on_failure` has `exponential`",
    ),
    "retry_on": ("retry_on", 'a policy per failure reason, such as `{"serialization_error": "none"}`'),
    "failure_breaker": (
        "failure_breaker",
        'failures of one reason that pile up make more wait: `{"failures": 50, "within": "1m", "pause": "5m"}`',
    ),
    "on_enqueue": (
        "on_enqueue",
        "Lua script that assigns key, weight, throttle keys and stream: see [lua.md](lua.md)",
    ),
    "on_failure": (
        "on_failure",
        "Lua script that decides between retry and dead letter: see [lua.md](lua.md)",
    ),
    "poison_after": ("poison_after", "attempts from which a live message is reported as a poison candidate"),
}

WHEN = {
    "SettingInvalid": "a settings file, an environment variable or a flag has a name or value that is not known",
    "ProtocolMismatch": "client and server speak different versions",
    "Overloaded": "a door has as much in hand as it may; nothing was carried out",
    "ServerStopping": "the server has been told to stop; nothing was carried out",
    "AddressUnavailable": "a server cannot listen where it was told to; nothing was started",
    "ServerUnreachable": "a client got no connection in the time allowed",
    "TlsFailed": "a client and a server that differ in TLS, or do not trust each other's certificates; said at once on connecting",
    "ClientClosed": "a call comes after `close`, or is under way when it comes",
    "ClientForked": "a forked child uses the client of its parent",
    "AnswerLost": "the connection broke during a call that is not safe to repeat",
    "StepNotLoaded": "a worker starts, and a step's module or function is not there or cannot be imported",
    "WorkerNotFound": "`worker run` names a worker that the runbook does not have",
    "EngineNotInstalled": "a worker is to run on an engine that is not installed",
    "SparkNotReady": "no session: pyspark or a fitting Java is missing, or another session runs in this process",
    "ConsumerNotFound": "no durable consumer of that queue has that name",
    "StaleConsumer": "a consumer was registered again by somebody else: its earlier generations are fenced off",
    "StaleSlice": "another task has begun the same slice of a numbered claim since: what the earlier task records is refused",
    "ClaimNotNext": "the number of a claim is neither the next one nor the one in hand",
    "ClaimClosed": "a numbered claim is read, or told of outcomes, after it was closed",
    "ClaimReleased": "a numbered claim ended without being closed: by an operator, its consumer's time to live, or a deleted queue",
    "StagedChunkMissing": "a chunk to be published was never staged, or is gone; nothing was changed",
    "StagedQueueGone": "a chunk to be published was staged for a queue that was deleted since; nothing was changed",
    "InvalidRequest": "an argument is not what it must be",
    "QueueNotFound": "no queue has that name",
    "Unauthenticated": "the server asks for API keys, and the call has none that is valid now",
    "Forbidden": "the key lacks a right on that queue, whether the queue exists or not",
    "KeyNotFound": "no key has that id, or it is not the caller's to see",
    "LimitReached": "there are as many of something as there may be",
    "QueueExists": "`create_queue` with a name that is taken",
    "MessageNotFound": "no live message has that id",
    "AmbiguousId": "a prefix or tail fits several messages",
    "LostLease": "the lease of that delivery is over; nothing was changed",
    "NotADeadLetterQueue": "a verb for dead letters was given another queue",
    "SourceQueueGone": "a redrive whose target was deleted",
    "ConfigKeyNotFound": "`config.get` or `delete` of a key that is not set",
    "RunbookNotFound": "no runbook is in force in that project",
    "ExternalQueue": "a verb was given a queue that the runbook in force says lives elsewhere",
    "RowsRefused": "rows that a Spark job writes or settles with break a limit, and there is no place for refused rows",
    "ItemInvalid": "an item lacks a field its runbook asks for, or is no JSON object",
    "FormatTooNew": "the directory was written by a newer fairlead",
    "FormatTooOld": "the directory was written by an earlier fairlead, and there is no converter",
    "BrokerClosed": "a call after `close`",
    "BrokerForked": "a call in a process forked from the one that opened the broker",
    "SessionExpired": "a request of a session that was not opened, or is forgotten; nothing was carried out now",
    "RequestExpired": "a number of a session whose answer has arrived; nothing was carried out",
    "SessionFull": "a session has as many answers that have not arrived as are remembered; nothing was carried out",
    "QueueFull": "an enqueue beyond `max_messages` or `max_bytes`",
    "TooManyLanes": "too many distinct (fairness key, throttle keys) pairs at once",
    "StoreFull": "the disk is below its reserve (requests that can grow the store) or full (any write)",
    "StoreLocked": "another process has the directory open",
    "HookHostUnavailable": "a hook script is to be checked and the process that runs them does not start",
    "StaleEpoch": "a broker writes after another one has taken over its shard; nothing was stored",
    "HookInvalid": "a hook script does not compile, does not load within its limits, or lacks its function",
    "RunbookInvalid": "a runbook has mistakes; all of them are named at once, and nothing was changed",
    "StoreCorrupt": "a stored record cannot be trusted",
    "StoreFailed": "a write or sync failed and durability is unknown; the broker stops",
}

FAMILIES: dict[type[FairleadError], str] = {
    Rejected: "the caller changes the request",
    Unavailable: "nobody; the same request may work later",
    UserCodeError: "the author of the hook or runbook",
    BrokenInvariant: "whoever runs the broker",
}


def limits_table() -> Iterator[str]:
    yield "| limit | value | of |"
    yield "|---|---|---|"
    for name, value in vars(limits).items():
        if name.isupper():
            yield f"| `{name}` | {_shown(name, value)} | {LIMITS[name]} |"


def options_table() -> Iterator[str]:
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    defaults = QueueConfig()
    for option in QUEUE_OPTIONS:
        field, meaning = OPTIONS[option]
        yield f"| `{option}` | {_default(field, getattr(defaults, field))} | {meaning} |"


def leaf_errors() -> list[type[FairleadError]]:
    """Every error that is raised, in the order of errors.py; families are only caught."""
    found = [e for e in vars(fairlead.errors).values() if inspect.isclass(e) and issubclass(e, FairleadError)]
    return [e for e in found if e is not FairleadError and e not in FAMILIES]


def errors_table() -> Iterator[str]:
    yield "| error | code | family | who acts | raised when | fields |"
    yield "|---|---|---|---|---|---|"
    for error in leaf_errors():
        family = next(f for f in FAMILIES if issubclass(error, f))
        fields = ", ".join(f"`{p}`" for p in list(inspect.signature(error.__init__).parameters)[1:]) or "none"
        yield f"| `{error.__name__}` | `{error.code}` | `{family.__name__}` | {FAMILIES[family]} | {WHEN[error.__name__]} | {fields} |"


#: A dead letter is ready in a `.dlq`; the diagram draws that as a place of its own.
_ENTERS_DEAD = ("quarantined", "buried")
_LEAVES_DEAD = ("redriven",)


def lifecycle_diagram() -> Iterator[str]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for event, (leaves, enters) in TRANSITIONS.items():
        for source in sorted(map(_place, leaves)):
            for target in sorted(map(_place, enters)):
                ends = (
                    "dead" if event in _LEAVES_DEAD else source,
                    "dead" if event in _ENTERS_DEAD else target,
                )
                arrows.setdefault(
                    ("[*]" if ends[0] == "" else ends[0], "[*]" if ends[1] == "" else ends[1]), []
                ).append(event)
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    dead: ready in the .dlq"
    for (source, target), events in arrows.items():
        yield f"    {source} --> {target}: {', '.join(events)}"
    yield "```"


def lifecycle_table() -> Iterator[str]:
    yield "| event | leaves | enters |"
    yield "|---|---|---|"
    for event, (leaves, enters) in TRANSITIONS.items():
        yield f"| {event} | {_places(leaves)} | {_places(enters)} |"


def metrics_table(kind: str) -> Iterator[str]:
    bounds = kind == "histogram"
    yield "| metric | labels | meaning |" + (" buckets up to |" if bounds else "")
    yield "|---|---|---|" + ("---|" if bounds else "")
    for metric in METRICS:
        if metric.kind == kind:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {labels} | {metric.help} |" + (
                f" {', '.join(f'{bound:g}' for bound in metric.buckets)} |" if bounds else ""
            )


def columns_table(schema: pa.Schema) -> Iterator[str]:
    yield "| column | type |"
    yield "|---|---|"
    for column in schema:
        yield f"| `{column.name}` | `{column.type}` |"


def numbers(words: tuple[str, ...]) -> Iterator[str]:
    yield ", ".join(f"{number} `{word}`" for number, word in enumerate(words)) + "."


def write_verbs_table() -> Iterator[str]:
    yield "| verb | the field of its rows | safe to repeat |"
    yield "|---|---|---|"
    for name, verb in VERBS.items():
        if verb.request.columns:
            repeatable = "yes" if verb.request.repeatable else "in a session"
            yield f"| `{name}` | `{verb.request.columns}` | {repeatable} |"


def resp_commands() -> Iterator[str]:
    yield "```text"
    for kind in (*[verb.request for verb in VERBS.values()], *SUBSCRIPTION_COMMANDS.values()):
        yield from textwrap.wrap(usage_of(kind), 118, subsequent_indent="    ", break_long_words=False)
    yield "```"


def verbs_reference() -> Iterator[str]:
    for name, verb in VERBS.items():
        request = verb.request
        yield f"### `{name}`"
        yield ""
        yield inspect.getdoc(request) or ""
        yield ""
        yield from _fields_table(fields_of(request))
        yield f"* Right: {_right(request)}"
        yield f"* Audited: {_audited(request)}. After a lost answer, a client {_repeated(request)}."
        yield f"* Below the disk reserve: {ROOMS[request.room]}"
        yield f"* {_answered(request)}"
        yield f"* In a session: {SESSION_RULES[session_rule(request, is_one_transaction=request in WORK)]}"
        yield ""


#: What a session does with a verb.
SESSION_RULES = {
    "remembered": "has one effect, and its answer is remembered.",
    "runs": "simply runs, as often as it is sent.",
    "refused": "refused.",
}
#: What `Room` means for a caller.
ROOMS = {
    Room.READS: "writes nothing.",
    Room.FITS: "goes on.",
    Room.GROWS: "refused with `StoreFull`.",
    Room.WEIGHS: "refused with `StoreFull` if what it stores does not fit above the reserve.",
    Room.LEASES: "goes on until only the floor of the reserve is left.",
}


def _fields_table(fields: Sequence[Field]) -> Iterator[str]:
    if not fields:
        return
    yield "| field | type | default | bounds | meaning |"
    yield "|---|---|---|---|---|"
    for field in fields:
        default = "" if field.required else f"`{_default_text(field.default)}`"
        cells = (f"`{field.name}`", f"`{_type_text(field.kind)}`", default, field.bounds, field.description)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _default_text(default: object) -> str:
    return repr(default.word if isinstance(default, FailureReason) else default)


def _type_text(kind: Any) -> str:
    """As the source writes it: without modules, and durations by their name."""
    if get_origin(kind) in (Union, UnionType):
        parts = list(dict.fromkeys(map(_type_text, get_args(kind))))
        if "timedelta" in parts:
            parts = ["Duration", *(part for part in parts if part not in ("str", "timedelta"))]
        return " | ".join(parts)
    if get_origin(kind) is Literal:
        return " | ".join(f'"{word}"' for word in get_args(kind))
    if get_origin(kind) is None:
        return "None" if kind is type(None) else str(kind.__name__)
    return f"{get_origin(kind).__name__}[{', '.join(map(_type_text, get_args(kind)))}]"


def _right(request: type[Request[Any]]) -> str:
    if request.right is not None:
        rights = f"`{request.right}`" + (f" and `{request.also_right}`" if request.also_right else "")
        by_header = (
            ", and `read-payload` for a filter by header" if "filter" in request.__struct_fields__ else ""
        )
        return f"{rights} on the queue{by_header}."
    own_rule = request.authorize is not Request.authorize
    if own_rule:
        return "see [keys and rights](../how-to/keys-and-rights.md)."
    return (
        "any right on the queue."
        if request.queue_field
        else "none; the answer shows what the caller may see."
    )


#: The Python client gives each of these a token, or a number in a session.
_NUMBERED = (Claim, Enqueue, EnqueueMany, Exchange, Settle)


def _repeated(request: type[Request[Any]]) -> str:
    if request.repeatable or request.paged:
        return "repeats it"
    if request in _NUMBERED:
        return "repeats it under a number or token, and it takes effect once"
    return "raises `AnswerLost`"


def _answered(request: type[Request[Any]]) -> str:
    durable = "writes nothing" if request.room is Room.READS else _yes(request.durable)
    waits = "up to `wait`" if request.patience_ms is not Request.patience_ms else "no"
    return f"Durable: {durable}. Waits for messages: {waits}. Slow: {_yes(request.slow)}."


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _audited(request: type[Request[Any]]) -> str:
    if request.audited:
        return "every call"
    return "messages whose contents were read" if request.shows_messages else "no"


def statuses_table() -> Iterator[str]:
    yield "| error | gRPC | HTTP | exit code |"
    yield "|---|---|---|---|"
    for error, status in STATUSES.items():
        yield f"| `{error.__name__}` | `{status.grpc}` | {status.http} | {status.exit_code} |"


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "limits": limits_table,
    "refusals": refusals_table,
    "invalid_fields": fields_line,
    "options": options_table,
    "errors": errors_table,
    "diagram": lifecycle_diagram,
    "transitions": lifecycle_table,
    "settings": settings_table,
    "shared_options": shared_options,
    "commands": commands_section,
    "exit_codes": exit_codes_table,
    "statuses": statuses_table,
    "verbs": verbs_reference,
    "resp_commands": resp_commands,
    "flight_messages": lambda: columns_table(schemas.MESSAGES),
    "flight_deliveries": lambda: columns_table(schemas.DELIVERIES),
    "flight_settlements": lambda: columns_table(schemas.SETTLEMENTS),
    "flight_browsed": lambda: columns_table(schemas.BROWSED),
    "flight_actions": lambda: numbers(settlement_rows.ACTIONS),
    "flight_writes": write_verbs_table,
    "outcomes": lambda: numbers(settlement_rows.OUTCOMES),
    **{name: partial(keys_table, keys) for name, keys in TABLES.items()},
    "runbook_policy": policy_table,
    "spark_options": spark_options_table,
    "spark_columns": lambda: spark_columns_table(COLUMNS),
    "spark_dead_columns": lambda: spark_columns_table(DEAD_COLUMNS),
    "rows": rows_table,
    "row_types": row_types,
    "metric_counters": lambda: metrics_table("counter"),
    "metric_histograms": lambda: metrics_table("histogram"),
    "metric_gauges": lambda: metrics_table("gauge"),
}

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def regenerated(page: str) -> str:
    return _BLOCK.sub(lambda m: m[1] + "".join(line + "\n" for line in BLOCKS[m[2]]()) + m[3], page)


def main() -> None:
    for path in sorted(REFERENCE.glob("*.md")):
        old = path.read_text()
        new = regenerated(old)
        if new != old:
            path.write_text(new)
            print(f"rewrote {path.name}")
    EXAMPLE.write_text(example_file())


def _shown(name: str, value: int) -> str:
    if name.endswith("_MS"):
        return show_ms(value)
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if name.endswith("_BYTES") and value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,} bytes" if name.endswith("_BYTES") else f"{value:,}"


def _default(field: str, value: object) -> str:
    if field == "retry":
        return '`"immediate"`, no limit'
    if (value and isinstance(value, str)) or isinstance(value, bool):
        return f"`{value!r}`".replace("'", '"')
    if not value or value == FailureBreaker():
        return "off"
    assert isinstance(value, int)
    return f'`"{show_ms(value)}"`' if field.endswith("_ms") else f"{value:,}"


def _place(where: Where | None) -> str:
    return where.value if where else ""


def _places(places: frozenset[Where | None]) -> str:
    return " or ".join(sorted(p.value if p else "not stored" for p in places))


if __name__ == "__main__":
    main()
