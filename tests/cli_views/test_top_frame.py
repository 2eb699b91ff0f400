from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cli.stats_samples import KeyShare, Rates, StatsSample
from fairlead.cli.top_frame import TopState, frame
from fairlead.model.throttle import ClosedThrottle
from fairlead.model.views import HookStats, ThrottleStats
from tests.cli_views.values import NOW_MS, blocked, drawn, metrics, poison, queue

HOOKS = (
    HookStats("on_enqueue", 1200, 0, 0, 0, None, ""),
    HookStats("on_failure", 31, 7, 40, 3, NOW_MS + 8000, "index a nil value\nmore"),
)
THROTTLES = (ThrottleStats("stripe", 100, 100, 100), ThrottleStats("smtp", 0.5, 5, 10))
EMAILS = queue(
    "emails",
    ready=1_234_567,
    waiting=214,
    leased=500,
    dead=31,
    bytes=1 << 30,
    consumers=8,
    hooks=HOOKS,
    throttles=THROTTLES,
)
SHARES = (
    KeyShare("acme", 3, 9_000, False, 60.0, 0.75, 0.74),
    KeyShare("globex", 1, 10_000, True, 20.0, 0.25, 0.26),
)
FAILURES = metrics(
    by_attempts={1: 60, 2: 30},
    by_reason={"transport_unavailable": 87, "timeout_exceeded": 3},
    scheduled=80,
    next_due=NOW_MS + 4000,
    latest_due=NOW_MS + 3_600_000,
    poison_candidates=(poison("018bcfe5-6800-7001-8000-00000badcafe"),),
    blocked_streams=(blocked("order-7"), blocked("order-8", until=None)),
)


def scene(*queues: Any, **changed: Any) -> TopState:
    look = StatsSample(1.0, queues or (EMAILS, queue("orders", paused=True)))
    base = TopState(
        "10.0.0.1:5554", NOW_MS, "12:00:00", look, selected="emails", shares=SHARES, failures=FAILURES
    )
    return replace(base, **changed)


def lines(shown: TopState, width: int = 80, height: int = 24) -> list[str]:
    return drawn(frame(shown, width, height), width=width, height=height)


@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (120, 40), (200, 60), (60, 18), (40, 10), (20, 5), (300, 100)]
)
def test_a_frame_has_exactly_the_size_of_the_terminal(width: int, height: int) -> None:
    flow = {"emails": Rates({"enqueued": 1, "delivered": 2, "completed": 1, "failed": 0}, {})}
    for shown in (
        scene(),
        scene(rates=flow, delivery_rates={"emails": (1, 2, 3)}),
        TopState("here", NOW_MS, "12:00:00", StatsSample(1.0, ())),
    ):
        found = lines(shown, width, height)
        assert len(found) == height
        assert max(map(len, found)) <= width


def test_eighty_columns_hold_every_part() -> None:
    text = "\n".join(lines(scene()))
    for part in (
        "10.0.0.1:5554",
        "2 queues, 1.2M messages, 31 dead",
        "12:00:00",
        "▸ emails",
        "orders paused",
        "1.2M",
        "1.0 GiB",
        "shares of emails",
        "acme",
        "74%",
        "10,000+",
        "80 retries, next in 4s, last in 1h",
        "transport_unavailable",
        "87",
        "on_enqueue 1,200 calls, 0 failed",
        "on_failure breaker open for 8s",
        "smtp",
        "stripe",
        "poison: 0badcafe",
        "order-7 3 behind deadbeef in 1m",
        "order-8 3 behind deadbeef held",
        "q",
        "quit",
    ):
        assert part in text, part


def test_a_wide_terminal_has_three_columns_and_room_for_attempts() -> None:
    narrow, wide = "\n".join(lines(scene(), 80, 24)), "\n".join(lines(scene(), 140, 40))
    title = next(line for line in wide.splitlines() if "shares of" in line)
    assert "failures of emails" in title
    assert "hooks and throttles" in title
    assert "failed attempts" in wide
    assert "hooks and throttles" not in next(line for line in narrow.splitlines() if "shares of" in line)


def test_rates_are_what_passed() -> None:
    flow = {
        "emails": Rates(
            {"enqueued": 30.0, "delivered": 20.0, "completed": 18.0, "failed": 2.0},
            {"ready": 10.0, "dead": 0},
        )
    }
    found = lines(scene(rates=flow))
    assert found[2].split()[-4:] == ["in/s", "out/s", "fail/s", "│"]
    assert found[3].split()[-4:] == ["30.0", "20.0", "2.0", "│"]


def test_the_way_it_went_is_drawn_where_there_is_room() -> None:
    flow = {"emails": Rates({"enqueued": 1.0, "delivered": 4.0, "completed": 1.0, "failed": 0.0}, {})}
    shown = scene(rates=flow, delivery_rates={"emails": (1.0, 4.0)})
    assert "▃█" in lines(shown, 140, 40)[3]
    assert "▃█" not in lines(shown, 80, 24)[3]


def test_a_long_list_of_queues_shows_the_part_with_the_selected_one_and_says_which() -> None:
    queues = [queue(f"q{number:02}") for number in range(40)]
    found = lines(scene(*queues, selected="q30"))
    assert "queues 28 to 33 of 40" in found[1]
    assert [line.split()[1] for line in found[3:9]] == ["q27", "q28", "q29", "▸", "q31", "q32"]
    assert "queues 1 to 6 of 40" in lines(scene(*queues, selected="q00"))[1]
    assert "queues 35 to 40 of 40" in lines(scene(*queues, selected="q39"))[1]


def test_what_does_not_fit_a_panel_is_counted() -> None:
    shares = [KeyShare(f"key{number}", 1, 5, False, None, 0.02, None) for number in range(50)]
    streams = tuple(blocked(f"s{number}") for number in range(9))
    found = "\n".join(
        lines(scene(shares=shares, failures=metrics(blocked_streams=streams, scheduled=1, next_due=NOW_MS)))
    )
    shown = sum(f"key{number} " in found for number in range(50))
    assert shown > 3
    assert f"{50 - shown} more keys" in found
    assert "5 more" in found
    assert "s3 3 behind" in found
    assert "s4 3 behind" not in found


def test_a_throttle_that_is_nearly_empty_comes_before_a_full_one() -> None:
    found = "\n".join(lines(scene()))
    assert found.index("smtp") < found.index("stripe")


def test_a_queue_without_trouble_says_so() -> None:
    found = "\n".join(lines(scene(queue("emails"), shares=(), failures=metrics())))
    for part in ("no key has ready messages", "no live message has failed", "none"):
        assert part in found


def test_failures_of_another_queue_are_not_shown_as_this_ones() -> None:
    found = "\n".join(lines(scene(failures=metrics("orders", by_reason={"timeout_exceeded": 7}))))
    assert "timeout_exceeded" not in found
    assert found.count("loading") == 2


def test_no_queues_is_a_hint_how_to_make_one() -> None:
    found = "\n".join(lines(TopState("here", NOW_MS, "12:00:00", StatsSample(1.0, ()))))
    assert "fairlead queue create NAME" in found


def test_trouble_takes_the_last_line() -> None:
    assert "no answer" in lines(scene(trouble="no answer"))[-1]


def test_names_from_messages_cannot_give_orders_to_the_terminal() -> None:
    evil = "x\x1b[2J\n[bold]y"
    shown = scene(
        replace(
            EMAILS,
            throttles=(ThrottleStats(evil, 1, 1, 1),),
            closed_throttles=(closed(evil, error=evil),),
            hooks=(replace_hook(evil),),
        ),
        shares=(KeyShare(evil, 1, 1, False, None, 1.0, None),),
        failures=metrics(blocked_streams=(blocked(evil),), scheduled=1, next_due=NOW_MS),
        trouble=evil,
    )
    text = "\n".join(lines(shown, 200, 50))
    assert "\x1b" not in text
    assert text.count("x\\x1b[2J\\n[bold]y") == 7


def test_a_closed_throttle_key_is_told_from_one_that_opens() -> None:
    keys = (closed("openai", error="429"), closed("smtp", at_once=4, probes=2))
    text = "\n".join(lines(scene(replace(EMAILS, hooks=(), closed_throttles=keys)), 200, 50))
    assert "openai closed for 1m 429" in text
    assert "smtp opens: 2 of 4 probes" in text


def closed(key: str, *, error: str = "", at_once: int = 0, probes: int = 0) -> ClosedThrottle:
    return ClosedThrottle(key, NOW_MS - 1000, NOW_MS + 60_000, "w1", "emails", error, 1, at_once, probes)


def replace_hook(error: str) -> HookStats:
    return HookStats("on_enqueue", 1, 1, 0, 1, None, error)
