"""What the benchmark of the doors says about those who were measured, and about those who could not come."""

from __future__ import annotations

from pathlib import Path

from bench.conditions import conditions_here
from bench.doors.measure import Measured, Row
from bench.doors.report import aims, contenders, tables
from bench.report import Figures, load_figures, save_figures, write_page


def measured() -> Measured:
    """Two rounds of three contenders; NATS is not installed."""
    rates = {"in process": [100.0, 300.0], "Flight": [60.0, 150.0], "Redis Streams": [50.0, 50.0]}
    cpu = {"client_us": [1.0, 1.0], "server_us": [2.0, 2.0]}
    rows = [Row("lifecycle", "os", "500", name, {"rate": rate, **cpu}) for name, rate in rates.items()]
    rows += [
        Row("latency", "os", "claim", name, {"p50": [p50, p50], "p99": [9.0, 9.0]})
        for name, p50 in (("in process", 1.0), ("Flight", 3.0))
    ]
    rows += [
        Row("singles", "os", style, "Redis Streams", {"rate": [rate, rate], **cpu})
        for style, rate in (("threads", 10.0), ("tasks", 30.0))
    ]
    rows += [Row("singles", "os", "threads", "Flight", {"rate": [60.0, 60.0], **cpu})]
    settings = {"in process": "here", "Flight": "there", "Redis Streams": "with AOF"}
    return Measured(rows, {"os": settings}, {"os": {"NATS JetStream": "nats-server is not installed"}})


def by_title(part: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    return next((head, rows) for title, head, rows in tables(measured()) if part in title)


def test_who_is_not_there_is_named_in_every_table_with_the_reason_below() -> None:
    assert any(
        line == "os, NATS JetStream: NOT THERE: nats-server is not installed"
        for line in contenders(measured())
    )
    head, (row,) = by_title("enqueue a batch")
    assert row[head.index("NATS JetStream/s")] == "not there"
    for part in ("waiting consumer", "concurrent producers"):
        _, rows = by_title(part)
        assert [row for row in rows if "NATS JetStream" in row and "not there" in row]


def test_ratios_are_taken_within_a_round() -> None:
    head, (row,) = by_title("beside the others")
    # 0.6 and 0.5; of the medians it would be 0.525.
    assert row[head.index("of in process")] == "0.55 (0.50..0.60)"
    assert row[head.index("of NATS JetStream")] == "-"


def test_another_that_can_do_it_in_several_ways_is_met_where_it_is_best() -> None:
    head, rows = by_title("concurrent producers")
    (flight,) = [row for row in rows if row[1] == "Flight"]
    assert flight[head.index("of Redis Streams")] == "2.00 (2.00..2.00)"


def test_an_aim_beside_somebody_who_is_not_there_is_neither_met_nor_missed() -> None:
    assert [(aim, met) for aim, _, met in aims(measured())] == [
        ("doors, os, batch 500: at least 0.5 of in process", True),
        ("doors, os, batch 500: at least 2.0 of Redis Streams", True),
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
