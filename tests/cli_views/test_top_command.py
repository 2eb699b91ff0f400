"""`fairlead top`: one frame for pipes, and the live view at a real terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead import NewMessage
from fairlead.cli.top import read_keys
from tests.cli_views.conftest import Run
from tests.cli_views.terminal import Terminal


@pytest.fixture
def top(data: Path) -> Iterator[Terminal]:
    terminal = Terminal("--data", data, "top", "--interval", "50ms")
    terminal.wait_for("▸ emails")
    yield terminal
    terminal.close()


def test_keys_choose_a_queue_and_q_leaves_a_terminal_as_it_was(top: Terminal) -> None:
    top.press(b"j")
    top.wait_for("▸ orders")
    top.wait_for("order-7 2 behind")
    top.press(b"\x1b[A")
    top.wait_for("▸ emails")
    top.press(b"\t")
    top.wait_for("▸ orders")
    assert not top.as_it_was
    top.press(b"q")
    assert top.end() == 0
    assert "\x1b[?1049l" in top.output, "the screen from before is back"
    assert "\x1b[?25h" in top.output, "and so is the cursor"
    assert top.as_it_was


def test_an_interrupt_leaves_quietly(top: Terminal) -> None:
    top.press(b"\x03")
    assert top.end() == 0
    assert "\x1b[?1049l" in top.output
    assert "Traceback" not in top.output
    assert top.as_it_was


def test_a_new_size_of_the_terminal_is_used(top: Terminal) -> None:
    top.resize(150, 40)
    top.wait_for("╭─ queues " + "─" * 138 + "─╮")


def test_without_a_terminal_there_is_one_plain_sentence(run: Run, data: Path) -> None:
    complaint = run("--data", data, "top", code=2).stderr
    assert "fairlead stats --watch" in complaint
    assert "fairlead top --once" in complaint
    assert "--once" in run("--data", data, "top", "-o", "json", code=2).stderr


def test_once_prints_one_frame_of_the_usual_size(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = run("--data", data, "top", "--once", "--interval", "10ms", "orders").stdout.splitlines()
    assert len(lines) == 24
    assert max(map(len, lines)) == 80
    assert any("▸ orders" in line for line in lines)
    assert any("order-7 2 behind" in line for line in lines)
    assert any("1 poison:" in line or "poison: " in line for line in lines)


def test_once_follows_the_size_it_is_told(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("LINES", "40")
    lines = run("--data", data, "top", "--once", "--interval", "10ms").stdout.splitlines()
    assert (len(lines), max(map(len, lines))) == (40, 140)


def test_once_as_json_has_the_details_of_the_selected_queue(run: Run, data: Path) -> None:
    found = json.loads(
        run("--data", data, "top", "emails", "--once", "--interval", "10ms", "-o", "json").stdout
    )
    assert [queue["queue"] for queue in found["queues"]] == ["emails", "orders"]
    assert found["selected"] == found["failures"]["queue"] == "emails"
    assert {share["key"] for share in found["shares"]} == {"acme", "globex"}
    assert found["queues"][0]["rates"]["ready_change"] == 0


def test_the_fullest_queue_is_shown_when_none_is_named(run: Run, data: Path) -> None:
    with fairlead.open(data, durability="os") as broker:
        broker.create_queue("zebra")
        broker.enqueue_many("zebra", [NewMessage(b"") for _ in range(100)])
    assert (
        json.loads(run("--data", data, "top", "--once", "--interval", "10ms", "-o", "json").stdout)[
            "selected"
        ]
        == "zebra"
    )


def test_a_queue_that_does_not_exist_cannot_be_chosen(run: Run, data: Path) -> None:
    assert "there is no queue 'nothing'" in run("--data", data, "top", "nothing", "--once", code=4).stderr


@pytest.mark.parametrize(
    ("raw", "pressed"),
    [
        (b"jk", ["down", "up"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA\x1bOB", ["up", "down"]),
        (b"\t\x1b[Z", ["down", "up"]),
        (b"q", ["leave"]),
        (b"\x03", ["leave"]),
        (b"xyz", []),
        (b"\x1b[5~j", ["down"]),
        (b"\x1b[1;5Cq", ["leave"]),
        (b"\x1b", []),
        (b"\x1b[", []),
        (b"\x1bq", ["leave"]),
    ],
)
def test_keys_are_told_apart_and_others_passed_over(raw: bytes, pressed: list[str]) -> None:
    assert read_keys(raw) == pressed
