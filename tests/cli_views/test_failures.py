from __future__ import annotations

from dataclasses import replace

from fairlead.cli.failures import attempts_rows, failures_view
from tests.cli_views.values import NOW_MS, blocked, drawn, metrics, poison


def text(found: object, dead: int = 0, **options: int) -> str:
    return "\n".join(drawn(failures_view(found, dead=dead, now_ms=NOW_MS), **options))  # type: ignore[arg-type]


def test_a_healthy_queue_takes_one_line() -> None:
    assert text(metrics()) == "emails  0 failed and alive · 0 dead · no retries scheduled"


def test_the_four_metrics_and_blocked_streams_are_all_there() -> None:
    found = metrics(
        by_attempts={1: 60, 2: 30, 11: 3},
        by_reason={"transport_unavailable": 90, "timeout_exceeded": 3},
        scheduled=80,
        next_due=NOW_MS + 4000,
        latest_due=NOW_MS + 3_600_000,
        poison_candidates=(poison("018bcfe5-6800-7001-8000-00000badcafe", attempts=11),),
        blocked_streams=(blocked("order-7", behind=14),),
    )
    assert text(found, dead=2).splitlines() == [
        "emails  93 failed and alive · 2 dead · 80 retries scheduled, next in 4s, latest in 1h",
        "",
        "failed attempts of live messages",
        f" 1 {'█' * 54} 60",
        f" 2 {'█' * 27}{'─' * 27} 30",
        f"11 ██▊{'─' * 51}  3",
        "",
        "reason of the last failure",
        f"transport_unavailable {'█' * 35} 90",
        f"timeout_exceeded      █▏{'─' * 33}  3",
        "",
        "poison candidates",
        "id        attempts  age  again  last error",
        "0badcafe        11  2h   in 1m  unknown",
        "",
        "blocked streams",
        "stream   behind  blocked by  for  again",
        "order-7      14  deadbeef     5m  in 1m",
    ]


def test_reasons_stand_in_the_order_of_their_counts_and_then_of_their_names() -> None:
    found = metrics(
        by_attempts={1: 4}, by_reason={"timeout_exceeded": 1, "handler_exception": 1, "unknown": 2}
    )
    assert [line.split()[0] for line in text(found).splitlines()[-3:]] == [
        "unknown",
        "handler_exception",
        "timeout_exceeded",
    ]


def test_one_retry_has_one_time() -> None:
    assert (
        "1 retry scheduled, next in 5s"
        in text(metrics(scheduled=1, next_due=NOW_MS + 5000, latest_due=NOW_MS + 5000)).splitlines()[0]
    )
    assert "latest" not in text(metrics(scheduled=1, next_due=NOW_MS + 5000, latest_due=NOW_MS + 5000))


def test_a_stream_that_is_held_says_so() -> None:
    assert text(metrics(blocked_streams=(blocked("s", until=None),))).splitlines()[-1].split() == [
        "s",
        "3",
        "deadbeef",
        "5m",
        "held",
    ]


def test_figures_of_a_part_are_called_that() -> None:
    assert "a part of them" in text(metrics(complete=False))
    assert "a part of them" not in text(metrics())


def test_of_many_poison_candidates_the_first_are_listed_with_their_errors_and_all_are_counted() -> None:
    ids = [f"018bcfe5-6800-7001-8000-{number:012x}" for number in range(500)]
    found = metrics(poison_candidates=tuple(poison(message_id, due=None) for message_id in ids))
    view = failures_view(found, dead=0, now_ms=NOW_MS, errors={ids[0]: "no route\nmore of it"})
    rows = [line.split() for line in drawn(view, width=300)]
    assert rows[4] == ["00000000", "10", "2h", "-", "unknown:", "no", "route", "…"]
    assert rows[15] == ["0000000b", "10", "2h", "-", "unknown"]
    assert rows[16][:2] == ["488", "more;"]


def test_blocked_streams_that_are_not_listed_are_counted() -> None:
    lines = text(metrics(blocked_streams=(blocked("s"),), blocked_count=31)).splitlines()
    assert lines[-1] == "30 more; show more with --streams N"


def test_attempts_beyond_the_rows_there_are_become_one_row() -> None:
    assert attempts_rows({1: 5, 2: 4, 3: 3, 9: 2, 40: 1}, most=3) == [("1", 5), ("2", 4), ("3+", 6)]
    assert attempts_rows({2: 4, 1: 5}, most=2) == [("1", 5), ("2", 4)]


def test_a_stream_name_cannot_give_orders_to_the_terminal() -> None:
    shown = text(metrics(blocked_streams=(replace(blocked("x"), stream="a\x1b[2Jb\nc[bold]"),)))
    assert "\x1b" not in shown
    assert "a\\x1b[2Jb\\nc[bold]" in shown
