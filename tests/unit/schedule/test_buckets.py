"""Token buckets: how they fill, and that a draft takes from copies."""

from __future__ import annotations

import pytest

from fairlead.schedule.throttle import Bucket, Buckets, BucketsDraft


def test_a_bucket_fills_with_time_up_to_its_burst() -> None:
    bucket = Bucket(2.0, 3.0, 1.0, 1000)
    assert bucket.tokens_at(1500) == 2.0
    assert bucket.tokens_at(9000) == 3.0
    assert bucket.tokens_at(500) == 1.0
    assert bucket.refilled(1500) == Bucket(2.0, 3.0, 2.0, 1500)
    assert bucket.refilled(500) is bucket


def test_a_changed_rate_counts_from_now_on_and_a_smaller_burst_clips() -> None:
    bucket = Bucket(2.0, 4.0, 1.0, 0).configured(10.0, 4.0, 1000)
    assert bucket == Bucket(10.0, 4.0, 3.0, 1000)
    assert bucket.configured(10.0, 2.0, 1000).tokens == 2.0


@pytest.mark.parametrize(
    ("need", "at_ms"),
    [(1, 100), (2, 350), (3, 850), (9, 850)],
    ids=["at hand", "soon", "full", "over the burst"],
)
def test_a_bucket_says_when_it_is_ready(need: int, at_ms: int) -> None:
    assert Bucket(2.0, 3.0, 1.5, 100).ready_at(need, 100) == at_ms


def test_a_bucket_without_a_rate_is_never_ready() -> None:
    assert Bucket(0.0, 3.0, 0.5, 100).ready_at(1, 100) is None


def test_a_draft_takes_a_token_of_each_bucket_or_none() -> None:
    buckets = Buckets()
    buckets.set("t", Bucket(1.0, 2.0, 2.0, 0))
    buckets.set("u", Bucket(1.0, 1.0, 1.0, 0))
    draft = BucketsDraft(buckets, 0)
    assert draft.take(["t", "nothing", "u"]) is None
    assert draft.take(["t", "u"]) == "u"
    assert draft.charged() == {"t": Bucket(1.0, 2.0, 1.0, 0), "u": Bucket(1.0, 1.0, 0.0, 0)}
    assert buckets.get("t") == Bucket(1.0, 2.0, 2.0, 0)


def test_a_token_that_lacks_only_a_speck_is_there() -> None:
    buckets = Buckets()
    buckets.set("t", Bucket(1.0, 1.0, 0.9999999999, 0))
    assert BucketsDraft(buckets, 0).whole_tokens("t") == 1
    assert BucketsDraft(buckets, 0).take(["t"]) is None


def test_the_slowest_bucket_comes_first_also_after_a_change_of_rates() -> None:
    buckets = Buckets()
    buckets.set("t", Bucket(2.0, 1.0, 1.0, 0))
    buckets.set("u", Bucket(1.0, 1.0, 1.0, 0))
    assert buckets.slowest_first(("t", "nothing", "u")) == ["u", "t"]
    buckets.set("u", Bucket(3.0, 1.0, 1.0, 0))
    assert buckets.slowest_first(("t", "nothing", "u")) == ["t", "u"]
    buckets.set("t", None)
    assert buckets.slowest_first(("t", "nothing", "u")) == ["u"]
