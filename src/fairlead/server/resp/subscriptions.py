"""`FL.CONSUME`, `FL.CREDIT` and `FL.CANCEL`: deliveries that are sent as RESP3 pushes.

A push may come between any two replies, but never before the reply that names its subscription or after the
reply to `FL.CANCEL`. A connection that does not read gets no push until it reads, so it costs at most the
memory of one push.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlead.errors import FairleadError, InvalidRequest
from fairlead.server.resp.replies import OK, bulk, error_reply, value_of
from fairlead.server.subscriptions import GivingBack, Standing, Subscription
from fairlead.verbs.claim import Claim
from fairlead.wire.error_lines import error_line
from fairlead.wire.packed_deliveries import encode_deliveries
from fairlead.wire.subscriptions import DELIVER, END, Cancel, Consume, Credit

if TYPE_CHECKING:
    from fairlead.server.resp.connection import Connection, Reply

_log = logging.getLogger("fairlead.resp")

#: The limit for one connection.
MAX_SUBSCRIPTIONS = 100


class PushedSubscription(Subscription):
    """A subscription of a connection."""

    def __init__(self, connection: Connection, number: int, request: Consume, *, is_packed: bool) -> None:
        door = connection.door
        assert connection.caller is not None
        claim = Claim(
            request.queue,
            consumer=request.consumer,
            max_per_stream=request.max_per_stream,
            token=request.token,
        )
        super().__init__(door.turns, door.layers.broker, connection.caller, claim, request.credit)
        self.connection = connection
        self.number = number
        self._is_packed = is_packed
        #: The replies that are sent when a call is over.
        self._due: dict[Standing | GivingBack, Reply] = {}

    def over(self, call: Standing | GivingBack) -> None:
        """Queue the replies and pushes of the call. The door sends them before it calls `stand`."""
        was_over = self.is_over
        self.note(call)
        reply = self._due.pop(call, None)
        if self.connection.is_lost:
            return
        if isinstance(call, GivingBack):
            if reply is not None:
                self._tell(
                    reply, OK if call.error is None else error_reply(call.error, packed=self._is_packed)
                )
        elif reply is not None:
            self.connection.is_open()
            self._tell(reply, self._first_reply(call, was_over=was_over))
        elif not was_over and (call.error is not None or call.deliveries):
            self.connection.push(self._push_of(call), call)
        if self.is_over:
            self.connection.subscriptions.pop(self.number, None)

    def begin(self, reply: Reply) -> Standing:
        """The first call of the subscription. Its outcome is the reply to `FL.CONSUME`."""
        first = self.open()
        self._due[first] = reply
        return first

    def cancel(self, reply: Reply) -> None:
        last = self.end()
        if last is None:
            self._tell(reply, OK)
        else:
            self._due[last] = reply

    def _tell(self, reply: Reply, raw: bytes) -> None:
        reply.reply = raw
        self.connection.door.soon(self.connection)

    def _first_reply(self, call: Standing, *, was_over: bool) -> bytes:
        """The reply to `FL.CONSUME`, with the first push. If the subscription ended before, its deliveries
        have been returned, and there is no push.
        """
        if call.error is not None:
            return error_reply(call.error, packed=self._is_packed)
        reply = b":%d\r\n" % self.number
        return reply + self._push_of(call) if call.deliveries and not was_over else reply

    def _push_of(self, call: Standing) -> bytes:
        if call.error is None:
            try:
                return self._deliver(call)
            except Exception as unexpected:
                _log.exception("deliveries could not be written")
                call.error = unexpected
                self.end()
        if isinstance(call.error, FairleadError):
            self.connection.door.limits.count_error(call.error)
        return self._frame(3, END) + bulk(error_line(call.error, packed=self._is_packed))

    def _deliver(self, call: Standing) -> bytes:
        found = call.deliveries
        if self._is_packed:
            raw = bulk(encode_deliveries(found, self.connection.door.now_ms()))
        else:
            raw = value_of(found, self.connection.protocol)
        return self._frame(4, DELIVER) + b":%d\r\n" % call.started + raw

    def _frame(self, parts: int, kind: bytes) -> bytes:
        return b">%d\r\n" % parts + bulk(kind) + b":%d\r\n" % self.number


def run_command(connection: Connection, request: Any, *, is_packed: bool) -> None:
    """Carry out one of the three commands."""
    if isinstance(request, Consume):
        if connection.protocol != 3:
            expected = "RESP3, in which deliveries can come as pushes: send HELLO 3 first"
            raise InvalidRequest("protocol", expected, "RESP2")
        if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS:
            expected = f"at most {MAX_SUBSCRIPTIONS} subscriptions on a connection"
            raise InvalidRequest("command", expected, "one more")
        connection.door.check_unread()
        connection.last_subscription += 1
        subscription = PushedSubscription(
            connection, connection.last_subscription, request, is_packed=is_packed
        )
        connection.opens(subscription, subscription.begin(connection.later()))
    elif isinstance(request, Credit):
        _find(connection, request.subscription).grant(request.count)
        connection.reply(OK)
    elif isinstance(request, Cancel):
        subscription = _find(connection, request.subscription)
        del connection.subscriptions[subscription.number]
        subscription.cancel(connection.later())
    connection.door.turn_if_needed()


def _find(connection: Connection, number: object) -> PushedSubscription:
    found = connection.subscriptions.get(number) if isinstance(number, int) else None
    if found is None:
        raise InvalidRequest("subscription", "one of this connection's that has not ended", number)
    return found
