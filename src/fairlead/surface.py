"""The verbs as typed methods, written once: each builds a request and passes it to `do`.

`Surface` is the interface of the broker in process, of the blocking client, and of a caller behind a server's
layers. `AsyncSurface` derives from it: there `do` returns an awaitable, and `_awaited` gives each method the
type of a coroutine function. Any request can also be made by `x.do(Request(...))`, with the same types. A
method's docstring begins with that of its verb; a test compares them.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast

from fairlead.decide.dead_filter import DeadFilter
from fairlead.model.access import AuditRecord, Grant, KeyInfo, NewKey
from fairlead.model.consumer import CloseResult, ConsumerInfo, DefaultOutcome, NumberedClaim, SliceBegun
from fairlead.model.delivery import Delivery
from fairlead.model.durations import Duration
from fairlead.model.failure import FailureReason
from fairlead.model.intent import Intent
from fairlead.model.lane import DEFAULT_KEY
from fairlead.model.limits import MAX_CLAIM
from fairlead.model.message import NewMessage
from fairlead.model.session import SessionInfo
from fairlead.model.settle import Complete, Extend, Fail, Release, Settlement, SettleResult, Start
from fairlead.model.staging import Dead, PublishResult, StagedWrite, StageResult
from fairlead.model.throttle import ClosedThrottle
from fairlead.model.views import (
    Explanation,
    FailureMetrics,
    MessageInfo,
    OperatorResult,
    QueueInfo,
    QueueStats,
    RedriveResult,
)
from fairlead.request import Answer, Request
from fairlead.verbs import audit as audit_verbs
from fairlead.verbs import config as config_verbs
from fairlead.verbs import consumers as consumer_verbs
from fairlead.verbs import keys as key_verbs
from fairlead.verbs import runbooks as runbook_verbs
from fairlead.verbs import staging as staging_verbs
from fairlead.verbs.browse import Browse, BrowseSplits
from fairlead.verbs.claim import Claim
from fairlead.verbs.dead_letters import CancelIntent, Intents, Redrive
from fairlead.verbs.enqueue import Enqueue, EnqueueMany, Quarantine, Twin
from fairlead.verbs.exchange import Exchange
from fairlead.verbs.inspect import Explain, ExplainQueue, Find, GetFailureMetrics, Peek, Stats
from fairlead.verbs.maintain import Checkpoint
from fairlead.verbs.operate import (
    Bury,
    Done,
    Drain,
    Drop,
    FailLeased,
    Hold,
    Prune,
    ReleaseStream,
    Reset,
    Retry,
    Unhold,
)
from fairlead.verbs.queues import CreateQueue, DeleteQueue, ListQueues, Pause, Purge, Resume, UpdateQueue
from fairlead.verbs.sessions import CloseSession, OpenSession
from fairlead.verbs.settle import Ack, Goodbye, Nack, Settle
from fairlead.verbs.throttles import CloseThrottle, OpenThrottle, Throttles

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class Doer(Protocol):
    """Anything that carries out requests and waits for their answers."""

    def do(self, request: Request[Answer]) -> Answer: ...


class Group:
    """Verbs with a common prefix, such as `config.get` and `config.set`."""

    def __init__(self, doer: Doer) -> None:
        self._doer = doer

    def do(self, request: Request[Answer]) -> Answer:
        return self._doer.do(request)


class ConfigGroup(Group):
    """`config`: the runtime configuration, text by key, in force at once."""

    def get(self, key: str) -> str:
        """The value of a key. Raises `ConfigKeyNotFound`."""
        return self.do(config_verbs.ConfigGet(key))

    def set(self, key: str, value: str | float) -> None:
        """Set a key. A number is stored as its text. A throttle or weight takes effect with the next message."""
        return self.do(config_verbs.ConfigSet(key, value))

    def delete(self, key: str) -> None:
        """Delete a key. Raises `ConfigKeyNotFound`."""
        return self.do(config_verbs.ConfigDelete(key))

    def list(self, prefix: str = "") -> dict[str, str]:
        """All keys that begin with `prefix`, with their values."""
        return self.do(config_verbs.ConfigList(prefix))


class RunbooksGroup(Group):
    """`runbooks`: the runbooks in force. A project is a text; "" means queues without a project."""

    def save(self, project: str, text: str) -> None:
        """Put a project's runbook into force. `text` is the output of `dump_runbook`; the queues are created
        and changed separately.
        """
        return self.do(runbook_verbs.RunbooksSave(project, text))

    def get(self, project: str) -> str:
        """The runbook of a project. Raises `RunbookNotFound`."""
        return self.do(runbook_verbs.RunbooksGet(project))

    def list(self) -> dict[str, str]:
        """The texts of all runbooks by project, sorted by project."""
        return self.do(runbook_verbs.RunbooksList())


class KeysGroup(Group):
    """`keys`: API keys within the rights of the caller's own key."""

    def create(
        self,
        name: str,
        grants: Iterable[Grant | str] = (),
        *,
        expires_in: Duration | None = None,
        expires_at: int | None = None,
    ) -> NewKey:
        """Create a key with these rights. Its `secret` is returned only here. `expires_at` is in epoch
        milliseconds.
        """
        return self.do(key_verbs.KeysCreate(name, _as_list(grants), expires_in, expires_at))

    def list(self) -> list[KeyInfo]:
        """All keys, in the order of their creation."""
        return self.do(key_verbs.KeysList())

    def show(self, key_id: str = "") -> KeyInfo:
        """A key by its id; without an id, the caller's own.

        Raises `KeyNotFound`.
        """
        return self.do(key_verbs.KeysShow(key_id))

    def set_grants(self, key_id: str, grants: Iterable[Grant | str]) -> KeyInfo:
        """Replace all rights of a key, from its next call on."""
        return self.do(key_verbs.KeysSetGrants(key_id, _as_list(grants)))

    def change_grants(
        self, key_id: str, *, add: Iterable[Grant | str] = (), remove: Iterable[Grant | str] = ()
    ) -> KeyInfo:
        """Add and remove rights, independent of concurrent changes. A removed right must be there, word for
        word.

        """
        return self.do(key_verbs.KeysChangeGrants(key_id, _as_list(add), _as_list(remove)))

    def revoke(self, key_id: str) -> None:
        """Revoke a key: its next call is refused, also on an open stream. Raises `KeyNotFound`."""
        return self.do(key_verbs.KeysRevoke(key_id))

    def rotate(self, key_id: str, *, keep: Duration | None = None) -> NewKey:
        """Create a new key with the same name, rights and end. The old one works for `keep` longer, or ends
        now.

        A caller may always rotate its own key: the holder of a secret may exchange it. Keeping the old secret
        beside the new one needs the rights to change the key; otherwise, whoever found a secret could create
        a second one that stays valid when the first is revoked.
        """
        return self.do(key_verbs.KeysRotate(key_id, keep))


class AuditGroup(Group):
    """`audit`: the record of audited calls."""

    def read(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        who: str | None = None,
        verb: str | None = None,
        queue: str | None = None,
        since: int | None = None,
    ) -> list[AuditRecord]:
        """Entries of the audit, the newest first. `before` is the number of the last entry seen; `since` a
        time in epoch milliseconds.

        A filter searches the 100,000 entries before that number.
        """
        return self.do(audit_verbs.AuditRead(limit, before, who, verb, queue, since))


class ConsumersGroup(Group):
    """`consumers`: durable consumers and their numbered claims.

    `generation` is what `register` returned; a later registration fences all earlier ones. A consumer is
    identified by its name and its queue: the same name in another queue is another consumer.
    """

    def register(
        self, name: str, queue: str, *, ttl: Duration = "7d", default_outcome: DefaultOutcome = "complete"
    ) -> ConsumerInfo:
        """Register the consumer, or take it over with its open claim: from now on only the new generation
        counts.

        A consumer without a call for its time to live loses that claim. `default_outcome` is what a close
        does with messages that have no outcome: "complete", or "release" back to their places.
        """
        return self.do(consumer_verbs.ConsumersRegister(name, queue, ttl, default_outcome))

    def claim(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        limit: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        wait: Duration | None = None,
        up_to: int | None = None,
        max_per_stream: int = MAX_CLAIM,
    ) -> NumberedClaim:
        """Take the next claim, waiting up to `wait` for the first message; the number of the open claim
        returns the same claim again.

        Until it is closed, its messages do not change: no other caller gets, settles or moves them.
        `max_bytes` is exceeded by a few messages at most. `up_to` is a place, as `ceiling` returns it:
        nothing after it is taken. A stream's run is taken whole unless `max_per_stream` ends it earlier, so
        that more streams fit.
        """
        return self.do(
            consumer_verbs.ConsumersClaim(
                name, queue, generation, number, limit, max_bytes, wait, up_to, max_per_stream
            )
        )

    def read(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
    ) -> Iterator[Delivery]:
        """The messages of the open claim, in its order; with `slices`, only those of one slice. A whole
        stream is in one slice.

        Every reading of an open claim returns the same messages. A read after the end of the claim raises
        `ClaimClosed` or `ClaimReleased`. `unsettled`, for consumers registered with
        `default_outcome="release"`, leaves out messages with an outcome, and in a stream all messages behind
        one that failed or was released.
        """
        pages = self.read_pages(
            name, queue, generation, number, slice=slice, slices=slices, unsettled=unsettled
        )
        return (delivery for page in pages for delivery in page)

    def read_pages(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        *,
        slice: int = 0,
        slices: int = 1,
        unsettled: bool = False,
        after: bytes = b"",
    ) -> Iterator[Sequence[Delivery]]:
        """`read`, page by page: up to a thousand messages or about eight mebibytes, from the message after
        the id `after` on.
        """
        return self.do(
            consumer_verbs.ConsumersRead(name, queue, generation, number, slice, slices, unsettled, after)
        )

    def record(
        self,
        name: str,
        queue: str,
        generation: int,
        number: int,
        items: Sequence[Complete | Fail | Release | Extend | Start],
        *,
        part: str = "",
        slice: int = 0,
        turn: int = 0,
    ) -> None:
        """Record outcomes of messages of the open claim; they take effect when the claim is closed.

        The last outcome of a message counts. An outcome recorded under a part counts only if `choose` names
        the part. `Start` says that work begins: see `begin_slice`. It is no outcome and replaces none.
        `Extend` takes effect at once: progress grows, and the latest carry replaces the earlier one, whether
        or not the message has an outcome. An `Extend` with less progress than this claim has recorded comes
        from an outdated task, and changes nothing.

        With `turn`, as `begin_slice` granted it for `slice`, the call fails with `StaleSlice` once another
        task has begun the slice. An empty list of items only checks that the claim and the turn are current.
        """
        request = consumer_verbs.ConsumersRecord(name, queue, generation, number, items, part, slice, turn)
        return self.do(request)

    def begin_slice(
        self, name: str, queue: str, generation: int, number: int, *, slice: int = 0, slices: int = 1
    ) -> SliceBegun:
        """Begin work on a slice, and grant the caller a turn of it, which ends all earlier ones.

        A message that an earlier task began there and left without an outcome has failed. This is the rule
        for a started delivery whose lease expires, so that a message which kills its worker ends as a dead
        letter. If the earlier task is alive after all, it can record nothing more under its turn; what it
        records without one counts.
        """
        return self.do(consumer_verbs.ConsumersBeginSlice(name, queue, generation, number, slice, slices))

    def choose(
        self, name: str, queue: str, generation: int, number: int, parts: Sequence[str], *, add: bool = False
    ) -> None:
        """Count only outcomes recorded under these parts, beside those without a part; a later choice
        replaces an earlier one.

        With `add`, parts chosen before count too.
        """
        return self.do(consumer_verbs.ConsumersChoose(name, queue, generation, number, parts, add))

    def close(self, name: str, queue: str, generation: int, up_to: int) -> CloseResult:
        """Close the open claim: each message gets the outcome recorded for it, or else the consumer's
        `default_outcome`.

        Closing a closed claim changes nothing. A close that a crash interrupts is finished at the next open.
        """
        return self.do(consumer_verbs.ConsumersClose(name, queue, generation, up_to))

    def heartbeat(self, name: str, queue: str, generation: int) -> ConsumerInfo:
        """Restart the consumer's time to live. Every other call with its generation does so too."""
        return self.do(consumer_verbs.ConsumersHeartbeat(name, queue, generation))

    def ceiling(self, name: str, queue: str, generation: int) -> int:
        """A place: messages that are ready now have places up to it; messages that are enqueued or retried
        later get places after it.
        """
        return self.do(consumer_verbs.ConsumersCeiling(name, queue, generation))

    def release(self, name: str, queue: str) -> int:
        """Release the open claim, whichever process works on it: its messages return to their places. Returns
        their number.

        A later call with its number gets `ClaimReleased`; the consumer continues with the next one.
        """
        return self.do(consumer_verbs.ConsumersRelease(name, queue))

    def drop(self, name: str, queue: str) -> None:
        """Release the open claim, and delete the consumer."""
        return self.do(consumer_verbs.ConsumersDrop(name, queue))

    def list(self) -> builtins.list[ConsumerInfo]:
        """All durable consumers, in order of their queues and names."""
        return self.do(consumer_verbs.ConsumersList())

    def show(self, name: str, queue: str) -> ConsumerInfo:
        """One durable consumer. Raises `ConsumerNotFound`."""
        return self.do(consumer_verbs.ConsumersShow(name, queue))


class StagingGroup(Group):
    """`staging`: chunks of messages that become visible together. A queue and a token identify a write."""

    def stage(
        self,
        token: str,
        chunk: str,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        ttl: Duration = "1d",
        skip_invalid: bool = False,
        dead: Dead | Sequence[Dead] | None = None,
    ) -> StageResult:
        """Store messages that stay invisible until `publish`; staging the same chunk again replaces the
        first.

        A write that is never published is dropped once `ttl` has passed since its last chunk. With
        `skip_invalid`, invalid messages are left out and listed in `refused`; otherwise one of them refuses
        the chunk. The queue's hook runs now, not at publish. With `dead`, a (reason, error) for all messages
        or one for each, they become dead letters, as with `quarantine`. A chunk of a write that is already
        published is checked, and not stored.
        """
        return self.do(staging_verbs.StagingStage(token, chunk, queue, messages, ttl, skip_invalid, dead))

    def publish(self, token: str, queue: str, chunks: Sequence[str]) -> PublishResult:
        """Turn these chunks into messages, in this order, all of them or none; other chunks of the write are
        dropped.

        Returns when all messages exist, synced whatever the durability is. Publishing the same write again
        within seven days does nothing, and answers `already`. Once begun it cannot fail: if this call is
        interrupted, the broker finishes it. Raises, with nothing changed, `StagedChunkMissing`,
        `StagedQueueGone`, `QueueFull`, `TooManyLanes`, `StoreFull`.
        """
        return self.do(staging_verbs.StagingPublish(token, queue, chunks))

    def discard(self, token: str, queue: str) -> int:
        """Drop a write that is not published. Returns the number of its chunks."""
        return self.do(staging_verbs.StagingDiscard(token, queue))

    def list(self) -> list[StagedWrite]:
        """Writes in the order of their first chunks: staged writes, and the last thousand published ones that
        are remembered.
        """
        return self.do(staging_verbs.StagingList())


class Surface:
    """Every verb as a method. Groups are made on first use, because a server has a surface for each call."""

    @cached_property
    def config(self) -> ConfigGroup:
        return ConfigGroup(self)

    @cached_property
    def runbooks(self) -> RunbooksGroup:
        return RunbooksGroup(self)

    @cached_property
    def keys(self) -> KeysGroup:
        return KeysGroup(self)

    @cached_property
    def audit(self) -> AuditGroup:
        return AuditGroup(self)

    @cached_property
    def consumers(self) -> ConsumersGroup:
        return ConsumersGroup(self)

    @cached_property
    def staging(self) -> StagingGroup:
        return StagingGroup(self)

    def do(self, request: Request[Answer]) -> Answer:
        """Carry out any request."""
        raise NotImplementedError

    def once(self, request: Request[Answer], *, session: str, number: int, arrived: int = 0) -> Answer:
        """Carry out a request of a session that `open_session` opened, under a number: 1, 2, 3, ...

        The same number again returns the same answer without a second effect; for a claim, the deliveries
        that are still leased. Requests may be in flight at the same time, also out of order. `arrived`: the
        client has received all answers up to that number; the broker forgets them, and refuses their numbers
        with `RequestExpired`. It remembers 1,024 answers or 1 MiB; then `SessionFull`. A refused request is
        not remembered. A session refuses verbs in several steps, unless they may be repeated anyway.
        """
        raise NotImplementedError

    # Queues

    def create_queue(self, /, name: str, **options: Any) -> QueueInfo:
        """Create a queue and its dead-letter queue `<name>.dlq`.

        docs/reference/queue-options.md describes the options.
        """
        return self.do(CreateQueue(name, options))

    def update_queue(self, /, name: str, **options: Any) -> QueueInfo:
        """Change options of a queue; the others stay."""
        return self.do(UpdateQueue(name, options))

    def pause(self, name: str) -> None:
        """Stop deliveries from a queue; enqueues and settles continue."""
        return self.do(Pause(name))

    def resume(self, name: str) -> None:
        """Resume deliveries from a paused queue."""
        return self.do(Resume(name))

    def purge(self, name: str) -> int:
        """Drop every message that is ready or waiting; leased and retained messages stay. Returns their
        number.

        """
        return self.do(Purge(name))

    def delete_queue(self, name: str) -> None:
        """Delete a queue, its `.dlq` and all their messages."""
        return self.do(DeleteQueue(name))

    def queues(self, prefix: str = "") -> list[QueueInfo]:
        """All queues whose names begin with `prefix`, sorted by name."""
        return self.do(ListQueues(prefix))

    def stats(self, queue: str, *, keys: bool = False, key_limit: int = 1000) -> QueueStats:
        """Exact counts. `keys=True` adds weight, deficit and pending of up to `key_limit` active keys."""
        return self.do(Stats(queue, keys, key_limit))

    # Messages in

    def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        fairness_key: str = DEFAULT_KEY,
        weight: int = 1,
        throttle_keys: Sequence[str] = (),
        stream: str | None = None,
        delay: Duration | None = None,
        dedup_key: str | None = None,
        ttl: Duration | None = None,
    ) -> str:
        """Enqueue one message. Returns its id; for a duplicate, the id of the first message."""
        return self.do(
            Enqueue(
                queue, payload, headers, fairness_key, weight, throttle_keys, stream, delay, dedup_key, ttl
            )
        )

    def enqueue_many(self, queue: str, messages: Sequence[NewMessage]) -> list[str]:
        """Enqueue messages, all or none, in the given order, in one commit. Returns their ids."""
        return self.do(EnqueueMany(queue, messages))

    def quarantine(
        self,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        error: str = "",
    ) -> list[str]:
        """Add messages directly to the dead letters of a queue, with a record of the reason."""
        return self.do(Quarantine(queue, messages, reason, error))

    # Messages out

    def claim(
        self,
        queue: str | Sequence[str],
        *,
        limit: int = 1,
        wait: Duration | None = None,
        consumer: str = "",
        max_per_stream: int = 1,
        token: str | None = None,
        started: bool = True,
    ) -> list[Delivery]:
        """Lease up to `limit` messages, waiting up to `wait` for the first.

        `max_per_stream` lets one claim take a run of a stream, in order. `token` makes the claim idempotent:
        while any of its messages is leased, the same token returns these instead of more. `started=False` is
        for prefetching: send `Start` before work begins; until then, expiry counts as a release.
        """
        return self.do(Claim(queue, limit, wait, consumer, max_per_stream, token, started))

    def settle(self, items: Sequence[Settlement]) -> list[SettleResult]:
        """Report outcomes of deliveries, with one result for each. A stale lease changes nothing and answers
        `lost_lease`.

        A few thousand completions are one commit; a call with more items is settled part by part, in order.
        """
        return self.do(Settle(items))

    def ack(self, queue: str, message_id: str) -> SettleResult:
        """Complete a message under its current lease. Not fenced: a late caller may settle another consumer's
        delivery.
        """
        return self.do(Ack(queue, message_id))

    def nack(
        self,
        queue: str,
        message_id: str,
        error: str = "",
        *,
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
    ) -> SettleResult:
        """Fail a message under its current lease; not fenced, like `ack`."""
        return self.do(Nack(queue, message_id, error, reason))

    def goodbye(self, consumer: str) -> int:
        """Release all messages that a consumer has leased to their places. Returns their number."""
        return self.do(Goodbye(consumer))

    def exchange(self, requests: Sequence[Request[Any]]) -> builtins.list[Any]:
        """Carry out several requests in one call: settles and enqueues in one commit, then a claim.

        The answers are in the order of the requests. Effects are in a fixed order: extensions, completions,
        failures, releases, enqueues, claim. If a request is refused as a whole, the whole call is refused
        before any of it runs. The claim does not wait.

        In a session the call is safe to repeat; see `once`.
        """
        return self.do(Exchange(requests))

    def open_session(self, session: str) -> SessionInfo:
        """Open a session, or look up its state. Its requests have the numbers 1, 2, 3, ...

        A session belongs to the API key that opened it: the same name from another key is another session.
        The broker forgets a session that was not used for a day; a later request is refused with
        `SessionExpired`.

        `once` carries out its requests.
        """
        return self.do(OpenSession(session))

    def close_session(self, session: str) -> bool:
        """Forget a session and its answers now, instead of a day after its last use. Returns whether the
        session existed.

        Later requests of the session are refused with `SessionExpired`. Let a session expire instead if a
        copy of one of its requests may still arrive: after a late copy of `open_session`, that request would
        be carried out again.
        """
        return self.do(CloseSession(session))

    # Acts of operators, by id or filter, without a lease token. `dry_run` shows what would change.

    def retry(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        keep_count: bool = False,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Deliver again now, with a failure count of 0: dead messages, and messages that wait after a
        failure.

        With `keep_count`, only waiting messages are delivered, and their count stays.

        Raises `InvalidRequest` or `MessageNotFound` if a single id cannot be retried; of several ids, the
        result lists the skipped ones.
        """
        return self.do(Retry(queue, ids, filter, keep_count, dry_run))

    def reset(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Set the failure count of live messages to 0. They keep their place, their wait or their lease."""
        return self.do(Reset(queue, ids, filter, dry_run))

    def drop(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Delete messages permanently, whatever their state; a lease on them is revoked."""
        return self.do(Drop(queue, ids, filter, dry_run))

    def done(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Complete messages by hand; a lease on them is revoked."""
        return self.do(Done(queue, ids, filter, dry_run))

    def bury(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        error: str = "buried by an operator",
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Move messages to the dead letters; a lease on them is revoked."""
        return self.do(Bury(queue, ids, filter, error, reason, dry_run))

    def hold(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        error: str = "",
        reason: FailureReason | str | int | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Keep messages waiting until `unhold`; a lease on them is revoked. In a stream they block later
        ones.

        With `reason`, such as `poison_message`, the messages get a record of the reason. The record counts no
        attempt, and a message that is held already gets it too.
        """
        return self.do(Hold(queue, ids, filter, error, reason, dry_run))

    def unhold(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Make held messages ready now."""
        return self.do(Unhold(queue, ids, filter, dry_run))

    def fail(
        self,
        queue: str,
        ids: Sequence[str] | None = None,
        *,
        filter: DeadFilter | None = None,
        error: str = "failed by an operator",
        reason: FailureReason | str | int = FailureReason.UNKNOWN,
        dry_run: bool = False,
    ) -> OperatorResult:
        """Fail leased messages as if their consumers had reported it; the leases are revoked."""
        return self.do(FailLeased(queue, ids, filter, error, reason, dry_run))

    def drain(self, queue: str, *, limit: int = 10_000) -> list[MessageInfo]:
        """Remove ready messages and return them. No part of them is hidden, so the call needs the right to
        read payloads.
        """
        return self.do(Drain(queue, limit))

    def prune(
        self,
        queue: str,
        *,
        older_than: Duration = "0s",
        which: Literal["all", "done", "dead"] = "all",
        dry_run: bool = False,
    ) -> OperatorResult:
        """Drop messages that have been dead, or done and retained, for longer than `older_than`."""
        return self.do(Prune(queue, older_than, which, dry_run))

    def release_stream(self, queue: str, stream: str) -> bool:
        """Let later messages of a stream pass the message that waits at its head; a repeated call also lets
        them pass the next one.

        Returns False if no message waits at its head.

        Raises `InvalidRequest` for a stream without live messages.
        """
        return self.do(ReleaseStream(queue, stream))

    # Throttle keys

    def throttles(self) -> list[ClosedThrottle]:
        """The throttle keys that are closed or opening: since when, until when, by whom and why."""
        return self.do(Throttles())

    def close_throttle(
        self, key: str, duration: Duration, *, error: str = "closed by an operator"
    ) -> ClosedThrottle:
        """Close a throttle key: for that time, no consumer receives its messages. Then it opens step by step.
        A key that is already closed for longer stays so.
        """
        return self.do(CloseThrottle(key, duration, error))

    def open_throttle(self, key: str) -> bool:
        """Open a closed throttle key at once and fully. Returns False if it was not closed."""
        return self.do(OpenThrottle(key))

    # Dead letters

    def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[str] | None = None,
        filter: DeadFilter | None = None,
        count: int | None = None,
        dry_run: bool = False,
        rate: float | None = None,
        clear_progress: bool = False,
    ) -> RedriveResult:
        """Return dead letters to their queue, the longest dead first, each in a new life without attempts.

        A dry run counts exactly the messages that would return. With `rate` (messages a second) the redrive
        continues in the background, also after a restart.
        """
        return self.do(Redrive(queue, ids, filter, count, dry_run, rate, clear_progress))

    def intents(self) -> list[Intent]:
        """The running long operations."""
        return self.do(Intents())

    def cancel_intent(self, intent_id: int) -> bool:
        """Stop a running redrive. Returns False if there is none with that id."""
        return self.do(CancelIntent(intent_id))

    # Looking

    def find(self, message_id: str, queue: str | None = None) -> MessageInfo:
        """Find a message by its full id or a unique prefix; within a given queue, also by its last
        characters, or the first message of a stream as `stream:NAME`.
        """
        return self.do(Find(message_id, queue))

    def twin(self, queue: str, dedup_key: str) -> str | None:
        """The id that an enqueue with this dedup key would return now; None if it would be a new message."""
        return self.do(Twin(queue, dedup_key))

    def peek(
        self,
        queue: str,
        *,
        limit: int = 10,
        where: str = "ready",
        key: str | None = None,
        after: str | None = None,
    ) -> list[MessageInfo]:
        """Show messages without claiming them."""
        return self.do(Peek(queue, limit, where, key, after))

    def browse(
        self,
        queue: str,
        *,
        view: Literal["messages", "dead"] = "messages",
        low: str = "",
        high: str = "",
        limit: int = 1000,
        after: str = "",
    ) -> list[MessageInfo]:
        """Read all messages of a queue without claiming them, page by page in the order of ids: from `low`
        on, before `high`, after `after`.

        `view="dead"` reads its dead letters. A page may be shorter than `limit`; an empty page is the end. A
        message that exists throughout is returned exactly once, whatever happens to it meanwhile.
        """
        return self.do(Browse(queue, view, low, high, limit, after))

    def browse_splits(
        self, queue: str, view: Literal["messages", "dead"] = "messages", n: int = 1
    ) -> list[tuple[str, str]]:
        """Up to `n` ranges (low, high) for `browse`, of about equal size, that together cover the queue; ""
        means no bound.
        """
        return self.do(BrowseSplits(queue, view, n))

    def failure_metrics(self, queue: str, *, streams: int = 100) -> FailureMetrics:
        """Attempts, reasons, scheduled retries, poison candidates, and up to `streams` blocked streams."""
        return self.do(GetFailureMetrics(queue, streams))

    def explain(self, message_id: str, queue: str | None = None) -> Explanation:
        """Explain why a message is not being delivered."""
        return self.do(Explain(message_id, queue))

    def explain_queue(self, name: str) -> Explanation:
        """Explain why a queue delivers nothing, or less than expected."""
        return self.do(ExplainQueue(name))

    # The broker itself

    def checkpoint(self, path: str | Path) -> None:
        """Write a consistent copy of all data, while running, to a path that does not exist yet.

        Through a server, the path is on the server's machine.
        """
        return self.do(Checkpoint(path))


def _as_list(grants: Any) -> Any:
    """A request is read more than once and may travel, so it carries a list of texts; the engine refuses every
    other value.
    """
    if isinstance(grants, (str, bytes)) or not isinstance(grants, Iterable):
        return grants
    return [str(grant) if isinstance(grant, Grant) else grant for grant in grants]


class AsyncDoer(Protocol):
    def do(self, request: Request[Answer]) -> Awaitable[Answer]: ...


def _awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The same method as a coroutine function: `do` returns an awaitable there."""

    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast("Awaitable[T]", method(self, *args, **kwargs))

    return wraps(method)(call)


class AsyncGroup:
    def __init__(self, doer: AsyncDoer) -> None:
        self._doer = doer

    def do(self, request: Request[Answer]) -> Awaitable[Answer]:
        return self._doer.do(request)


class AsyncConfigGroup(AsyncGroup):
    """`config`: the runtime configuration, text by key, live at once."""

    get = _awaited(ConfigGroup.get)
    set = _awaited(ConfigGroup.set)
    delete = _awaited(ConfigGroup.delete)
    list = _awaited(ConfigGroup.list)


class AsyncRunbooksGroup(AsyncGroup):
    """`runbooks`: the runbooks in force."""

    save = _awaited(RunbooksGroup.save)
    get = _awaited(RunbooksGroup.get)
    list = _awaited(RunbooksGroup.list)


class AsyncKeysGroup(AsyncGroup):
    """`keys`: API keys, as far as the caller's own key lets it see and change them."""

    create = _awaited(KeysGroup.create)
    list = _awaited(KeysGroup.list)
    show = _awaited(KeysGroup.show)
    set_grants = _awaited(KeysGroup.set_grants)
    change_grants = _awaited(KeysGroup.change_grants)
    revoke = _awaited(KeysGroup.revoke)
    rotate = _awaited(KeysGroup.rotate)


class AsyncAuditGroup(AsyncGroup):
    """`audit`: who did what."""

    read = _awaited(AuditGroup.read)


class AsyncConsumersGroup(AsyncGroup):
    """`consumers`: durable consumers and their numbered claims."""

    register = _awaited(ConsumersGroup.register)
    claim = _awaited(ConsumersGroup.claim)
    record = _awaited(ConsumersGroup.record)
    begin_slice = _awaited(ConsumersGroup.begin_slice)
    choose = _awaited(ConsumersGroup.choose)
    close = _awaited(ConsumersGroup.close)
    heartbeat = _awaited(ConsumersGroup.heartbeat)
    ceiling = _awaited(ConsumersGroup.ceiling)
    release = _awaited(ConsumersGroup.release)
    drop = _awaited(ConsumersGroup.drop)
    list = _awaited(ConsumersGroup.list)
    show = _awaited(ConsumersGroup.show)


class AsyncStagingGroup(AsyncGroup):
    """`staging`: chunks of messages that become visible together."""

    stage = _awaited(StagingGroup.stage)
    publish = _awaited(StagingGroup.publish)
    discard = _awaited(StagingGroup.discard)
    list = _awaited(StagingGroup.list)


class AsyncSurface:
    """Every verb as a coroutine."""

    @cached_property
    def config(self) -> AsyncConfigGroup:
        return AsyncConfigGroup(self)

    @cached_property
    def runbooks(self) -> AsyncRunbooksGroup:
        return AsyncRunbooksGroup(self)

    @cached_property
    def keys(self) -> AsyncKeysGroup:
        return AsyncKeysGroup(self)

    @cached_property
    def audit(self) -> AsyncAuditGroup:
        return AsyncAuditGroup(self)

    def do(self, request: Request[Answer]) -> Awaitable[Answer]:
        """Carry out any request."""
        raise NotImplementedError

    def once(
        self, request: Request[Answer], *, session: str, number: int, arrived: int = 0
    ) -> Awaitable[Answer]:
        """Carry out a request of a session; see `Surface.once`."""
        raise NotImplementedError

    create_queue = _awaited(Surface.create_queue)
    update_queue = _awaited(Surface.update_queue)
    pause = _awaited(Surface.pause)
    resume = _awaited(Surface.resume)
    purge = _awaited(Surface.purge)
    delete_queue = _awaited(Surface.delete_queue)
    queues = _awaited(Surface.queues)
    stats = _awaited(Surface.stats)
    enqueue = _awaited(Surface.enqueue)
    enqueue_many = _awaited(Surface.enqueue_many)
    quarantine = _awaited(Surface.quarantine)
    claim = _awaited(Surface.claim)
    settle = _awaited(Surface.settle)
    ack = _awaited(Surface.ack)
    nack = _awaited(Surface.nack)
    goodbye = _awaited(Surface.goodbye)
    exchange = _awaited(Surface.exchange)
    open_session = _awaited(Surface.open_session)
    close_session = _awaited(Surface.close_session)
    retry = _awaited(Surface.retry)
    reset = _awaited(Surface.reset)
    drop = _awaited(Surface.drop)
    done = _awaited(Surface.done)
    bury = _awaited(Surface.bury)
    hold = _awaited(Surface.hold)
    unhold = _awaited(Surface.unhold)
    fail = _awaited(Surface.fail)
    drain = _awaited(Surface.drain)
    prune = _awaited(Surface.prune)
    release_stream = _awaited(Surface.release_stream)
    throttles = _awaited(Surface.throttles)
    close_throttle = _awaited(Surface.close_throttle)
    open_throttle = _awaited(Surface.open_throttle)
    redrive = _awaited(Surface.redrive)
    intents = _awaited(Surface.intents)
    cancel_intent = _awaited(Surface.cancel_intent)
    find = _awaited(Surface.find)
    twin = _awaited(Surface.twin)
    peek = _awaited(Surface.peek)
    browse = _awaited(Surface.browse)
    browse_splits = _awaited(Surface.browse_splits)
    failure_metrics = _awaited(Surface.failure_metrics)
    explain = _awaited(Surface.explain)
    explain_queue = _awaited(Surface.explain_queue)
    checkpoint = _awaited(Surface.checkpoint)
