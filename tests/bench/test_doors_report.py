"""What the benchmark of the doors says about those who were measured, and about those who could not come."""

from __future__ import annotations

from pathlib import Path

from bench.conditions import conditions_here
from bench.doors.measure import Measured, Row
from bench.doors.report import aims, contenders, tables
from bench.doors.waiting import Crowd
from bench.report import Figures, load_figures, save_figures, write_page


def row(group: str, case: str, name: str, cpu: float, **rounds: list[float]) -> Row:
    count = len(next(iter(rounds.values())))
    return Row(
        group, "os", case, name, {**rounds, "client_us": [1.0] * count, "server_us": [cpu - 1] * count}
    )


def measured() -> Measured:
    """Three rounds of three contenders; NATS is not installed."""
    rates = {"in process": [100.0, 300.0, 200.0], "RESP": [60.0, 150.0, 110.0], "Redis Streams": [50.0] * 3}
    rows = [
        row("lifecycle", "500", name, 2 if name == "RESP" else 4, rate=rate) for name, rate in rates.items()
    ]
    rows += [
        row("latency", way, name, 2, p50=[p50, p50], p99=[9.0, 9.0])
        for name, way, p50 in (
            ("RESP", "claim", 3.0),
            ("RESP, asyncio", "consume", 2.0),
            ("Redis Streams", "claim", 1.0),
        )
    ]
    rows += [
        row("singles", case, name, 3, rate=[rate, rate])
        for name, case, rate in (
            ("Redis Streams", "10 threads", 10.0),
            ("Redis Streams", "10 tasks", 30.0),
            ("Redis Streams", "100 tasks", 90.0),
            ("RESP", "10 threads", 60.0),
            ("RESP", "10 tasks", 45.0),
        )
    ]
    secured = [row("lifecycle", "1", name, cpu, rate=[5.0]) for name, cpu in (("neither", 2), ("TLS", 3))]
    settings = {"in process": "here", "RESP": "there", "Redis Streams": "with AOF"}
    return Measured(
        rows,
        {"os": settings},
        {"os": {"NATS JetStream": "nats-server is not installed"}},
        secured=secured,
        crowds=[Crowd(True, 2_000, 5.5, 11, 11, 1.7)],
    )


def by_title(part: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return next((head, rows) for title, head, rows in tables(measured()) if part in title)


def test_who_is_not_there_is_named_in_every_table_with_the_reason_below() -> None:
    said = contenders(measured())
    assert any(line == "os, NATS JetStream: NOT THERE: nats-server is not installed" for line in said)
    head, (one,) = by_title("enqueue a batch")
    assert one[head.index("NATS JetStream/s")] == "not there"
    for part in ("waiting consumer", "concurrent producers"):
        _, rows = by_title(part)
        assert [one for one in rows if "NATS JetStream" in one and "not there" in one]


def test_ratios_are_taken_within_a_round_and_shown_with_their_quartiles() -> None:
    head, (one,) = by_title("beside the others")
    # 0.6, 0.5 and 0.55; of the medians it would be the same, and the quartiles would not.
    assert one[head.index("of in process")] == "0.55 (0.53..0.57)"
    assert one[head.index("of in process, by CPU")] == "2.00 (2.00..2.00)"
    assert one[head.index("of NATS JetStream")] == "-"


def test_another_that_can_do_it_in_several_ways_is_met_where_it_is_best() -> None:
    head, rows = by_title("concurrent producers")
    (ours,) = [one for one in rows if one[1:3] == ("RESP", "10 threads")]
    assert ours[head.index("of Redis Streams")] == "2.00 (2.00..2.00)"


def test_the_cost_of_keys_and_tls_is_told_beside_neither() -> None:
    head, rows = by_title("keys and TLS")
    assert [one[head.index("CPU of neither")] for one in rows] == [
        "1.00 (1.00..1.00)",
        "1.50 (1.50..1.50)",
    ]


def test_an_aim_beside_somebody_who_is_not_there_is_neither_met_nor_missed() -> None:
    assert [(aim, met) for aim, _, met in aims(measured())] == [
        ("doors, os, batch 500: at least 1.5 of Redis Streams", True),
        ("doors, os, batch 500: at least 1.5 of Redis Streams, by CPU", True),
        ("doors, os, 10 producers: at least 1.3 of Redis Streams", True),
        ("doors, os, 10 producers: at least 1.3 of Redis Streams, by CPU", False),
    ]


def test_figures_survive_being_saved_and_what_was_written_by_hand_stays(tmp_path: Path) -> None:
    figures = Figures(doors=measured(), conditions={"doors": conditions_here()})
    save_figures(tmp_path / "figures.json", figures)
    page = tmp_path / "figures.md"
    page.write_text("# Old\n\n## What limits it\n\nBy hand.\n")
    write_page(load_figures(tmp_path / "figures.json"), page)
    text = page.read_text()
    assert text.endswith("## What limits it\n\nBy hand.\n")
    assert "NOT THERE: nats-server is not installed" in text
    assert load_figures(tmp_path / "figures.json") == figures
