"""The subscription protocol between consumers and the Redis door: three commands that are no verbs, and
pushes.

    FL.CONSUME orders CREDIT 10    -> the number of the subscription, on this connection
    FL.CREDIT 1 5                  -> OK
    FL.CANCEL 1                    -> OK

A push is an array [kind, subscription, ...]. `fl.deliver` has the number of started deliveries, which come
first, and the deliveries. `fl.end` has the error that ended the subscription. Works without pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from fairlead.errors import FairleadError, ProtocolMismatch
from fairlead.fields import Consumer, MaxPerStream
from fairlead.model.delivery import Delivery
from fairlead.model.limits import MAX_CLAIM, MAX_CLAIM_TOKEN_BYTES
from fairlead.request import Request
from fairlead.wire.error_lines import read_error
from fairlead.wire.packed_deliveries import decode_deliveries

DELIVER = b"fl.deliver"
END = b"fl.end"

SubscriptionNumber = Annotated[int, Meta(description="What `FL.CONSUME` returned, on the same connection.")]


class Consume(Request[int], frozen=True):
    """Send messages as they become ready, as pushes, up to `credit` of them; `FL.CREDIT` allows more.

    While the subscription has no leased message, its next delivery is sent as started, unless
    `max_per_stream` is above 1; the others are not started. After a lost connection, `token` brings back the
    delivery that was sent as started. Returns the number of the subscription.
    """

    verb_name = "consume"
    #: A subscription ends with its connection, so `FL.CONSUME` may be repeated after a lost connection.
    repeatable = True

    queue: Annotated[str | Sequence[str], Meta(description="One queue, or several that take turns.")]
    credit: Annotated[int, Meta(description="How many messages it may send.", ge=1, le=MAX_CLAIM)] = 1
    consumer: Consumer = ""
    max_per_stream: MaxPerStream = 1
    token: Annotated[
        str | None,
        Meta(
            description="Gets again what was sent as started under the same token and is still leased.",
            min_length=1,
            max_length=MAX_CLAIM_TOKEN_BYTES,
        ),
    ] = None


class Credit(Request[None], frozen=True):
    """Let a subscription send `count` more messages."""

    verb_name = "credit"

    subscription: SubscriptionNumber
    count: Annotated[int, Meta(description="How many more.", ge=1, le=MAX_CLAIM)]


class Cancel(Request[None], frozen=True):
    """End a subscription. Deliveries that were sent and not started return to their places, uncharged."""

    verb_name = "cancel"

    subscription: SubscriptionNumber


#: By command name.
COMMANDS: dict[bytes, type[Request[Any]]] = {
    b"FL." + kind.verb_name.upper().encode(): kind for kind in (Consume, Credit, Cancel)
}


class Pushed(NamedTuple):
    """A push in a client. `error`: what ended the subscription."""

    subscription: int
    deliveries: Sequence[Delivery] = ()
    #: The number of deliveries that are started; they come first.
    started: int = 0
    #: The server's clock.
    now_ms: int = 0
    error: FairleadError | None = None


def read_push(parts: Sequence[Any]) -> Pushed:
    """The push. Raises `ProtocolMismatch` for bytes that are no valid push."""
    try:
        kind, subscription, *rest = parts
        if kind == DELIVER:
            started, raw = rest
            deliveries, now_ms = decode_deliveries(raw)
            return Pushed(subscription, deliveries, started, now_ms)
        if kind == END:
            (line,) = rest
            return Pushed(subscription, error=read_error(line.decode(errors="replace")))
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, IndexError, RecursionError) as wrong:
        raise ProtocolMismatch("a push with deliveries", str(wrong)) from None
    raise ProtocolMismatch(f"a push of the kind {DELIVER!r} or {END!r}", f"{kind!r:.80}")
