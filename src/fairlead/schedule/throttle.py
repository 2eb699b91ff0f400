"""Token buckets, the set of configured buckets, and closed throttle keys. All queues share them.

`now_ms` is the time of the store, which a clock step does not advance. A bucket grants at most one burst plus
its rate times the time, also over restarts, because a claim writes the buckets that it took from
(`ClaimPlan.buckets`).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from fairlead.schedule.closed import ClosedKey

#: Float arithmetic may leave a full token at 0.9999999999.
_SPECK = 1e-9
#: How many orders of throttle keys are remembered; past it all are forgotten.
_MAX_KNOWN_ORDERS = 10_000


def default_burst(rate: float) -> float:
    """As much as a second brings, and at least one message."""
    return max(1.0, rate)


class Bucket(NamedTuple):
    """A token bucket. `tokens` is its content at `at_ms`."""

    rate: float
    burst: float
    tokens: float
    at_ms: int

    def refilled(self, now_ms: int) -> Bucket:
        if now_ms <= self.at_ms:
            return self
        return Bucket(self.rate, self.burst, self.tokens_at(now_ms), now_ms)

    def configured(self, rate: float, burst: float, now_ms: int) -> Bucket:
        """The old rate counts until now. The tokens at hand stay, clipped to a smaller burst."""
        return Bucket(rate, burst, min(burst, self.tokens_at(now_ms)), max(now_ms, self.at_ms))

    def ready_at(self, need: int, now_ms: int) -> int | None:
        """When the bucket holds `need` tokens, or is full; None: never."""
        wanted = min(need, max(1, int(self.burst)))
        tokens = self.tokens_at(now_ms)
        if int(tokens + _SPECK) >= wanted:
            return now_ms
        if self.rate <= 0:
            return None
        # Half a speck less than is missing: a float sum that falls short would make it a millisecond late.
        return now_ms + max(1, ceil((wanted - tokens - _SPECK / 2) * 1000 / self.rate))

    def tokens_at(self, now_ms: int) -> float:
        if now_ms <= self.at_ms:
            return self.tokens
        return min(self.burst, self.tokens + (now_ms - self.at_ms) * self.rate / 1000)


class Buckets:
    """The configured buckets. A throttle key without a bucket does not limit, unless it is closed."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        #: Keys that are closed, or that open step by step.
        self.closed: dict[str, ClosedKey] = {}
        #: Orders that were asked for; forgotten when a rate changes.
        self._slowest_first: dict[tuple[str, ...], list[str]] = {}

    def get(self, throttle_key: str) -> Bucket | None:
        return self._buckets.get(throttle_key)

    def set(self, throttle_key: str, bucket: Bucket | None) -> None:
        """Set or remove a bucket. Each scheduler must learn of a changed rate or burst by
        `Scheduler.bucket_changed`.
        """
        self._slowest_first.clear()
        if bucket is None:
            self._buckets.pop(throttle_key, None)
        else:
            self._buckets[throttle_key] = bucket

    def close(self, throttle_key: str, until_ms: int | None) -> None:
        """Close a key until that time, or open it. Probes in flight no longer count. Each scheduler must
        learn of it, as of a changed rate.
        """
        self._slowest_first.clear()
        if until_ms is None:
            self.closed.pop(throttle_key, None)
        else:
            self.closed[throttle_key] = ClosedKey(until_ms)

    def has_probes(self, now_ms: int) -> bool:
        """Whether a closed key delivers probes now, so that it matters which messages are delivered and
        settled.
        """
        return any(closed.until_ms <= now_ms for closed in self.closed.values())

    def charge(self, buckets: dict[str, Bucket]) -> None:
        """New values of buckets whose rates are the same."""
        self._buckets.update(buckets)

    def all(self) -> dict[str, Bucket]:
        return dict(self._buckets)

    def slowest_first(self, throttle_keys: tuple[str, ...]) -> list[str]:
        """The keys that are closed or have a bucket, in the one order in which all lanes wait for several of
        them. A closed key is the slowest.
        """
        known = self._slowest_first.get(throttle_keys)
        if known is not None:
            return known
        if len(self._slowest_first) >= _MAX_KNOWN_ORDERS:
            self._slowest_first.clear()
        buckets, closed = self._buckets, self.closed
        found = [(buckets[key].rate, key) for key in throttle_keys if key in buckets and key not in closed]
        found += [(-1.0, key) for key in throttle_keys if key in closed]
        found.sort()
        order = self._slowest_first[throttle_keys] = [key for _, key in found]
        return order


class BucketsDraft:
    """Tokens and room for probes at one instant, taken from copies."""

    __slots__ = ("_buckets", "_charged", "_now_ms", "_room", "_tokens", "slowest_first")

    def __init__(self, buckets: Buckets, now_ms: int) -> None:
        self._buckets = buckets
        self._now_ms = now_ms
        #: By throttle key, refilled; None: no limit.
        self._tokens: dict[str, float | None] = {}
        #: By closed throttle key: how many more probes may be delivered.
        self._room: dict[str, int] = {}
        self._charged: set[str] = set()
        self.slowest_first = buckets.slowest_first

    def charged(self) -> dict[str, Bucket]:
        """The buckets that gave tokens, in their future state."""
        return {key: self._now(key) for key in self._charged}

    def _now(self, throttle_key: str) -> Bucket:
        bucket = self._buckets.get(throttle_key)
        tokens = self._tokens[throttle_key]
        assert bucket is not None
        assert tokens is not None
        return Bucket(bucket.rate, bucket.burst, tokens, max(self._now_ms, bucket.at_ms))

    def _find_tokens(self, throttle_key: str) -> float | None:
        if throttle_key in self._tokens:
            return self._tokens[throttle_key]
        bucket = self._buckets.get(throttle_key)
        tokens = self._tokens[throttle_key] = None if bucket is None else bucket.tokens_at(self._now_ms)
        return tokens

    def _find_room(self, throttle_key: str) -> int | None:
        """The room of a closed key; None: it is open."""
        closed = self._buckets.closed.get(throttle_key)
        if closed is None:
            return None
        return self._room.setdefault(throttle_key, closed.room(self._now_ms))

    def take(self, throttle_keys: Iterable[str]) -> str | None:
        """Take a token of each bucket and a probe of each closed key, or nothing at all. Returns the first
        key that does not let the message pass.
        """
        found: list[tuple[str, float]] = []
        probing: list[str] = []
        for throttle_key in throttle_keys:
            if self._buckets.closed and (room := self._find_room(throttle_key)) is not None:
                if room < 1:
                    return throttle_key
                probing.append(throttle_key)
            tokens = self._find_tokens(throttle_key)
            if tokens is None:
                continue
            if tokens + _SPECK < 1:
                return throttle_key
            found.append((throttle_key, tokens))
        for throttle_key, tokens in found:
            self._tokens[throttle_key] = max(0.0, tokens - 1)
            self._charged.add(throttle_key)
        for throttle_key in probing:
            self._room[throttle_key] -= 1
        return None

    def whole_tokens(self, throttle_key: str) -> int | None:
        """How many messages may pass now; None: no limit."""
        tokens, room = self._find_tokens(throttle_key), self._find_room(throttle_key)
        if tokens is None:
            return room
        return int(tokens + _SPECK) if room is None else min(room, int(tokens + _SPECK))

    def ready_at(self, throttle_key: str, need: int) -> int | None:
        """When the bucket holds `need` tokens or is full; for a closed key, when it may deliver a probe.
        None: never, or not before a probe ends, which wakes the waiting lanes.
        """
        closed, room = self._buckets.closed.get(throttle_key), self._find_room(throttle_key)
        if closed is not None and self._now_ms < closed.until_ms:
            return closed.until_ms
        if room is not None and room < need:
            return None
        if self._find_tokens(throttle_key) is None:
            return self._now_ms
        return self._now(throttle_key).ready_at(need, self._now_ms)
