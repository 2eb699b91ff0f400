"""Token buckets, global to the broker, measured in steady time so that no clock step fills one.

A bucket grants at most one burst plus its rate times the time, over restarts and changes of its configuration
too: what it holds is written with the commit that hands messages out. `unsaved` and `forgotten` are what the
next commit has to write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

#: Float arithmetic may leave a full token at 0.9999999999.
_SPECK = 1e-9


def default_burst(rate: float) -> float:
    """As much as a second brings, and at least one message."""
    return max(1.0, rate)


@dataclass(slots=True)
class Bucket:
    rate: float
    burst: float
    tokens: float
    at_ms: int

    def refill(self, now_ms: int) -> float:
        if now_ms > self.at_ms:
            self.tokens = min(self.burst, self.tokens + (now_ms - self.at_ms) * self.rate / 1000)
            self.at_ms = now_ms
        return self.tokens


class Buckets:
    """All buckets that are configured. A key without one passes."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        #: Buckets without a configuration: what they hold counts if they get one again.
        self._idle: dict[str, Bucket] = {}
        self.unsaved: set[str] = set()
        self.forgotten: set[str] = set()

    # Configuration

    def load(self, key: str, bucket: Bucket) -> None:
        """A bucket as it was saved; `set` follows if it is still configured."""
        self._idle[key] = bucket

    def save(self, key: str, now_ms: int) -> None:
        """Before the commit that changes its configuration, which saves what it holds by then: the old rate
        counts until now.
        """
        if key in self._buckets:
            self._buckets[key].refill(now_ms)
            self.unsaved.add(key)
        elif key in self._idle and not self._forget_full(key, now_ms):
            self.unsaved.add(key)

    def set(self, key: str, rate: float, burst: float | None, now_ms: int) -> None:
        """Create full, or change in place: the tokens at hand stay, clipped to a smaller burst."""
        burst = default_burst(rate) if burst is None else burst
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.refill(now_ms)
        else:
            # One from before, saved or idle, has gained at this rate since.
            bucket = self._idle.pop(key, None) or Bucket(rate, burst, burst, now_ms)
        bucket.rate, bucket.burst, bucket.tokens = rate, burst, min(bucket.tokens, burst)
        bucket.refill(now_ms)
        self._buckets[key] = bucket

    def remove(self, key: str) -> None:
        bucket = self._buckets.pop(key, None)
        if bucket is not None:
            self._idle[key] = bucket

    def empty_all(self, now_ms: int) -> None:
        """What they hold is not known: none of it is granted."""
        for buckets in (self._buckets, self._idle):
            for key, bucket in buckets.items():
                bucket.tokens, bucket.at_ms = 0.0, now_ms
                self.unsaved.add(key)

    # Saving

    def forget_full(self, now_ms: int) -> None:
        """A full bucket without a configuration is like one that never was."""
        for key in list(self._idle):
            self._forget_full(key, now_ms)

    def _forget_full(self, key: str, now_ms: int) -> bool:
        bucket = self._idle[key]
        if bucket.refill(now_ms) < bucket.burst:
            return False
        del self._idle[key]
        self.unsaved.discard(key)
        self.forgotten.add(key)
        return True

    def to_save(self) -> list[tuple[str, Bucket]]:
        return [(key, self._buckets.get(key) or self._idle[key]) for key in self.unsaved]

    def saved(self) -> None:
        """The commit is made."""
        self.unsaved.clear()
        self.forgotten.clear()

    # Tokens

    def find(self, key: str, now_ms: int) -> Bucket | None:
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.refill(now_ms)
        return bucket

    def all(self, now_ms: int) -> dict[str, Bucket]:
        for bucket in self._buckets.values():
            bucket.refill(now_ms)
        return dict(self._buckets)

    def keys(self) -> list[str]:
        return list(self._buckets)

    def take(self, keys: Iterable[str], now_ms: int) -> str | None:
        """Take a token of each key, or none at all; the answer is the first key that lacks one."""
        taken = []
        for key in keys:
            bucket = self._buckets.get(key)
            if bucket is not None:
                if int(bucket.refill(now_ms) + _SPECK) < 1:
                    return key
                taken.append((key, bucket))
        for key, bucket in taken:
            bucket.tokens = max(0.0, bucket.tokens - 1)
            self.unsaved.add(key)
        return None

    def whole_tokens(self, key: str, now_ms: int) -> int | None:
        """How many messages the bucket lets pass now; None is no limit."""
        bucket = self._buckets.get(key)
        return None if bucket is None else int(bucket.refill(now_ms) + _SPECK)

    def slowest_first(self, keys: Iterable[str]) -> list[str]:
        """The keys that have a bucket, in the one order in which everybody waits for several of them."""
        found = [(bucket.rate, key) for key in keys if (bucket := self._buckets.get(key)) is not None]
        return [key for _, key in sorted(found)]

    def ready_at(self, key: str, need: int, now_ms: int) -> int | None:
        """When the bucket will hold `need` tokens (or be full); None is never."""
        bucket = self._buckets.get(key)
        if bucket is None:
            return now_ms
        wanted = min(need, max(1, int(bucket.burst)))
        tokens = bucket.refill(now_ms)
        if int(tokens + _SPECK) >= wanted:
            return now_ms
        if bucket.rate <= 0:
            return None
        # Half a speck less than is missing, or a sum of floats that falls short makes it a millisecond late.
        return now_ms + max(1, ceil((wanted - tokens - _SPECK / 2) * 1000 / bucket.rate))
