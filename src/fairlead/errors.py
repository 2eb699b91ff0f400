"""Every deliberate error of fairlead, in one file.

The four families name who must act: the caller (`Rejected`), nobody yet (`Unavailable`), the author of a hook
or runbook (`UserCodeError`), or the developers of fairlead (`BrokenInvariant`). `code` is a stable string
that doors send to clients. The keyword arguments of an error are its fields, and can be read as attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any, ClassVar


class FairleadError(Exception):
    """The root of all deliberate errors."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None


class Rejected(FairleadError):
    """The caller must change the request. The same request will be refused again."""

    code = "rejected"


class Unavailable(FairleadError):
    """The same request may work later."""

    code = "unavailable"


class UserCodeError(FairleadError):
    """A hook or runbook is wrong; its author must act."""

    code = "user_code"


class BrokenInvariant(FairleadError):
    """A condition that must always hold was violated. The broker stops."""

    code = "broken_invariant"


class InvalidRequest(Rejected):
    """A field has an invalid value: `field`, `expected`, `got`."""

    code = "invalid_request"

    def __init__(self, field: str, expected: str, got: object) -> None:
        shown = repr(got)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(
            f"expected {field} to be {expected}, got {shown}", field=field, expected=expected, got=got
        )


class QueueNotFound(Rejected):
    code = "queue_not_found"

    def __init__(self, queue: str) -> None:
        how = f"create it with create_queue({queue!r}), or: fairlead queue create {quote(queue)}"
        super().__init__(f"expected queue {queue!r} to exist; {how}", queue=queue)


class QueueExists(Rejected):
    code = "queue_exists"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"expected {queue!r} to be a new queue name, but it exists; change it with update_queue",
            queue=queue,
        )


class Unauthenticated(Rejected):
    """An unknown, a revoked and a wrong key get the same answer, so the error does not reveal which keys
    exist. Only the holder of a key learns that the key has expired.
    """

    code = "unauthenticated"

    def __init__(self, why: str) -> None:
        super().__init__(f"expected a valid API key: {why}", why=why)


class Forbidden(Rejected):
    """Decided from the key and the name alone, before any lookup, so the error does not reveal whether the
    queue exists.
    """

    code = "forbidden"

    def __init__(self, right: str, queue: str) -> None:
        super().__init__(
            f"expected a key with {right} on {queue!r}; a key with admin on it can grant {right}:{queue}",
            right=right,
            queue=queue,
        )


class KeyNotFound(Rejected):
    """Also raised for a key that the caller may not see."""

    code = "key_not_found"

    def __init__(self, key_id: str) -> None:
        super().__init__(
            f"expected a key with id {key_id!r}; `fairlead key list` shows the keys that you may see",
            key_id=key_id,
        )


class LimitReached(Rejected):
    """There may be no more of `what` than `limit`, until some are removed or the limit is raised."""

    code = "limit_reached"

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"expected at most {limit} {what}; remove some, or raise the limit", what=what, limit=limit
        )


class MessageNotFound(Rejected):
    """`found` describes a message that exists but cannot be settled, for example because it is dead."""

    code = "message_not_found"

    def __init__(self, message_id: str, found: str = "") -> None:
        if found:
            message = f"expected message {message_id!r} to be leased; {found}"
        else:
            message = f"expected a live message {message_id!r}, found none; it may be completed or dropped"
        super().__init__(message, message_id=message_id, found=found)


class AmbiguousId(Rejected):
    code = "ambiguous_id"

    def __init__(self, given: str, matches: list[str]) -> None:
        super().__init__(
            f"expected {given!r} to name one message, but it matches {', '.join(matches)}; give more characters",
            given=given,
            matches=matches,
        )


class LostLease(Rejected):
    """The lease of a settle's token has ended. Nothing was changed."""

    code = "lost_lease"

    def __init__(self, message_id: str) -> None:
        super().__init__(
            f"the lease on message {message_id} is over; another delivery may be under way, so nothing was changed",
            message_id=message_id,
        )


class NotADeadLetterQueue(Rejected):
    code = "not_a_dead_letter_queue"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"expected a dead-letter queue (its name ends in '.dlq'), got {queue!r}", queue=queue
        )


class SourceQueueGone(Rejected):
    code = "source_queue_gone"

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"the source queue of {queue!r} no longer exists; create it again to redrive into it", queue=queue
        )


class ConfigKeyNotFound(Rejected):
    code = "config_key_not_found"

    def __init__(self, key: str) -> None:
        super().__init__(f"expected configuration key {key!r} to be set; see config.list()", key=key)


class RunbookNotFound(Rejected):
    code = "runbook_not_found"

    def __init__(self, project: str) -> None:
        super().__init__(
            f"expected a runbook in force for {f'project {project!r}' if project else 'no project'}; put one in force with: fairlead apply FILE",
            project=project,
        )


class ExternalQueue(Rejected):
    """The runbook in force declares the queue as external: its messages are stored elsewhere. `taken` names
    the queue with the messages that workers have taken from it.
    """

    code = "external_queue"

    def __init__(self, queue: str, taken: str) -> None:
        super().__init__(
            f"expected a queue that is stored here, but {queue!r} is external; messages taken from it are in {taken!r}",
            queue=queue,
            taken=taken,
        )


class ItemInvalid(Rejected):
    """The runbook of the queue does not accept the item. `problems` has every problem, by field."""

    code = "item_invalid"

    def __init__(self, queue: str, problems: list[str]) -> None:
        super().__init__(
            f"expected an item for {queue!r}: {'; '.join(problems)}", queue=queue, problems=list(problems)
        )


class FormatTooNew(Rejected):
    """The data directory was written by a newer fairlead."""

    code = "format_too_new"

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(
            f"expected {path} to have format {known} or older, got {found}; open it with a newer fairlead",
            path=path,
            found=found,
            known=known,
        )


class FormatTooOld(Rejected):
    """The data directory was written before the first release, and there is no converter."""

    code = "format_too_old"

    def __init__(self, path: str, known: int) -> None:
        super().__init__(
            f"expected {path} to have format {known}, got one from before the first release of fairlead; there is no"
            " converter: begin with a new directory",
            path=path,
            known=known,
        )


class BrokerClosed(Rejected):
    code = "broker_closed"

    def __init__(self) -> None:
        super().__init__("the broker is closed; open the directory again with fairlead.open")


class BrokerForked(Rejected):
    """A forked child process uses a broker that its parent had open."""

    code = "broker_forked"

    def __init__(self) -> None:
        super().__init__(
            "the broker belongs to the process that opened it, and this one was forked from it; open it after the fork, in one process"
        )


class ClientClosed(Rejected):
    code = "client_closed"

    def __init__(self) -> None:
        super().__init__("the client is closed; make a new one with fairlead.connect")


class ClientForked(Rejected):
    """A forked child process uses a client of its parent."""

    code = "client_forked"

    def __init__(self) -> None:
        super().__init__(
            "the client belongs to the process that made it, and this one was forked from it; call fairlead.connect after the fork"
        )


class SessionExpired(Rejected):
    """The session is unknown: it was never opened, belongs to another key, or was not used for a day. It can
    no longer be determined whether the request was carried out before.
    """

    code = "session_expired"

    def __init__(self, session: str, number: int) -> None:
        super().__init__(
            f"session {session!r} was not opened, or is forgotten because it was not used for a day: "
            f"whether request {number} was carried out before is not known, and it was not carried out now; "
            "open another session with open_session",
            session=session,
            number=number,
        )


class RequestExpired(Rejected):
    """The client has confirmed that the answer to this number arrived, so the answer is forgotten. The
    request is not carried out again.
    """

    code = "request_expired"

    def __init__(self, session: str, number: int, arrived: int) -> None:
        super().__init__(
            f"expected a number above {arrived}, up to which all answers of session {session!r} have arrived, "
            f"got {number}; nothing was carried out, give a new request a higher number",
            session=session,
            number=number,
            arrived=arrived,
        )


class SettingInvalid(Rejected):
    """A setting from a file, the environment or a flag is invalid. `source` names its origin, and `path` is
    the name of the setting.
    """

    code = "setting_invalid"

    def __init__(self, source: str, path: str, what: str) -> None:
        super().__init__(f"{source}: {path}: {what}", source=source, path=path, what=what)


class ProtocolMismatch(Rejected):
    """The other side speaks another version of the protocol, or another protocol."""

    code = "protocol_mismatch"

    def __init__(self, expected: str, got: str) -> None:
        super().__init__(
            f"expected the other side to speak {expected}, got {got}; use matching versions of client and server",
            expected=expected,
            got=got,
        )


class WorkerNotFound(Rejected):
    """The runbook has no worker with this name: `worker`, `known`."""

    code = "worker_not_found"

    def __init__(self, worker: str, known: list[str]) -> None:
        there = f"it has {', '.join(known)}" if known else "it has none"
        super().__init__(
            f"expected the runbook to have a worker {worker!r}; {there}", worker=worker, known=known
        )


class EngineNotInstalled(Rejected):
    """A worker needs an engine that is not installed here."""

    code = "engine_not_installed"

    def __init__(self, worker: str, engine: str) -> None:
        super().__init__(
            f"expected an engine {engine!r} for worker {worker!r}, found none here; it comes with: pip install 'fairlead[{engine}]', "
            f'and runs with: fairlead worker run {quote(worker)} --engine {engine}. The same pipeline runs with engine = "local"',
            worker=worker,
            engine=engine,
        )


class RowsRefused(Rejected):
    """Rows of a DataFrame that are not valid messages or settle nothing. `shown` has the first of them,
    without their payloads.
    """

    code = "rows_refused"

    def __init__(self, queue: str, count: int, shown: list[str], advice: str) -> None:
        rows = "1 row is" if count == 1 else f"{count} rows are"
        super().__init__(
            f"expected rows that {queue!r} can take, but {rows} not: {'; '.join(shown)}{'; ...' if count > len(shown) else ''}. {advice}",
            queue=queue,
            count=count,
            shown=list(shown),
            advice=advice,
        )


class SparkNotReady(Rejected):
    """Spark cannot start here as requested: `expected`, `found`, `advice`."""

    code = "spark_not_ready"

    def __init__(self, expected: str, found: str, advice: str) -> None:
        super().__init__(
            f"expected {expected}; found: {found}. {advice}", expected=expected, found=found, advice=advice
        )


class ConsumerNotFound(Rejected):
    code = "consumer_not_found"

    def __init__(self, name: str, queue: str) -> None:
        how = f"make it with consumers.register({name!r}, {queue!r}), as a query of Spark does when it starts"
        super().__init__(
            f"expected a durable consumer {name!r} of queue {queue!r}; {how}", name=name, queue=queue
        )


class StaleConsumer(Rejected):
    """Another reader has registered under the same name, so this one must stop. Nothing was changed."""

    code = "stale_consumer"

    def __init__(self, name: str, generation: int, current: int) -> None:
        super().__init__(
            f"expected generation {current} of consumer {name!r}, got {generation}: it was taken over; "
            "stop this reader, or register again if it should continue",
            name=name,
            generation=generation,
            current=current,
        )


class StaleSlice(Rejected):
    """Another task has begun the same slice, so this one must stop. Nothing was recorded."""

    code = "stale_slice"

    def __init__(self, name: str, number: int, slice: int, turn: int, current: int) -> None:
        super().__init__(
            f"expected turn {current} of slice {slice} of claim {number} of consumer {name!r}, got {turn}: another task "
            "has begun this slice since; stop this one",
            name=name,
            number=number,
            slice=slice,
            turn=turn,
            current=current,
        )


class ClaimNotNext(Rejected):
    """A consumer has at most one open claim, and the numbers of its claims have no gaps: `number`,
    `last_closed`.
    """

    code = "claim_not_next"

    def __init__(self, name: str, number: int, last_closed: int) -> None:
        super().__init__(
            f"claim {number} of consumer {name!r} is not open, and claims up to {last_closed} are closed; take claim {last_closed + 1} first",
            name=name,
            number=number,
            last_closed=last_closed,
        )


class ClaimClosed(Rejected):
    """The claim was closed, so its messages cannot be read again."""

    code = "claim_closed"

    def __init__(self, name: str, number: int, last_closed: int) -> None:
        super().__init__(
            f"expected claim {number} of consumer {name!r} to be open, but all up to {last_closed} are closed; continue with claim {last_closed + 1}",
            name=name,
            number=number,
            last_closed=last_closed,
        )


class ClaimReleased(Rejected):
    """The claim ended without being closed: its messages returned to their queue, or were deleted with the
    queue. The reader has lost the claim.
    """

    code = "claim_released"

    def __init__(self, name: str, number: int, why: str) -> None:
        super().__init__(
            f"claim {number} of consumer {name!r} is lost: {why}; its messages may be delivered again; continue with claim {number + 1}",
            name=name,
            number=number,
            why=why,
        )


class StagedChunkMissing(Rejected):
    """A chunk to be published does not exist: it was never staged, was discarded, or has expired. Nothing was
    changed.
    """

    code = "staged_chunk_missing"

    def __init__(self, token: str, queue: str, chunk: str) -> None:
        super().__init__(
            f"expected chunk {chunk!r} of write {token!r} to queue {queue!r} to be staged; stage it again, then publish",
            token=token,
            queue=queue,
            chunk=chunk,
        )


class StagedQueueGone(Rejected):
    """The queue of a staged chunk was deleted. A queue that was created later under the same name is a
    different queue. Nothing was changed.
    """

    code = "staged_queue_gone"

    def __init__(self, token: str, queue: str, chunk: str) -> None:
        super().__init__(
            f"expected queue {queue!r} to still exist for chunk {chunk!r} of write {token!r}; "
            "create the queue if it is missing, and stage the chunk again",
            token=token,
            queue=queue,
            chunk=chunk,
        )


class Overloaded(Unavailable):
    """A door has as much work as its limits allow. Nothing was carried out."""

    code = "overloaded"

    def __init__(self, what: str, limit: int, retry_after_ms: int) -> None:
        super().__init__(
            f"the server is at its limit of {limit} {what}; try again in {retry_after_ms} ms",
            what=what,
            limit=limit,
            retry_after_ms=retry_after_ms,
        )


class SessionFull(Unavailable):
    """The session has as many unconfirmed answers as the broker remembers. Nothing was carried out."""

    code = "session_full"

    def __init__(self, session: str, answers: int, size: int) -> None:
        super().__init__(
            f"session {session!r} has {answers} answers of {size} bytes that were not confirmed, "
            "and accepts no request at 1,024 answers or 1 MiB; nothing was carried out, "
            "confirm the answers that have arrived, and send the request again",
            session=session,
            answers=answers,
            bytes=size,
        )


class ServerStopping(Unavailable):
    """The server accepts no more work. Nothing was carried out, and leases stay valid."""

    code = "server_stopping"

    def __init__(self) -> None:
        super().__init__("the server is stopping; try again when it is back, leases stay valid meanwhile")


class AddressUnavailable(Unavailable):
    """A server cannot listen at its address. Nothing was started."""

    code = "address_unavailable"

    def __init__(self, door: str, address: str, what: str) -> None:
        super().__init__(
            f"expected to listen on {address} ({door}), got: {what}; "
            "stop the program that uses the address, or choose another address (port 0 picks a free one)",
            door=door,
            address=address,
            what=what,
        )


class ServerUnreachable(Unavailable):
    """No connection was made within the time allowed."""

    code = "server_unreachable"

    def __init__(self, address: str, what: str) -> None:
        super().__init__(
            f"expected a fairlead server at {address}, got no answer ({what}); start one with: fairlead serve",
            address=address,
            what=what,
        )


class TlsFailed(ServerUnreachable):
    """Client and server cannot agree on a secure connection. Somebody must change a setting before a retry
    can work.
    """

    code = "tls_failed"

    def __init__(self, address: str, what: str) -> None:
        FairleadError.__init__(
            self,
            f"expected a connection with the server at {address}, but {what}",
            address=address,
            what=what,
        )


class AnswerLost(Unavailable):
    """The connection broke after a request was sent that is not safe to repeat. The request may or may not
    have been carried out.
    """

    code = "answer_lost"

    def __init__(self, verb: str) -> None:
        super().__init__(
            f"the connection broke during {verb}; check whether it was carried out before you repeat it",
            verb=verb,
        )


class QueueFull(Unavailable):
    code = "queue_full"

    def __init__(self, queue: str, bound: str, limit: int) -> None:
        super().__init__(
            f"queue {queue!r} is at its bound {bound}={limit}; try again when consumers have caught up",
            queue=queue,
            bound=bound,
            limit=limit,
        )


class TooManyLanes(Unavailable):
    """Too many distinct (fairness key, throttle keys) pairs have ready messages."""

    code = "too_many_lanes"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"expected at most {limit} active (fairness key, throttle keys) pairs; use fewer distinct keys or drain some",
            limit=limit,
        )


class StoreFull(Unavailable):
    """The free space is below the reserve (for requests that grow the store), or the disk is full (for any
    write). Nothing was stored.

    `needed_bytes` is the sum of the space that must be free: the reserve, the space that the logs may still
    need as tables, and the request.
    """

    code = "store_full"

    def __init__(self, path: str, free_bytes: int, reserve: int = 0, logs: int = 0, request: int = 0) -> None:
        needed = reserve + logs + request
        parts = {"in reserve": reserve, "to write logs as tables": logs, "for this request": request}
        sum_of = ", ".join(f"{size} {what}" for what, size in parts.items() if size)
        found = f"expected at least {needed} free bytes at {path} ({sum_of}), found {free_bytes}"
        super().__init__(
            f"{found}; purge, drop or complete messages, or free disk space; the store continues by itself",
            path=path,
            free_bytes=free_bytes,
            needed_bytes=needed,
            reserve_bytes=reserve,
        )


class StoreLocked(Unavailable):
    code = "store_locked"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"expected to be the only process using {path}, but another one has it open; close it, or connect to its server",
            path=path,
        )


class HookHostUnavailable(Unavailable):
    """The process that runs hook scripts does not start, so a script cannot be checked. Nothing was changed."""

    code = "hook_host_unavailable"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; hooks cannot be checked or run until it does", what=what)


class StaleEpoch(Unavailable):
    """Another broker owns the shard now, so this broker may no longer write. Nothing was stored.

    This is `Unavailable` because nothing is broken: the same request may work at the new owner. The broker
    that gets this error steps down.
    """

    code = "stale_epoch"

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(
            f"expected to own the shard in epoch {current}, got epoch {epoch}: another broker has taken it over;"
            " send the request there",
            epoch=epoch,
            current=current,
        )


class HookInvalid(UserCodeError):
    """A hook script that can never run. `line` is the line of the mistake, or None if no single line is
    wrong.
    """

    code = "hook_invalid"

    def __init__(self, function: str, line: int | None, what: str) -> None:
        where = function if line is None else f"{function}, line {line}"
        super().__init__(
            f"expected a Lua script that defines {function}; {where}: {what}",
            function=function,
            line=line,
            what=what,
        )


class RunbookInvalid(UserCodeError):
    """A runbook with mistakes. `problems` has all of them, each as (file, line, path, what). The first is the
    message of the error, the others are its notes.

    A line is None where the syntax gives none. Nothing was changed.
    """

    code = "runbook_invalid"

    def __init__(self, problems: Sequence[tuple[str, int | None, str, str]]) -> None:
        said = [
            ": ".join(part for part in (file if line is None else f"{file}:{line}", path, what) if part)
            for file, line, path, what in problems
        ]
        super().__init__(said[0], problems=[tuple(problem) for problem in problems])
        for other in said[1:]:
            self.add_note(other)


class StepNotLoaded(UserCodeError):
    """A step of a pipeline cannot be called: its module or function does not exist, or the import raised."""

    code = "step_not_loaded"

    def __init__(self, step: str, run: str, what: str) -> None:
        super().__init__(f"expected step {step!r} to run {run!r}, but {what}", step=step, run=run, what=what)


class StoreCorrupt(BrokenInvariant):
    """A stored record cannot be trusted. `where` names the record."""

    code = "store_corrupt"

    def __init__(self, where: str, what: str) -> None:
        super().__init__(
            f"{where} is corrupt: {what}; restore a backup, or save what can be read with `fairlead repair`",
            where=where,
            what=what,
        )


class StoreFailed(BrokenInvariant):
    """A write or a sync failed, and it is unknown what is durable. The broker accepts no more work."""

    code = "store_failed"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the store failed ({what}); reopen the directory: everything confirmed before is safe", what=what
        )
