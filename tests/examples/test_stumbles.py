"""What a stranger meets who gets something wrong, or changes their mind: words that help, and no traceback."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.cli import worker as worker_command
from fairlead.errors import ServerUnreachable
from fairlead.testing import open_in_memory
from fairlead.worker.counts import WorkerCounts
from tests.examples.shop import QUEUE, Shop, Working, until


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop", "--data", str(tmp_path / "data"))


def test_a_worker_that_is_not_told_its_project_says_which_there_are(shop: Shop) -> None:
    shop.run("apply", "--yes", "runbook.toml")
    assert "give --project shop" in shop.run("worker", "run", "billing", "--burst", code=4)
    assert "fairlead apply FILE" in shop.run(
        "worker", "run", "billing", "--burst", "--file", "runbook.toml", "--project", "other", code=4
    )
    shop.run("worker", "run", "billing", "--burst", FAIRLEAD_PROJECT="shop")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("def parse", "def parse(((", "cannot be imported (SyntaxError: "),
        ("def parse", "def pars", "module 'shop.steps' has no attribute 'parse'"),
    ],
)
def test_a_step_that_cannot_be_loaded_is_told_in_one_line_and_where_it_was_looked_for(
    shop: Shop, old: str, new: str, words: str
) -> None:
    shop.edit("shop/steps.py", old, new)
    shop.run("apply", "--yes", "runbook.toml")
    shop.push("ann", "12.50")
    said = shop.run("worker", "run", "billing", "--burst", "--project", "shop", code=9)
    assert words in said
    assert f"searched in {shop.folder}" in said
    assert "loop.py" not in said
    assert [message["status"] for message in shop.messages().values()] == ["pending"], (
        "that is not the item's fault"
    )


def test_ctrl_c_lets_the_step_under_way_finish_and_leaves_no_process_behind(shop: Shop) -> None:
    started, go_on = shop.folder / "started", shop.folder / "go_on"
    shop.edit(
        "shop/steps.py",
        "def parse(item):\n",
        "def parse(item):\n    import os, pathlib, time\n    pathlib.Path('started').write_text(str(os.getpid()))\n"
        "    while not pathlib.Path('go_on').exists(): time.sleep(0.01)\n",
    )
    shop.run("apply", "--yes", "runbook.toml")
    ids = [shop.push("ann", "12.50"), shop.push("bob", "7.95"), shop.push("eve", "3.20")]
    with Working(shop, "billing", "--concurrency", "1") as worker:
        until(lambda: started.exists() and started.read_text(), "the first step")
        worker.process.send_signal(signal.SIGINT)
        go_on.touch()
        code, _ = worker.stop(signal.SIGCONT)
    assert code == 0
    assert not Path("/proc", started.read_text()).exists()
    found = shop.messages()
    assert sorted(found[name]["status"] for name in ids) == ["completed", "pending", "pending"]
    assert all(not found[name]["failures"] for name in ids)


def test_dead_letters_are_told_by_number_with_a_way_to_look_at_them(shop: Shop) -> None:
    shop.run("apply", "--yes", "runbook.toml")
    shop.push("ann", "twelve"), shop.push("bob", "seven")
    with Working(shop, "billing", "--burst") as worker:
        assert worker.stop(signal.SIGCONT)[0] == 0
    told = [line for line in worker.log if "new dead letters" in line]
    assert sum(int(line.split('"count": ')[1].split(",")[0]) for line in told) == 2
    assert f"fairlead queue show {QUEUE} --status dead" in told[0]
    assert "twelve" not in "".join(worker.log)


def test_ctrl_c_while_the_command_is_still_loading_ends_it_without_a_word(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fairlead.cli.app.app", interrupted)
    monkeypatch.setattr(sys, "argv", ["fairlead", "worker", "run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capfd.readouterr() == ("", "")


class Idle:
    """Workers that did something once, and are asked a few times more."""

    def __init__(self) -> None:
        self.loops: dict[str, object] = {}
        self.counts = WorkerCounts()
        self.has_no_worker = False
        self.left = 5

    def wait(self, timeout_s: float) -> bool:
        self.counts.completed = 1
        self.left -= 1
        return self.left == 0


def test_a_worker_with_nothing_to_do_does_not_repeat_itself_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_command, "_REPORT_S", 0.0)
    with caplog.at_level("INFO", logger="fairlead.worker"):
        worker_command._supervise(Idle(), None)  # type: ignore[arg-type]
    assert [record.message for record in caplog.records] == ["progress"]


class Away:
    """A server that nobody reaches."""

    def __getattr__(self, verb: str) -> object:
        raise ServerUnreachable("127.0.0.1:5556", "connection refused")


def test_a_watched_file_that_has_not_changed_needs_no_server_and_one_that_has_waits_for_it(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    file = shop.folder / "runbook.toml"
    with open_in_memory() as broker:
        source = worker_command._RunbookSource(broker, [file])  # type: ignore[arg-type]
        applied = source.apply()
        source._target = Away()  # type: ignore[assignment]
        assert source.changed() is None
        shop.edit("runbook.toml", "concurrency = 2", "concurrency = 3")
        assert source.changed() is None
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        source._target = broker  # type: ignore[assignment]
        changed = source.changed()
        assert changed is not None
        assert (applied.workers["billing"].concurrency, changed.workers["billing"].concurrency) == (2, 3)
        assert source.changed() is None
