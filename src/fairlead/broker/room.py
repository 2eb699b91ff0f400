"""Which verbs may use the disk reserve: one table, which the broker and the audit act on.

The reserve exists so that requests that free space always fit, also on a disk that is otherwise full. A verb
that could grow the store without bound therefore stops at the reserve with `StoreFull`; a verb that ends
something never does. Between the two are verbs whose growth is bounded by the live messages (a claim), and
the audit entries of purges and looks: those may use the upper part of the reserve, but not the floor
(store/rocks/reserve.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any

from fairlead.model.facts import Fact, Moved
from fairlead.model.limits import MAX_RUNBOOK_BYTES
from fairlead.model.message import MessageState, record_bytes

if TYPE_CHECKING:
    from fairlead.broker.core import Core


class Room(Enum):
    #: Writes nothing.
    READS = "reads"
    #: Frees space, or only replaces rows of a bounded number: never refused by the reserve.
    FITS = "fits"
    #: Refused below the reserve before anything happens. Its request is at most as large as a runbook.
    GROWS = "grows"
    #: Refused by the size of what it stores, which only the verb itself knows; in a settle, item by item.
    WEIGHS = "weighs"
    #: Grows with the live messages at most: refused when only the floor of the reserve is left.
    LEASES = "leases"


_READS, _FITS, _GROWS, _WEIGHS, _LEASES = Room

#: Every verb of the broker, by the name that the audit has for it.
ROOM: dict[str, Room] = {
    "create_queue": _GROWS,
    "update_queue": _GROWS,
    "pause": _FITS,
    "resume": _FITS,
    "purge": _FITS,
    "delete_queue": _FITS,
    "queues": _READS,
    "stats": _READS,
    "enqueue": _WEIGHS,
    "enqueue_many": _WEIGHS,
    "quarantine": _WEIGHS,
    "claim": _LEASES,
    "settle": _WEIGHS,
    "ack": _FITS,
    "nack": _FITS,
    "goodbye": _FITS,
    "exchange": _WEIGHS,
    "retry": _WEIGHS,
    "drop": _FITS,
    "done": _FITS,
    "bury": _WEIGHS,
    "hold": _WEIGHS,
    "unhold": _WEIGHS,
    "fail": _FITS,
    "drain": _FITS,
    "prune": _FITS,
    "release_stream": _GROWS,
    "redrive": _WEIGHS,
    "intents": _READS,
    "cancel_intent": _FITS,
    "find": _READS,
    "twin": _READS,
    "peek": _READS,
    "browse": _READS,
    "browse_splits": _READS,
    "failure_metrics": _READS,
    "explain": _READS,
    "explain_queue": _READS,
    "observe": _READS,
    "measures": _READS,
    "queue_names": _READS,
    "queues_of": _READS,
    "full_id": _READS,
    "run_due": _FITS,
    "checkpoint": _WEIGHS,
    "interrupt_waits": _READS,
    "answering": _READS,
    "now_ms": _READS,
    "close": _FITS,
    "config.get": _READS,
    "config.set": _GROWS,
    "config.delete": _FITS,
    "config.list": _READS,
    "runbooks.save": _GROWS,
    "runbooks.get": _READS,
    "runbooks.list": _READS,
    "keys.create": _GROWS,
    "keys.list": _READS,
    "keys.show": _READS,
    "keys.set_grants": _GROWS,
    "keys.change_grants": _GROWS,
    "keys.revoke": _FITS,
    "keys.rotate": _GROWS,
    # A server takes its bootstrap key when it starts, and a start always fits: it is one record.
    "keys.adopt": _FITS,
    # These write when a key was last used, once a minute, in place of the earlier time.
    "keys.authenticate": _FITS,
    "keys.current": _FITS,
    "keys.record": _READS,
    "keys.records": _READS,
    "audit.begin": _WEIGHS,
    "audit.finish": _FITS,
    "audit.read": _READS,
    "consumers.register": _WEIGHS,
    "consumers.claim": _LEASES,
    "consumers.read": _READS,
    "consumers.read_pages": _READS,
    "consumers.record": _WEIGHS,
    "consumers.take_up": _FITS,
    # A claim cannot be closed without its choice.
    "consumers.choose": _LEASES,
    "consumers.close": _FITS,
    "consumers.heartbeat": _FITS,
    "consumers.ceiling": _READS,
    "consumers.release": _FITS,
    "consumers.drop": _FITS,
    "consumers.list": _READS,
    "consumers.show": _READS,
    "staging.stage": _WEIGHS,
    "staging.publish": _WEIGHS,
    "staging.discard": _FITS,
    "staging.kinds_of": _READS,
    "staging.list_of": _READS,
    "staging.list": _READS,
}

#: Rows of a message beside its body: in its queue, its stream, its time to live.
MESSAGE_BYTES = 256
#: What a lease may come to: its own rows, and when it ends the state of its message with one more failure.
LEASE_BYTES = 1024
#: A state without its texts and its carry.
STATE_BYTES = 256


#: How many messages a step moves below the reserve, each with a state of up to 320 KiB.
SHORT_STEP = 16


def stop_at_reserve(owner: type, prefix: str = "") -> None:
    """Make the verbs of `owner` that the table calls GROWS refuse below the reserve."""
    for verb, room in ROOM.items():
        group, _, name = verb.rpartition(".")
        if room is Room.GROWS and group == prefix:
            setattr(owner, name, _refusing(getattr(owner, name)))


def _refusing(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def call(self: Any, /, *args: Any, **named: Any) -> Any:
        core: Core = self._core
        with core.lock:
            core.check_open()
            core.store.check_room(MAX_RUNBOOK_BYTES)
        return verb(self, *args, **named)

    return call


def is_low(core: Core) -> bool:
    """Whether the disk is below its reserve, so that nothing may grow."""
    return core.store.room() <= 0


def step_of(core: Core, most: int) -> int:
    """How many messages one commit of a long operation moves: few of them where a large commit may not fit."""
    return min(most, SHORT_STEP) if is_low(core) else most


def leases_that_fit(core: Core, wanted: int) -> int:
    """How many more leases there is room for, with what the end of each lease may store. Raises `StoreFull`
    when none fits.
    """
    held = len(core.leases)
    room = core.store.room(in_reserve=True)
    if room < (held + wanted) * LEASE_BYTES:
        core.store.check_room((held + 1) * LEASE_BYTES, in_reserve=True)
    return max(1, min(wanted, room // LEASE_BYTES - held))


def state_bytes(state: MessageState) -> int:
    return STATE_BYTES + record_bytes(state)


def moved_bytes(facts: Iterable[Fact]) -> int:
    """What moves store anew."""
    moved = [fact for fact in facts if type(fact) is Moved and fact.target is not None]
    return sum([MESSAGE_BYTES + (state_bytes(fact.state) if fact.state is not None else 0) for fact in moved])
