"""Laws of the scheduler and the token buckets, on their own: a disk that is a dictionary, and time that is a
number.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from itertools import accumulate

from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.oracle.drr import Memory, QueueScheduler
from tests.oracle.rows import lane_key, lane_throttle_keys, pack_lane, pack_row, row_place, row_weight
from tests.oracle.throttle import Buckets
from tests.sampling import sampled

Picked = list[tuple[bytes, bytes]]

KEYS = ("a", "b", "c", "d")
weights = st.integers(1, 20)


class Disk:
    """The ready rows of one queue, lane by lane, each sorted by place."""

    def __init__(self) -> None:
        self.lanes: dict[bytes, list[bytes]] = {}
        self.last_place = 0

    def new_row(self, lane: bytes, weight: int) -> bytes:
        self.last_place += 1
        row = pack_row(self.last_place, self.last_place.to_bytes(16, "big"), weight, 0, 10)
        self.put(lane, row)
        return row

    def put(self, lane: bytes, row: bytes) -> None:
        insort(self.lanes.setdefault(lane, []), row)

    def pop(self, lane: bytes, row: bytes) -> None:
        self.lanes[lane].remove(row)
        if not self.lanes[lane]:
            del self.lanes[lane]

    def rows_after(self, lane: bytes, place: int, limit: int) -> list[bytes]:
        rows = self.lanes.get(lane, [])
        at = bisect_right(rows, place, key=row_place)
        return rows[at : at + limit]

    @property
    def count(self) -> int:
        return sum(map(len, self.lanes.values()))


def scheduler_on(
    disk: Disk, buckets: Buckets | None = None, *, rows: int = 200_000, quantum: int = 1, per_key: int = 0
) -> QueueScheduler:
    return QueueScheduler(
        disk.rows_after,
        buckets or Buckets(),
        Memory(row_limit=rows),
        quantum=quantum,
        max_unsettled_per_key=per_key,
    )


class OneQueue(RuleBasedStateMachine):
    """Whatever comes and goes: FIFO within a lane, nothing lost, nothing twice, and no claim that goes
    hungry.
    """

    @initialize(
        rows=st.sampled_from([0, 1, 3, 200_000]),
        quantum=st.integers(1, 3),
        per_key=st.sampled_from([0, 0, 1, 3]),
    )
    def open(self, rows: int, quantum: int, per_key: int) -> None:
        self.rows, self.quantum, self.per_key = rows, quantum, per_key
        self.disk = Disk()
        self.out: Picked = []
        self.start()

    def start(self) -> None:
        self.memory = Memory(row_limit=self.rows)
        self.scheduler = QueueScheduler(
            self.disk.rows_after,
            Buckets(),
            self.memory,
            quantum=self.quantum,
            max_unsettled_per_key=self.per_key,
        )

    @rule(key=st.sampled_from(KEYS), weight=weights, count=st.integers(1, 12), throttled=st.booleans())
    def add(self, key: str, weight: int, count: int, throttled: bool) -> None:
        lane = pack_lane(key, ("unconfigured",) if throttled else ())
        for _ in range(count):
            self.scheduler.add(lane, self.disk.new_row(lane, weight))

    @rule(limit=st.integers(1, 15))
    def take(self, limit: int) -> None:
        held = Counter(lane_key(lane) for lane, _ in self.out)
        pending = Counter(lane_key(lane) for lane, rows in self.disk.lanes.items() for _ in rows)
        room = {
            key: min(count, self.per_key - held[key]) if self.per_key else count
            for key, count in pending.items()
        }
        picked = self.scheduler.take(limit, 0)
        for lane, row in picked:
            assert self.disk.lanes[lane][0] == row, "a lane is FIFO by place"
            self.disk.pop(lane, row)
        self.out += picked
        assert len(picked) == min(limit, sum(room.values())), "a claim gets what there is"
        if self.per_key:
            held = Counter(lane_key(lane) for lane, _ in self.out)
            assert max(held.values(), default=0) <= self.per_key
        elif len(picked) < limit:
            assert (self.memory.lanes, self.memory.rows) == (0, 0), "an empty queue holds no memory"

    @precondition(lambda self: self.out)
    @rule(pick=st.integers(0, 1000))
    def give_back(self, pick: int) -> None:
        lane, row = self.out.pop(pick % len(self.out))
        self.disk.put(lane, row)
        self.scheduler.give_back(lane, row)
        if self.per_key:
            self.scheduler.settled(lane_key(lane))

    @precondition(lambda self: self.out)
    @rule(pick=st.integers(0, 1000))
    def settle(self, pick: int) -> None:
        lane, _ = self.out.pop(pick % len(self.out))
        if self.per_key:
            self.scheduler.settled(lane_key(lane))

    @precondition(lambda self: self.disk.count)
    @rule(pick=st.integers(0, 1000), count=st.integers(1, 5))
    def remove(self, pick: int, count: int) -> None:
        for _ in range(min(count, self.disk.count)):
            lane, row = [(lane, row) for lane, rows in self.disk.lanes.items() for row in rows][
                pick % self.disk.count
            ]
            self.disk.pop(lane, row)
            self.scheduler.remove(lane, row)

    @rule()
    def reopen(self) -> None:
        self.scheduler.discard()
        assert (self.memory.lanes, self.memory.rows) == (0, 0), "a discarded queue gives its memory back"
        self.start()
        for lane, rows in sorted(self.disk.lanes.items()):
            self.scheduler.load(lane, rows[0], rows[-1])
        if self.per_key:
            for lane, _ in self.out:
                self.scheduler.note_unsettled(lane_key(lane))

    @invariant()
    def memory_is_counted(self) -> None:
        held = [lane for lane in map(self.scheduler.find_lane, self.every_lane()) if lane is not None]
        assert self.memory.lanes == len(held)
        assert self.memory.rows == sum(len(lane.rows) - lane.at for lane in held)
        assert {lane.id for lane in held} >= set(self.disk.lanes), "a lane with ready rows is known"
        assert self.memory.rows <= self.rows + len(held) + 256, (
            "read-ahead keeps its cap, but for one row a lane and the last read"
        )

    def every_lane(self) -> list[bytes]:
        return [pack_lane(key, throttles) for key in KEYS for throttles in ((), ("unconfigured",))]

    def teardown(self) -> None:
        if hasattr(self, "disk") and not self.per_key:
            self.take(10_000)
            assert not self.disk.count


OneQueue.TestCase.settings = settings(max_examples=sampled(100, of=400), stateful_step_count=40)


class TestOneQueueKeepsItsLanes(OneQueue.TestCase):
    pass


@given(
    adds=st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from([(), ("t",), ("u",), ("t", "u")]), weights),
        min_size=1,
        max_size=80,
    ),
    calls=st.lists(
        st.tuples(st.integers(1, 10), st.integers(0, 400), st.integers(0, 3)), min_size=1, max_size=40
    ),
    rows=st.integers(0, 4),
    quantum=st.integers(1, 3),
)
def test_a_small_read_ahead_gives_the_same_order_as_a_large_one(
    adds: list[tuple[str, tuple[str, ...], int]], calls: list[tuple[int, int, int]], rows: int, quantum: int
) -> None:
    roomy, tight = _twin(200_000, quantum), _twin(rows, quantum)
    for key, throttles, weight in adds:
        for disk, scheduler in (roomy, tight):
            lane = pack_lane(key, throttles)
            scheduler.add(lane, disk.new_row(lane, weight))
    now_ms = 0
    for limit, passed_ms, back in calls:
        now_ms += passed_ms
        answers = [_take(disk, scheduler, limit, now_ms) for disk, scheduler in (roomy, tight)]
        assert answers[0] == answers[1]
        # A lane that ran empty may be noticed late by the small window, and then keeps its turn: give back to
        # living ones.
        returned = [(lane, row) for lane, row in answers[0] if lane in roomy[0].lanes][:back]
        for disk, scheduler in (roomy, tight):
            for lane, row in returned:
                disk.put(lane, row)
                scheduler.give_back(lane, row)


def _twin(rows: int, quantum: int) -> tuple[Disk, QueueScheduler]:
    disk, buckets = Disk(), Buckets()
    buckets.set("t", 20, 3, 0)
    return disk, scheduler_on(disk, buckets, rows=rows, quantum=quantum)


def _take(disk: Disk, scheduler: QueueScheduler, limit: int, now_ms: int) -> Picked:
    picked = scheduler.take(limit, now_ms)
    for lane, row in picked:
        assert disk.lanes[lane][0] == row
        disk.pop(lane, row)
    return picked


@given(
    shares=st.dictionaries(st.sampled_from(KEYS), weights, min_size=2),
    quantum=st.integers(1, 4),
    limits=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    rows=st.sampled_from([0, 5, 200_000]),
)
def test_backlogged_keys_share_by_weight_and_never_differ_by_more_than_a_turn(
    shares: dict[str, int], quantum: int, limits: list[int], rows: int
) -> None:
    disk = Disk()
    scheduler = scheduler_on(disk, rows=rows, quantum=quantum)
    for key, weight in shares.items():
        for _ in range(sum(limits)):
            scheduler.add(pack_lane(key), disk.new_row(pack_lane(key), weight))
    served = Counter(dict.fromkeys(shares, 0))
    for limit in limits:
        for lane, _ in _take(disk, scheduler, limit, 0):
            served[lane_key(lane)] += 1
            turns = [served[key] / (weight * quantum) for key, weight in shares.items()]
            assert max(turns) - min(turns) <= 1
    assert sum(served.values()) == sum(limits)


@given(
    shares=st.dictionaries(st.sampled_from(KEYS), weights, min_size=1),
    quantum=st.integers(1, 3),
    before=st.lists(st.integers(1, 30), max_size=6),
    limit=st.integers(1, 30),
)
def test_a_key_that_returns_waits_at_most_one_turn_of_each_other_key(
    shares: dict[str, int], quantum: int, before: list[int], limit: int
) -> None:
    disk = Disk()
    scheduler = scheduler_on(disk, quantum=quantum)
    one_turn_of_each = sum(shares.values()) * quantum
    for key, weight in shares.items():
        for _ in range(sum(before) + one_turn_of_each + limit):
            scheduler.add(pack_lane(key), disk.new_row(pack_lane(key), weight))
    for count in before:
        _take(disk, scheduler, count, 0)
    quiet = pack_lane("quiet")
    scheduler.add(quiet, disk.new_row(quiet, 1))
    order: list[bytes] = []
    while quiet not in order:
        order += [lane for lane, _ in _take(disk, scheduler, limit, 0)]
    assert order.index(quiet) <= one_turn_of_each


@given(
    shares=st.dictionaries(st.sampled_from(KEYS), weights, min_size=1),
    quantum=st.integers(1, 3),
    rounds=st.integers(1, 12),
)
def test_a_key_that_runs_dry_and_returns_at_once_gets_no_more_than_one_turn_a_round(
    shares: dict[str, int], quantum: int, rounds: int
) -> None:
    disk = Disk()
    scheduler = scheduler_on(disk, quantum=quantum)
    one_turn_of_each = sum(shares.values()) * quantum
    for key, weight in shares.items():
        for _ in range((rounds + 1) * one_turn_of_each):
            scheduler.add(pack_lane(key), disk.new_row(pack_lane(key), weight))
    hasty = pack_lane("hasty")
    turns = 0
    for _ in range(rounds * one_turn_of_each):
        if hasty not in disk.lanes:
            scheduler.add(hasty, disk.new_row(hasty, 20))
        turns += _take(disk, scheduler, 1, 0)[0][0] == hasty
    assert turns <= rounds + 1


lanes_under_buckets = st.tuples(
    st.sampled_from(KEYS), st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "free"), ()]), weights
)


@given(
    adds=st.lists(st.tuples(lanes_under_buckets, st.integers(1, 8)), min_size=1, max_size=25),
    t=st.tuples(st.integers(1, 200), st.integers(1, 6)),
    u=st.tuples(st.integers(1, 200), st.integers(1, 6)),
    limit=st.integers(1, 20),
    rows=st.sampled_from([0, 200_000]),
)
def test_throttled_lanes_drain_by_computed_wake_ups_alone_and_never_faster_than_their_buckets(
    adds: list[tuple[tuple[str, tuple[str, ...], int], int]],
    t: tuple[int, int],
    u: tuple[int, int],
    limit: int,
    rows: int,
) -> None:
    disk, buckets = Disk(), Buckets()
    buckets.set("t", *t, 0)
    buckets.set("u", *u, 0)
    scheduler = scheduler_on(disk, buckets, rows=rows)
    for (key, throttles, weight), count in adds:
        lane = pack_lane(key, throttles)
        for _ in range(count):
            scheduler.add(lane, disk.new_row(lane, weight))
    now_ms = 0
    passed: dict[str, list[int]] = {"t": [], "u": [], "free": []}
    looks = 0
    backlog = disk.count
    while disk.count:
        picked = _take(disk, scheduler, limit, now_ms)
        for lane, _ in picked:
            for key in lane_throttle_keys(lane):
                passed[key].append(now_ms)
        if len(picked) == limit:
            continue
        assert all(lane_throttle_keys(lane) for lane in disk.lanes), "what needs no token is never held back"
        if not any({"t", "u"} <= set(throttles) for (_, throttles, _), _ in adds):
            # Where some lanes need two tokens, one may be kept for a moment so that they do not starve.
            idle = [lane for lane in disk.lanes if buckets.whole_tokens(lane_throttle_keys(lane)[0], now_ms)]
            assert not idle, "a token is there, and a lane that needs only it waits"
        looks += 1
        assert looks <= 4 * backlog + 4, "wake-ups that bring nothing"
        if disk.count:
            wake_ms = scheduler.next_wake_ms()
            assert wake_ms is not None, "lanes wait, and nothing will wake them"
            now_ms = max(now_ms + 1, wake_ms)
    for key, (rate, burst) in (("t", t), ("u", u)):
        assert_never_faster(passed[key], rate, burst)


def assert_never_faster(at_ms: list[int], rate: float, burst: float) -> None:
    """In every window, however small, at most the burst and what flowed in meanwhile."""
    for first, start in enumerate(at_ms):
        for last in range(first, len(at_ms)):
            assert last - first + 1 <= burst + rate * (at_ms[last] - start) / 1000 + 1e-6


steps = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 8)), min_size=1, max_size=40)


@given(rate=st.floats(0.1, 500), burst=st.integers(1, 10), calls=steps)
def test_a_bucket_gives_no_more_than_its_burst_and_its_rate_in_any_window(
    rate: float, burst: int, calls: list[tuple[int, int]]
) -> None:
    buckets = Buckets()
    buckets.set("k", rate, burst, 0)
    taken: list[int] = []
    for now_ms, (_, tries) in zip(accumulate(passed for passed, _ in calls), calls, strict=True):
        taken += [now_ms for _ in range(tries) if buckets.take(["k"], now_ms) is None]
        assert_holds_at_most_its_burst(buckets, "k", now_ms)
    assert_never_faster(taken, rate, burst)


def assert_holds_at_most_its_burst(buckets: Buckets, key: str, now_ms: int) -> None:
    bucket = buckets.find(key, now_ms)
    assert bucket is not None
    assert 0 <= bucket.tokens <= bucket.burst


@given(
    st.lists(
        st.tuples(
            st.integers(-50, 200), st.sampled_from(["take", "set"]), st.floats(0.5, 100), st.integers(1, 8)
        ),
        max_size=40,
    )
)
def test_neither_a_live_change_nor_time_that_stands_or_steps_back_fills_a_bucket_over_its_burst(
    calls: list[tuple[int, str, float, int]],
) -> None:
    buckets = Buckets()
    buckets.set("k", 10, 5, 0)
    now_ms = 0
    for passed_ms, verb, rate, burst in calls:
        before = buckets.find("k", now_ms)
        assert before is not None
        tokens = before.tokens
        now_ms += passed_ms
        if verb == "set":
            buckets.set("k", rate, burst, now_ms)
        elif buckets.take(["k"], now_ms) is None:
            assert_holds_at_most_its_burst(buckets, "k", now_ms)
        if passed_ms <= 0:
            after = buckets.find("k", now_ms)
            assert after is not None
            assert after.tokens <= tokens, "no time passed, no token came"
        assert_holds_at_most_its_burst(buckets, "k", now_ms)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12))
def test_several_keys_are_taken_all_or_none(a: int, b: int, tries: int) -> None:
    buckets = Buckets()
    buckets.set("a", 1, a, 0)
    buckets.set("b", 1, b, 0)
    passed = [buckets.take(["a", "none", "b"], 0) for _ in range(tries)]
    got = min(a, b, tries)
    assert passed[:got] == [None] * got
    assert set(passed[got:]) <= {"a" if a <= b else "b"}
    assert buckets.whole_tokens("a", 0) == a - got
    assert buckets.whole_tokens("b", 0) == b - got
    assert buckets.whole_tokens("none", 0) is None


@given(rate=st.floats(0.1, 500), burst=st.integers(1, 10), need=st.integers(1, 12), spent=st.integers(0, 10))
def test_the_computed_time_of_the_next_token_is_when_it_is_there_and_not_before(
    rate: float, burst: int, need: int, spent: int
) -> None:
    buckets = Buckets()
    buckets.set("k", rate, burst, 0)
    for _ in range(spent):
        buckets.take(["k"], 0)
    at_ms = buckets.ready_at("k", need, 0)
    assert at_ms is not None
    wanted = min(need, burst)
    if at_ms > 1:
        # Two milliseconds before: rounding up to whole ones may cost one where a token is short by a
        # billionth.
        early = buckets.whole_tokens("k", at_ms - 2)
        assert early is not None
        assert early < wanted
        event("had to wait")
    there = buckets.whole_tokens("k", at_ms)
    assert there is not None
    assert there >= wanted


def test_the_latest_message_of_a_key_sets_its_weight() -> None:
    disk = Disk()
    scheduler = scheduler_on(disk)
    for key, weight in (("a", 5), ("b", 1), ("a", 2), *(("a", 2),) * 10, *(("b", 1),) * 10):
        scheduler.add(pack_lane(key), disk.new_row(pack_lane(key), weight))
    picked = _take(disk, scheduler, 9, 0)
    assert Counter(lane_key(lane) for lane, _ in picked) == {"a": 6, "b": 3}
    assert {row_weight(row) for lane, row in picked if lane_key(lane) == "a"} == {5, 2}
