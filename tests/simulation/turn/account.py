"""The account: what the clients sent and what the server wrote to them, and whether that may be. It never asks the
server.

A lease is *over* when its end is known, and *may be over* when its time has passed, when a request that may have ended it
has come to the server, when a power cut may have undone it, or when nobody may have got the answer that told of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlead import Complete, Delivery, Extend, Fail, Release, Start
from fairlead.errors import (
    FairleadError,
    InvalidRequest,
    QueueNotFound,
    RequestExpired,
    SessionExpired,
    Unauthenticated,
    Unavailable,
)
from fairlead.model.settle import SettleResult
from fairlead.request import Request
from fairlead.testing import ManualClock
from fairlead.verbs.claim import Claim
from fairlead.verbs.enqueue import Enqueue, EnqueueMany
from fairlead.verbs.sessions import OpenSession
from fairlead.verbs.settle import Goodbye, Settle
from fairlead.wire.subscriptions import Cancel, Consume, Credit, Pushed
from tests.simulation.turn.clients import NOWHERE, ORDERED, PLAIN, Asked, Client, Session
from tests.simulation.turn.links import Link

_ENDS = (Complete, Fail, Release)


class BrokenPromise(AssertionError):
    pass


class Message:
    def __init__(self, tag: bytes, asked: Asked, queue: str, stream: str | None, delay_ms: int) -> None:
        self.tag = tag
        self.asked = asked
        #: When the first request with it came to the server.
        self.first_came = 0
        self.queue = queue
        self.stream = stream
        self.delay_ms = delay_ms
        self.id = ""
        #: Whether its enqueue was answered.
        self.is_confirmed = False
        #: The request that was told of its end.
        self.ended_by: Asked | None = None
        self.is_dead = False
        #: Requests with outcomes that end it; they may not be carried out.
        self.endings: list[Asked] = []
        self.leases: list[Lease] = []
        self.retries = 0

    @property
    def is_over(self) -> bool:
        return self.ended_by is not None

    @property
    def may_be_over(self) -> bool:
        return self.is_over or any(asked.has_come for asked in self.endings)

    def __str__(self) -> str:
        return self.tag.decode()


class Standing:
    """A subscription of a connection, as its client was told of it."""

    def __init__(self, link: Link, asked: Asked, request: Consume) -> None:
        self.link = link
        self.asked = asked
        self.request = request
        #: The credit that came to the server, and that which it has acknowledged.
        self.granted = self.acknowledged = request.credit
        self.sent: list[Lease] = []
        #: It was cancelled, or a push said that it is over.
        self.is_over = False
        #: The server has said or learned so.
        self.has_ended = False

    @property
    def may_be_over(self) -> bool:
        """Whether the server may have given back what was not started."""
        return self.is_over or self.link.is_known_lost or self.link.has_ended


class Lease:
    """Of one message. `link`: the last one on which it was told."""

    def __init__(
        self, message: Message, token: str, claim: Asked, link: Link, *, moment: int, commit: int
    ) -> None:
        self.message = message
        self.token = token
        self.claim = claim
        self.link = link
        #: When its claimant was told: after which moment, and after which commit.
        self.moment = moment
        self.commit = commit
        self.until_ms = 0
        #: Which delivery of the message it is.
        self.deliveries = 0
        #: Of a message that was sent by one; whether it was sent as started, or a start of it was answered.
        self.standing: Standing | None = None
        self.is_started = False
        #: Whether a request that may have started, extended or ended it has come.
        self.is_touched = False
        self.is_over = False
        self.is_doubtful = False
        #: Requests that may end it, or have.
        self.enders: list[Asked] = []


class Account:
    def __init__(self, clock: ManualClock, last_commit: Callable[[], int]) -> None:
        self._clock = clock
        self._last_commit = last_commit
        self.moment = 0
        #: Whether the store is about to fail. Then a request may be refused, and the refusal may reach nobody.
        self.may_fail: Callable[[], bool] = lambda: False
        self.messages: dict[bytes, Message] = {}
        #: Requests that were answered, with an effect that nobody has synced for them.
        self._unsynced: list[Asked] = []
        self._leases: dict[tuple[str, str], Lease] = {}
        self._claim_of_token: dict[str, Asked] = {}
        self._goodbyes: dict[Client, list[Asked]] = {}
        self._counted: set[Asked] = set()
        #: Keys that may be revoked by now; when they were, if that was confirmed.
        self.may_be_revoked: set[str] = set()
        #: Subscriptions that ended in this life of the server, with a store that is well.
        self._ended: list[Standing] = []
        self.revoked_at: dict[str, int] = {}
        self.answers = self.repeats = self.deliveries = 0

    def must(self, holds: bool, promise: str) -> None:
        if not holds:
            raise BrokenPromise(promise)

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    # What is sent

    def came(self, link: Link, asked: Asked) -> None:
        """A whole command has come to the server."""
        if asked.request is None:
            return
        if isinstance(asked.request, Credit) and (
            standing := link.subscriptions.get(asked.request.subscription)
        ):
            standing.granted += asked.request.count
        elif isinstance(asked.request, Cancel) and (
            standing := link.subscriptions.get(asked.request.subscription)
        ):
            standing.is_over = True
        if asked.session is not None:
            asked.session.told_arrived = max(asked.session.told_arrived, asked.session.arrived)
        asked.had_trouble |= self.may_fail()
        self.moment += 1
        link.came[asked] = self.moment
        if asked.has_come:
            return
        asked.has_come = True
        asked.first_sent = self.moment
        if isinstance(asked.request, Goodbye):
            self._goodbyes.setdefault(asked.client, []).append(asked)
        for part in asked.parts:
            if isinstance(part, Enqueue):
                delay_ms = 0 if part.delay is None else 2000
                self._sent(asked, part.queue, part.payload, None, delay_ms)
            elif isinstance(part, EnqueueMany):
                for message in part.messages:
                    self._sent(asked, part.queue, message.payload, message.stream, 0)
            elif isinstance(part, Settle):
                for item in part.items:
                    self._settles(asked, item)

    def _sent(self, asked: Asked, queue: str, payload: bytes, stream: str | None, delay_ms: int) -> None:
        tag = tag_of(payload)
        message = self.messages.setdefault(tag, Message(tag, asked, queue, stream, delay_ms))
        # A late copy of a request whose client has sent the message anew in another session does not make it younger.
        message.first_came = message.first_came or self.moment
        asked.due_ms = self.now_ms + delay_ms
        message.asked = asked

    def _settles(self, asked: Asked, item: Any) -> None:
        lease = self._leases.get((item.delivery.id, item.delivery.lease))
        if lease is None:
            return
        lease.is_touched = True
        if not isinstance(item, _ENDS):
            return
        lease.enders.append(asked)
        if not isinstance(item, Release) and (isinstance(item, Complete) or item.dead):
            lease.message.endings.append(asked)

    # What is answered

    def answered(self, link: Link, asked: Asked, reply: Any) -> None:
        """The server has written a reply."""
        answer = asked.read(reply)
        if isinstance(answer, Unauthenticated):
            self.must(link.key in self.may_be_revoked, f"the key of {asked} is good")
            return
        if asked.greets_with is not None:
            self.must(isinstance(answer, dict), f"{asked} was answered with {reply!r}")
            return
        if asked.request is None:
            self.must(reply == b"PONG", f"PING was answered with {reply!r}")
            return
        self.moment += 1
        came, revoked = link.came.pop(asked), self.revoked_at.get(link.key)
        # Credit asks nothing of the broker: the claims of its subscription are refused.
        is_asked = not isinstance(asked.request, (Credit, Cancel)) and not isinstance(answer, Unavailable)
        self.must(
            revoked is None or came < revoked or not is_asked,
            f"{asked} came with a revoked key, and was answered {answer!r:.200}",
        )
        if asked.is_of_subscription:
            self._answered_of_subscription(link, asked, answer)
            return
        if isinstance(answer, FairleadError):
            self._refused(asked, answer)
            return
        self.must(asked.has_come, f"answered before it came: {asked}")
        self.answers += 1
        # The first answer of all, or of those that a power cut may have left.
        is_first = asked.answered_in is None
        before, asked.answer = asked.answer, answer
        was_unread, asked.is_unread = asked.is_unread, link.is_left
        if is_first:
            asked.answered_at, asked.answered_in = self.moment, self._last_commit()
            if not asked.is_synced(answer):
                self._unsynced.append(asked)
        else:
            self.repeats += 1
        if asked.session is not None and asked.is_synced(answer):
            asked.session.is_durable = True
        parts = asked.parts_of(answer)
        earlier = [None] * len(parts) if is_first else [told for _, told in asked.parts_of(before)]
        for (part, found), told in zip(parts, earlier, strict=True):
            # A copy that found nothing may be answered behind one that came later, found something and is unread.
            is_claim = isinstance(part, Claim)
            self._check_part(link, asked, part, found, None if is_claim and was_unread else told)

    def _answered_of_subscription(self, link: Link, asked: Asked, answer: Any) -> None:
        request = asked.request
        standing = None
        if isinstance(request, (Credit, Cancel)):
            standing = link.subscriptions.get(request.subscription)
        if isinstance(answer, FairleadError):
            is_ended = isinstance(answer, InvalidRequest) and standing is not None and standing.may_be_over
            self.must(is_ended or isinstance(answer, Unavailable), f"{answer} for {asked}")
            if isinstance(request, Cancel) and standing is not None:
                # It is over, and nothing was given back.
                standing.is_over = standing.has_ended = True
        elif isinstance(request, Consume):
            self.must(isinstance(answer, int), f"{answer!r} for {asked}")
            self.must(answer not in link.subscriptions, f"{answer} is another subscription")
            link.subscriptions[answer] = Standing(link, asked, request)
        else:
            self.must(answer == b"OK", f"{answer!r} for {asked}")
            self.must(standing is not None, f"{asked}, of which nobody was told")
            if isinstance(request, Credit) and standing is not None:
                standing.acknowledged += request.count
            if isinstance(request, Cancel):
                # From now on nothing may be pushed.
                self._end(link.subscriptions.pop(request.subscription))

    def pushed(self, link: Link, push: Pushed) -> None:
        """The server has written a push."""
        self.moment += 1
        standing = link.subscriptions.get(push.subscription)
        if standing is None:
            raise BrokenPromise(
                f"a push of {push.subscription}, which nobody was told of or which is cancelled"
            )
        if push.error is not None:
            is_revoked = isinstance(push.error, Unauthenticated) and link.key in self.may_be_revoked
            self.must(
                is_revoked or isinstance(push.error, Unavailable), f"{push.error} ends {standing.asked}"
            )
            self._end(standing)
            return
        self.must(bool(push.deliveries), "an empty push")
        is_idle = all(map(self._may_be_over, standing.sent))
        self.must(push.started == 0 or is_idle, f"{standing.asked} was sent a second one as started")
        self.must(push.started <= (standing.request.max_per_stream == 1), f"{push.started} are started")
        for at, delivery in enumerate(push.deliveries):
            self._delivered(link, standing.asked, delivery)
            lease = self._leases[delivery.id, delivery.lease]
            lease.standing, lease.is_started = standing, lease.is_started or at < push.started
            standing.sent.append(lease)
        sent, granted = len(standing.sent), standing.granted
        self.must(sent <= granted, f"{standing.asked} was sent {sent} with credit for {granted}")

    def _check_part(self, link: Link, asked: Asked, part: Request[Any], found: Any, told: Any) -> None:
        if isinstance(part, Claim):
            self._claimed(link, asked, part, found, told)
        elif told is not None:
            self.must(found == told, f"answered with {found}, and with {told} before: {asked}")
        elif isinstance(part, Enqueue):
            self._enqueued(asked, [part.payload], [found])
        elif isinstance(part, EnqueueMany):
            self._enqueued(asked, [message.payload for message in part.messages], found)
        elif isinstance(part, Settle):
            self.must(len(found) == len(part.items), f"{len(found)} results for {asked}")
            for item, result in zip(part.items, found, strict=True):
                self._settled(asked, item, result)

    def _refused(self, asked: Asked, error: FairleadError) -> None:
        session = asked.session
        if isinstance(error, Unavailable):
            asked.had_trouble = True
        elif isinstance(error, SessionExpired):
            self.must(
                session is not None and session.may_be_lost and not session.is_durable,
                f"the session of an answered request was forgotten: {asked}",
            )
            asked.had_trouble = True
        elif isinstance(error, RequestExpired):
            self.must(
                session is not None and asked.number <= session.told_arrived,
                f"refused as answered, but nobody has said so: {asked}",
            )
        elif isinstance(error, QueueNotFound):
            queues = [part.queue for part in asked.parts if isinstance(part, Enqueue)]
            self.must(NOWHERE in queues, f"{error} for {asked}")
            asked.is_refused = True
        else:
            raise BrokenPromise(f"{type(error).__name__}: {error} for {asked}")

    def _enqueued(self, asked: Asked, payloads: list[bytes], ids: list[str]) -> None:
        self.must(len(payloads) == len(ids), f"{len(ids)} ids for {asked}")
        for payload, message_id in zip(payloads, ids, strict=True):
            message = self.messages[tag_of(payload)]
            self.must(
                message.id in ("", message_id),
                f"{message} was delivered as {message.id}, and is {message_id}",
            )
            message.id, message.is_confirmed = message_id, True

    def _claimed(self, link: Link, asked: Asked, claim: Claim, found: list[Delivery], told: Any) -> None:
        self.must(len(found) <= claim.limit, f"{len(found)} deliveries for {asked}")
        for delivery in found:
            self._delivered(link, asked, delivery)
        if told is None or link.has_ended or link.is_left:
            # A client that has closed its side of a connection waits for no messages there. Nobody reads one that was left:
            # there a claim may have found nothing before its repeat was answered, and be told so behind others later.
            return
        given = {(one.id, one.lease) for one in found}
        for one in told:
            lease = self._leases[one.id, one.lease]
            self.must(
                (one.id, one.lease) in given or self._may_be_over(lease),
                f"{lease.message} is leased by {asked}, and its repeat did not give it",
            )

    def _delivered(self, link: Link, asked: Asked, delivery: Delivery) -> None:
        self.deliveries += 1
        message = self.messages.get(tag_of(delivery.payload))
        if message is None or not message.asked.has_come:
            raise BrokenPromise(f"{delivery.payload!r} was delivered, and nobody sent it")
        self.must(not message.asked.is_refused, f"{message} was delivered, and its enqueue was refused")
        self.must(message.id in ("", delivery.id), f"{message} is there twice: {message.id}, {delivery.id}")
        message.id = delivery.id
        self.must(
            (delivery.queue, delivery.stream) == (message.queue, message.stream), f"{message} has moved"
        )
        self.must(
            # Nobody reads a connection that was left: an answer may wait there behind others until its message is over.
            link.is_left or not message.is_over,
            f"{message} was delivered to {asked}, and was over: {message.ended_by}",
        )
        self.must(self.now_ms >= message.asked.due_ms, f"{message} was delivered before its delay was over")
        self.must(
            message.retries <= delivery.attempts < delivery.deliveries,
            f"{message} has {delivery.attempts} attempts, and failed {message.retries} times",
        )
        lease = self._leases.get((delivery.id, delivery.lease))
        if lease is not None:
            self.must(_is_one(lease.claim, asked), f"{message} has one lease for {lease.claim} and {asked}")
        else:
            claim = self._claim_of_token.setdefault(delivery.lease, asked)
            self.must(_is_one(claim, asked), f"one lease for {claim} and {asked}")
            lease = Lease(
                message, delivery.lease, asked, link, moment=self.moment, commit=self._last_commit()
            )
            lease.until_ms = delivery.lease_until
            # It may have ended before anybody was told of it, if its answer had to wait.
            lease.is_doubtful = self._may_be_over(lease)
            if not lease.is_doubtful:
                self._check_free(message, asked, delivery.lease)
            self._leases[delivery.id, delivery.lease] = lease
            message.leases.append(lease)
        lease.link, lease.deliveries = link, delivery.deliveries
        lease.until_ms = max(lease.until_ms, delivery.lease_until)

    def _check_free(self, message: Message, asked: Asked, token: str) -> None:
        """`token`: of the lease that it was given under. A run of a stream has one for all of its messages."""
        for lease in message.leases:
            self.must(
                self._may_be_over(lease), f"{message} was given to {asked} while {lease.claim} has leased it"
            )
        if message.stream is None:
            return
        runs = {lease.token for lease in message.leases}
        for other in self.messages.values():
            if other.stream != message.stream or other is message:
                continue
            if any(lease.token == token for lease in other.leases):
                continue
            for lease in other.leases:
                # Of a run that the message was in, later ones may stay where they are.
                self.must(
                    lease.token in runs or self._may_be_over(lease),
                    f"{message} was given to {asked} while {other} of its stream is leased",
                )
            if other.is_confirmed and self._is_before(other, message):
                self.must(other.may_be_over, f"{message} was given to {asked} before {other} of its stream")

    def _is_before(self, first: Message, second: Message) -> bool:
        """Whether its enqueue must have been carried out before that of the other."""
        one, other = first.asked, second.asked
        if one is other:
            return False
        if one.answered_at and one.answered_at < second.first_came:
            return True
        is_same = one.session is not None and one.session is other.session
        return is_same and one.number < other.number and not one.had_trouble

    def _may_be_over(self, lease: Lease) -> bool:
        if lease.is_over or lease.is_doubtful or self.now_ms >= lease.until_ms:
            return True
        if any(asked.has_come for asked in lease.enders):
            return True
        # The server takes back what may not have reached anybody.
        if lease.link.is_lost and lease.link.was_stuck:
            return True
        if lease.standing is not None and not lease.is_started and lease.standing.may_be_over:
            return True
        return any(
            not goodbye.answered_at or goodbye.answered_at > lease.claim.first_sent
            for goodbye in self._goodbyes.get(lease.claim.client, ())
        )

    def _settled(self, asked: Asked, item: Any, result: SettleResult) -> None:
        lease = self._leases.get((item.delivery.id, item.delivery.lease))
        if lease is None:
            raise BrokenPromise(f"{asked} settles what nobody has")
        message, outcome = lease.message, result.outcome
        if outcome in ("lost_lease", "not_found"):
            enders = [other for other in lease.enders if other is not asked]
            lease.enders, all_enders = enders, lease.enders
            is_repeated = isinstance(item, _ENDS) and self._is_repeated(asked, item)
            may_be_over = self._may_be_over(lease) or is_repeated
            lease.enders = all_enders
            self.must(may_be_over, f"{message} was leased, and {asked} was told {outcome}")
            return
        expected = {
            Complete: ("completed",),
            Release: ("released",),
            Extend: ("extended",),
            Start: ("started",),
        }
        allowed = expected.get(type(item), ("retry", "dead"))
        self.must(outcome in allowed, f"{type(item).__name__} of {message} is {outcome}: {result.error}")
        later = [
            other
            for other in message.leases[message.leases.index(lease) + 1 :]
            if not other.is_doubtful and other.moment < asked.first_sent
        ]
        self.must(not later, f"{message} was given to another, and {asked} was told {outcome}")
        if isinstance(item, Start):
            lease.is_started = True
        if isinstance(item, Extend):
            lease.until_ms = max(lease.until_ms, result.lease_until)
        if not isinstance(item, _ENDS):
            return
        lease.is_over = True
        if outcome == "retry":
            message.retries += 1
        elif outcome != "released":
            self.must(not message.is_over, f"{message} ended twice: {message.ended_by}, {asked}")
            message.ended_by, message.is_dead = asked, outcome == "dead"

    def _is_repeated(self, asked: Asked, item: Any) -> bool:
        """Whether the same request settles the same delivery twice."""
        handle = item.delivery.id, item.delivery.lease
        items = [one for part in asked.parts if isinstance(part, Settle) for one in part.items]
        same = [one for one in items if (one.delivery.id, one.delivery.lease) == handle]
        return len([one for one in same if isinstance(one, _ENDS)]) > 1

    # What breaks

    def lost(self, link: Link) -> None:
        """The server has learned that a connection is gone, or that its client sends nothing more."""
        for standing in link.subscriptions.values():
            self._end(standing)

    def trouble(self) -> None:
        """What is to be given back may not be: the server died, or its store is about to fail."""
        self._ended.clear()

    def _end(self, standing: Standing) -> None:
        if not (standing.has_ended or self.may_fail()):
            self._ended.append(standing)
        standing.is_over = standing.has_ended = True

    def check_given_back(self, find_leased: Callable[[], dict[str, int]]) -> None:
        """The server has nothing to do: it has given back what its subscriptions had sent and nobody began. `find_leased`
        has which delivery each leased message is out in, by its id.
        """
        ended, self._ended = self._ended, []
        left = [
            lease
            for standing in ended
            for lease in standing.sent
            if not (lease.is_started or lease.is_touched or lease.is_doubtful) and lease.standing is standing
        ]
        leased = find_leased() if left else {}
        for lease in left:
            self.must(
                leased.get(lease.message.id) != lease.deliveries or self.now_ms >= lease.until_ms,
                f"{lease.message} was not given back when {lease.claim} ended",
            )

    def power_cut(self, kept_commit: int, sessions: list[Session]) -> None:
        for session in sessions:
            session.may_be_lost |= not session.is_durable
        for asked in self._unsynced:
            if not isinstance(asked.request, Claim) and (asked.answered_in or 0) > kept_commit:
                asked.answered_in = None
                self._forget_extensions(asked)
        self._unsynced.clear()
        for message in self.messages.values():
            if not message.is_confirmed:
                message.id = ""
            for lease in message.leases:
                lease.is_doubtful |= lease.commit > kept_commit
                if lease.standing is not None:
                    # A start is not synced.
                    lease.is_started = False

    def _forget_extensions(self, asked: Asked) -> None:
        for part in asked.parts:
            for item in part.items if isinstance(part, Settle) else ():
                lease = self._leases.get((item.delivery.id, item.delivery.lease))
                if lease is not None and isinstance(item, Extend):
                    lease.is_doubtful = True

    # The end

    def settle_up(self, live: dict[str, list[bytes]], dead: list[bytes]) -> None:
        """`live` has the payloads that were left by queue, `dead` the dead letters."""
        left = [tag_of(payload) for payloads in live.values() for payload in payloads]
        buried = [tag_of(payload) for payload in dead]
        self.must(
            len({*left, *buried}) == len(left) + len(buried), f"there twice: {sorted([*left, *buried])}"
        )
        for tag in [*left, *buried]:
            message = self.messages.get(tag)
            if message is None or not message.asked.has_come or message.asked.is_refused:
                raise BrokenPromise(f"{tag!r} is left, and nobody sent it")
        for message in self.messages.values():
            is_left, is_buried = message.tag in left, message.tag in buried
            if message.is_over:
                self.must(not is_left, f"{message} is left, and was over: {message.ended_by}")
                self.must(is_buried == message.is_dead, f"{message} is no dead letter: {message.ended_by}")
            elif message.is_confirmed:
                is_there = is_left or is_buried
                self.must(is_there or message.may_be_over, f"{message} is lost, enqueued by {message.asked}")
        for queue in (PLAIN, ORDERED):
            for payload in live[queue]:
                self.must(self.messages[tag_of(payload)].queue == queue, f"{payload!r} is in {queue}")


def _is_one(first: Asked, second: Asked) -> bool:
    """The same request, or subscriptions under one token: what was sent as started, and may not have arrived, is sent
    again.
    """
    one, other = first.request, second.request
    if isinstance(one, Consume) and isinstance(other, Consume) and one.token is not None:
        return one.token == other.token
    return first is second


def tag_of(payload: bytes) -> bytes:
    return payload.rstrip(b"\0")


__all__ = ["Account", "BrokenPromise", "OpenSession"]
