"""The parts of `make demo` that need no Spark. tests/spark/test_demo.py watches all of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.demo.books import Books
from examples.demo.screen import NEXT
from examples.demo.story import EXAMPLE, FIXES, Outcome
from examples.marketplace.orders import SHOPS, write_orders
from fairlead.model.views import QueueStats
from fairlead.runbook.check import read_runbook
from tests.docs.pages import ROOT

NOTHING_LEFT = QueueStats("market/orders", 0, 0, 0, 0, 0, 0, 0, 0, False)
ONE_DEAD = QueueStats("market/orders", 0, 0, 0, 1, 0, 0, 0, 0, False)


def as_told() -> Outcome:
    return Outcome(
        sent=Counter(gold=3, noisy=2),
        paid=Counter(gold=3, noisy=2),
        brought_back=2,
        left=NOTHING_LEFT,
        sound=True,
        failed=Counter(transport_unavailable=4, validation_failure=1, poison_message=2),
        died=Counter(validation_failure=1, poison_message=1),
    )


def test_a_story_that_went_as_told_holds() -> None:
    assert all(holds for holds, _ in as_told().holds)


def one_order_is_missing(outcome: Outcome) -> None:
    outcome.paid["gold"], outcome.missing = 2, 1


def another_order_came_in_its_place(outcome: Outcome) -> None:
    outcome.missing = outcome.strangers = 1


def one_order_was_paid_twice(outcome: Outcome) -> None:
    outcome.paid_again = 1


def an_order_died_of_the_bank(outcome: Outcome) -> None:
    outcome.died["transport_unavailable"], outcome.brought_back = 1, 3


def a_bad_row_was_tried_again(outcome: Outcome) -> None:
    outcome.failed["validation_failure"] = 2


def the_poison_took_a_neighbour_along(outcome: Outcome) -> None:
    outcome.died["poison_message"], outcome.brought_back = 2, 3


def one_is_still_dead(outcome: Outcome) -> None:
    outcome.left = ONE_DEAD


def not_all_were_brought_back(outcome: Outcome) -> None:
    outcome.brought_back = 1


def the_data_was_not_read(outcome: Outcome) -> None:
    outcome.sound = False


@pytest.mark.parametrize(
    "goes_wrong",
    [
        one_order_is_missing,
        another_order_came_in_its_place,
        one_order_was_paid_twice,
        an_order_died_of_the_bank,
        a_bad_row_was_tried_again,
        the_poison_took_a_neighbour_along,
        one_is_still_dead,
        not_all_were_brought_back,
        the_data_was_not_read,
    ],
)
def test_a_story_that_went_otherwise_says_so_in_one_line(goes_wrong: Callable[[Outcome], None]) -> None:
    outcome = as_told()
    goes_wrong(outcome)
    assert [holds for holds, _ in outcome.holds].count(False) == 1


def test_the_fixes_fit_the_example_they_mend(tmp_path: Path) -> None:
    for name, old, new in FIXES:
        before = (EXAMPLE / name).read_text()
        assert before.count(old) == 1
        after = before.replace(old, new)
        if name.endswith(".json"):
            assert set(json.loads(after)) == {*json.loads(before), "SEK"}
        else:
            compile(after, name, "exec")


def test_the_runbook_of_the_example_has_no_mistake_and_no_warning() -> None:
    found = read_runbook([EXAMPLE / "runbook.toml"])
    assert set(found.runbook.workers) == {"billing"}
    assert not found.warnings


def test_the_orders_are_the_same_each_time_with_bad_rows_and_one_poison_among_them(tmp_path: Path) -> None:
    counts = write_orders(str(tmp_path / "first"), 2_000)
    write_orders(str(tmp_path / "second"), 2_000)
    orders = pq.read_table(tmp_path / "first")
    assert orders.equals(pq.read_table(tmp_path / "second"))
    rows = orders.to_pylist()
    assert (
        Counter(row["shop"] for row in rows)
        == counts
        == {shop: 100 * part for shop, (_, part) in SHOPS.items()}
    )
    assert len({row["order"] for row in rows}) == 2_000
    assert {row["shop"] for row in rows if row["currency"] == "SEK"} == {"silver"}
    assert len([row for row in rows if row["note"]]) == 1
    assert rows[0]["shop"] == "noisy"


def test_the_books_count_orders_and_repetitions_as_lines_come_in(tmp_path: Path) -> None:
    books = Books(tmp_path)
    (tmp_path / "1.csv").write_text("7,gold,100\n8,noisy,5\n")
    books.read()
    assert (books.paid, books.paid_again) == (2, 0)
    with (tmp_path / "1.csv").open("a") as page:
        page.write("9,gold,100\n")
    (tmp_path / "2.csv").write_text("7,gold,100\n")
    books.read()
    assert (books.paid, books.paid_again) == (3, 1)
    assert {shop: sorted(orders) for shop, orders in books.orders.items()} == {
        "gold": ["7", "9"],
        "noisy": ["8"],
    }


def test_what_it_says_to_try_next_is_there() -> None:
    for what, _ in NEXT:
        if not what.startswith("make "):
            assert (ROOT / what).exists()
    assert {what.split()[1] for what, _ in NEXT if what.startswith("make ")} <= {"demo", "test"}


#: Does not end when asked to. It is in a session of its own, as a process of Spark or of a step may be.
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(1000)"

BUSY = f"""
import signal, sys, subprocess, time
from examples.demo.scratch import Scratch

try:
    with Scratch(keep=False, columns=80) as scratch:
        child = scratch.start("child", [sys.executable, "-c", '''
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True)
time.sleep(1000)
'''], scratch.path)
        while "here" not in scratch.log("child"):
            assert "Error" not in scratch.log("child"), scratch.log("child")
            time.sleep(0.01)
        print("ready", flush=True)
        time.sleep(1000)
except KeyboardInterrupt:
    print("over", flush=True)
"""


def test_when_the_demo_is_interrupted_no_process_and_no_file_of_it_is_left(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    demo = subprocess.Popen(
        [sys.executable, "-c", BUSY], env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE
    )
    try:
        assert demo.stdout is not None
        assert demo.stdout.readline() == "ready\n"
        assert len(processes_in(tmp_path)) == 3
        demo.send_signal(signal.SIGINT)
        assert demo.stdout.read() == "over\n"
        assert demo.wait(60) == 0
    finally:
        demo.kill()
        demo.wait()
        left = processes_in(tmp_path)
        end(left)
    assert left == []
    assert list(tmp_path.iterdir()) == []


BROKEN = """
import sys
from pathlib import Path
import examples.demo.story
from examples.demo.__main__ import main

examples.demo.story.EXAMPLE = Path(sys.argv.pop())
sys.exit(main())
"""


def test_a_story_that_breaks_off_says_where_and_ends_with_an_error(tmp_path: Path) -> None:
    example, temporary = shutil.copytree(EXAMPLE, tmp_path / "example"), tmp_path / "temporary"
    temporary.mkdir()
    (example / "runbook.toml").write_text("[worker.billing]\nqueue = 'nowhere'\npipeline = 'bill'\n")
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN, str(example)],
        cwd=ROOT,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "The story broke off: 01-apply ended with 9" in ran.stdout
    assert "runbook.toml:3: worker.billing.pipeline: there is no pipeline 'bill'" in ran.stdout
    assert ran.stderr == ""
    assert processes_in(temporary) == []
    assert list(temporary.iterdir()) == []


def end(processes: list[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes_in(folder: Path) -> list[int]:
    """Those alive whose temporary files are to be in this folder, or below it."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment:
                found.append(int(process.name))
    return found
