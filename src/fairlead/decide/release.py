"""The effect of a release: the message returns to its place, in order or past messages that wait, or goes to
the dead-letter queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.decide.retry import DeadLetter
from fairlead.model.queue import QueueConfig


@dataclass(frozen=True, slots=True)
class GiveBack:
    """`asks_to_pass`: the message may pass earlier messages of its stream that wait, if there are any, and if
    fewer messages of the stream than `MAX_LET_BY` were let by already. `rule` is empty if nothing but the
    release decided.
    """

    rule: str
    asks_to_pass: bool = False


def after_release(
    config: QueueConfig, deliveries: int, *, in_stream: bool, keep_order: bool, is_dead: bool
) -> GiveBack | DeadLetter:
    """Decide what a release does. `deliveries` includes the delivery that ends here. A dead letter may be
    delivered any number of times.
    """
    if config.max_deliveries and deliveries >= config.max_deliveries and not is_dead:
        return DeadLetter(
            f"handed out {deliveries} times without being settled, the limit is {config.max_deliveries}",
            "max_deliveries",
        )
    if not in_stream:
        return GiveBack("")
    if keep_order or config.ordering == "strict":
        return GiveBack("release.order_kept")
    return GiveBack("", asks_to_pass=True)
