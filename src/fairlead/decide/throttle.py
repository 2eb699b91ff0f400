"""Token buckets, global to the broker, measured in monotonic time so that no clock step fills one."""

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

    def set(self, key: str, rate: float, burst: float | None, now_ms: int) -> None:
        """Create full, or change in place: the tokens at hand stay, clipped to a smaller burst."""
        burst = default_burst(rate) if burst is None else burst
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = Bucket(rate, burst, burst, now_ms)
        else:
            bucket.refill(now_ms)
            bucket.rate, bucket.burst, bucket.tokens = rate, burst, min(bucket.tokens, burst)

    def remove(self, key: str) -> None:
        self._buckets.pop(key, None)

    def find(self, key: str, now_ms: int) -> Bucket | None:
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.refill(now_ms)
        return bucket

    def all(self, now_ms: int) -> dict[str, Bucket]:
        for bucket in self._buckets.values():
            bucket.refill(now_ms)
        return dict(self._buckets)

    def take(self, keys: Iterable[str], now_ms: int) -> str | None:
        """Take a token of each key, or none at all; the answer is the first key that lacks one."""
        buckets = []
        for key in keys:
            bucket = self._buckets.get(key)
            if bucket is not None:
                if int(bucket.refill(now_ms) + _SPECK) < 1:
                    return key
                buckets.append(bucket)
        for bucket in buckets:
            bucket.tokens = max(0.0, bucket.tokens - 1)
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
