"""Subscriptions: standing claims that push messages, as many as there is credit for.

A subscription knows no socket, thread or loop, like the turns that carry it out:

    subscription = Subscription(turns, broker, caller, Claim("orders"), credit=10)
    subscription.open()          # its first call ends in the next turn, even without a message
    done = turns.run()
    for call in done.over:       # those of a subscription are `Standing` or `GivingBack`
        call.subscription.over(call)
    subscription.grant(5)
    subscription.end()           # unstarted messages return to their places in the next turn

It is a loop of claims: each of its calls passes the layers, waits in line with the claims of others, and goes
to the end of the line once it got something. Only credit bounds what is sent: it decreases with each message,
and increases by `grant`. Messages are sent as not started, so they are not charged if the consumer dies; but
an idle consumer, which holds none of its messages, begins at once and gets its next one as started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.decide.arguments import check_count
from fairlead.engine.broker import Broker
from fairlead.engine.memory import Memory
from fairlead.engine.turns import MAX_TURN_ITEMS
from fairlead.errors import FairleadError, ServerStopping
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_CLAIM
from fairlead.model.settle import LeaseRef, Release
from fairlead.request import Caller, Handler
from fairlead.server.turn import Call, Turns
from fairlead.verbs.claim import Claim
from fairlead.verbs.settle import Settle

#: The approximate size of one push, which has at least one message.
PUSH_BYTES = 1024 * 1024
#: Messages that one call returns, so that a turn stays short.
_STEP = 500
#: Any duration: the wait of a standing claim has no end.
_WAIT = "1h"


class _Sent(NamedTuple):
    """A message that was sent, and the lease under which it was sent."""

    number: int
    ref: LeaseRef


class Standing(Call):
    """A claim of a subscription. Its answer is deliveries, of which the first `started` are started."""

    __slots__ = ("started", "subscription")

    waits_for_ever = True

    def __init__(self, subscription: Subscription, request: Claim, caller: Caller) -> None:
        super().__init__(request, caller)
        self.subscription = subscription
        self.started = 0

    def carry_out(self, handle: Handler) -> list[Delivery]:
        return self.subscription.claim(self, handle)

    def take_read(self, answer: list[Delivery]) -> None:
        left = {one.number for one in answer}
        self.started = sum([one.number in left for one in self.deliveries[: self.started]])
        self.answer = answer

    @property
    def deliveries(self) -> list[Delivery]:
        return self.answer or []

    @property
    def lost_deliveries(self) -> list[Delivery]:
        """Deliveries to return, started or not, if the answer was not sent."""
        return [] if self.subscription.has_token else self.deliveries


class GivingBack(Call):
    """Returns messages of a subscription that are no longer needed. No right is needed, because the key may
    have ended.
    """

    __slots__ = ("_sent", "_with_started", "subscription")

    def __init__(self, subscription: Subscription, sent: Sequence[_Sent], *, with_started: bool) -> None:
        super().__init__(Settle([]), subscription.caller)
        self.subscription = subscription
        self._sent = sent
        self._with_started = with_started

    def carry_out(self, handle: Handler) -> None:
        self.subscription.give_back(self._sent, with_started=self._with_started)


class Subscription:
    """Used by the thread that runs the turns. `claim`: its queues, consumer, `max_per_stream` and token.
    Messages sent as started are under the token, so that another subscription gets them if the consumer
    did not.
    """

    def __init__(self, turns: Turns, broker: Broker, caller: Caller, claim: Claim, credit: int) -> None:
        self.caller = caller
        self.credit = check_count(credit, "credit", most=MAX_CLAIM)
        self.is_over = False
        self._turns = turns
        self._broker = broker
        self._claim = replace(claim, wait=_WAIT)
        #: The claim that waits or runs, if there is one; never more than one.
        self._standing: Standing | None = None
        self._is_paused = False
        #: In order. Settled ones leave from the front and, with `_remember`, from the middle.
        self._sent: deque[_Sent] = deque()
        self._sent_when_pruned = 0

    @property
    def _memory(self) -> Memory:
        """The engine may load another one after a failed write."""
        return self._broker.engine.memory

    @property
    def has_token(self) -> bool:
        return self._claim.token is not None

    def open(self) -> Standing:
        """The first call, which is refused if the subscription is not allowed."""
        first = Standing(self, self._claim, self.caller)
        first.may_wait = False
        self._standing = first
        self._turns.add(first)
        return first

    def over(self, call: Standing | GivingBack) -> None:
        """One of its calls has ended. `is_over` tells whether it ended with an error."""
        self.note(call)
        self.stand()

    def note(self, call: Standing | GivingBack) -> None:
        """The first half of `over`, for a door that sends the messages before `stand`."""
        if isinstance(call, GivingBack):
            return
        self._standing = None
        sent = [_Sent(one.number, LeaseRef(one.raw_id, one.claim_id)) for one in call.deliveries]
        if self.is_over:
            # The subscription ended while the call ran, so these messages have no receiver; but another
            # subscription may ask for those with the token.
            self._give_back_soon(sent, with_started=not self.has_token)
            return
        self.credit -= len(sent)
        self._remember(sent)
        if call.error is None and not sent and self._turns.waiting.must_end:
            call.error = ServerStopping()
        if call.error is not None:
            self.end()

    def stand(self) -> None:
        """Wait in line, behind other waiting claims, if there is credit. Calling it twice is allowed."""
        while self._sent and not self._is_held(self._sent[0], with_started=True):
            self._sent.popleft()
        if self._standing is None and self.credit and not self._is_paused and not self.is_over:
            self._standing = Standing(self, self._claim, self.caller)
            self._turns.stand(self._standing)

    def grant(self, count: int) -> None:
        self.credit += check_count(count, "count", most=MAX_CLAIM - self.credit)
        self.stand()

    def pause(self) -> None:
        """The client does not read what is sent."""
        self._is_paused = True
        self._step_aside()

    def resume(self) -> None:
        self._is_paused = False
        self.stand()

    def end(self) -> GivingBack | None:
        """The call after which unstarted messages have returned; None if there are none, or if it ended
        before.
        """
        if self.is_over:
            return None
        self.is_over = True
        self._step_aside()
        sent, self._sent = [*self._sent], deque()
        return self._give_back_soon(sent, with_started=False)

    # For its calls, in a turn

    def claim(self, call: Standing, handle: Handler) -> list[Delivery]:
        request, found = self._claim, list[Delivery]()
        call.started = 0
        most = min(self.credit, self._most_in_a_push())
        if request.max_per_stream == 1 and self._is_idle():
            # A run of a stream must be one claim, and cannot begin with this one.
            found = handle(replace(request, limit=1), self.caller)
            call.started = len(found)
            if not found or most == 1 or not self._turns.has_ready(request.queues()):
                return found
        rest = replace(request, limit=most - len(found), started=False, token=None)
        if not found:
            return handle(rest, self.caller)
        with suppress(FairleadError):
            # If the error persists, the next claim meets it too.
            found = [*found, *handle(rest, self.caller)]
        return found

    def give_back(self, sent: Sequence[_Sent], *, with_started: bool) -> None:
        with self._broker.engine.transaction():
            refs = [one.ref for one in sent if self._is_held(one, with_started=with_started)]
            if refs:
                self._broker.do(Settle([Release(ref, keep_order=True) for ref in refs]), gathered=True)

    def _is_idle(self) -> bool:
        """Whether its consumer holds no message that it was sent. Changes nothing, because the turn may be
        lost.
        """
        return not any(self._is_held(one, with_started=True) for one in self._sent)

    def _is_held(self, sent: _Sent, *, with_started: bool) -> bool:
        """Whether the message is still leased as it was sent."""
        lease = self._memory.held.get(sent.number)
        if lease is None or lease.terms.claim_id != sent.ref.claim_id:
            return False
        return with_started or not lease.terms.started

    def _most_in_a_push(self) -> int:
        """Computed from the average size of the present messages."""
        counts = [queue.counts for name in self._claim.queues() if (queue := self._memory.by_name.get(name))]
        size, count = sum([one.bytes for one in counts]), sum([one.messages for one in counts])
        return (
            min(MAX_TURN_ITEMS, max(1, PUSH_BYTES * count // size)) if size > PUSH_BYTES else MAX_TURN_ITEMS
        )

    # Between turns

    def _step_aside(self) -> None:
        # If payloads are being read, `note` still needs to know what the claim got.
        if self._standing is not None and self._standing.waits is not None:
            self._turns.drop(self._standing)
            self._standing = None

    def _remember(self, sent: Sequence[_Sent]) -> None:
        self._sent.extend(sent)
        if len(self._sent) > 2 * self._sent_when_pruned + _STEP:
            self._sent = deque([one for one in self._sent if self._is_held(one, with_started=True)])
            self._sent_when_pruned = len(self._sent)

    def _give_back_soon(self, sent: Sequence[_Sent], *, with_started: bool) -> GivingBack | None:
        """Returns the last of the calls that do it."""
        last = None
        for at in range(0, len(sent), _STEP):
            last = GivingBack(self, sent[at : at + _STEP], with_started=with_started)
            self._turns.add(last)
        return last
