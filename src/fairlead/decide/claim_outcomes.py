"""What was said so far about the members of a numbered claim, and what of it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fairlead.model.consumer import Recorded

#: The stream of a member and its place there; None: it is in none.
StreamOf = Callable[[bytes], tuple[bytes, int] | None]


class ClaimOutcomes:
    """The last outcome counts. A start is no outcome: it never takes the place of one, and one takes its
    place.
    """

    def __init__(self) -> None:
        self.outcomes: dict[bytes, Recorded] = {}
        #: Members that were begun, and of which nobody has said how it went. A dict, for its order.
        self.begun: dict[bytes, None] = {}
        #: The progress told of each in this claim.
        self.progress: dict[bytes, int] = {}
        #: Members with an outcome that those behind them in their stream wait for.
        self._stopped: set[bytes] = set()
        self._stops: dict[bytes, int] | None = {}

    def add(self, recorded: Iterable[Recorded]) -> None:
        for one in recorded:
            if one.kind == "start":
                if one.id not in self.outcomes:
                    self.begun[one.id] = None
            elif one.kind == "extend":
                self.progress[one.id] = self.progress.get(one.id, 0) | one.progress
            else:
                self.outcomes[one.id] = one
                self.begun.pop(one.id, None)
                self._stop_or_go(one)

    def _stop_or_go(self, outcome: Recorded) -> None:
        if outcome.kind != "complete":
            self._stopped.add(outcome.id)
        elif outcome.id in self._stopped:
            self._stopped.remove(outcome.id)
        else:
            return
        self._stops = None

    def stops(self, stream_of: StreamOf) -> dict[bytes, int]:
        """The streams that go no further in this claim, each with the first place at which it stops."""
        if self._stops is None:
            self._stops = {}
            for member in self._stopped:
                found = stream_of(member)
                if found is not None:
                    stream, place = found
                    self._stops[stream] = min(place, self._stops.get(stream, place))
        return self._stops


def is_outdated(told: int, progress: int) -> bool:
    """Whether an extend comes from somebody whose slice another worker has taken up since: it tells less
    progress than this claim was told before, so what it carries is older than what is there.
    """
    return progress != 0 and told | progress == told != progress
