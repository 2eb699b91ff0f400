"""What types the pages must see when a page is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Session
from tests.docs.terminals import Terminals

ID, OTHER_ID = "0123abcd", "fedc9876"


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    opened = Terminals(tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("echo one; echo two", "one\ntwo\n"),
        ("echo one; echo two; echo three", "...\nthree\n"),
        ("echo one; echo two; echo three", "one\n...\n"),
        (f"echo '{OTHER_ID}  for 12s'", f"{ID}   for 3ms\n"),
        (
            "echo 01a1e28b-6d2d-7001-a60c-f535f1f60bb6 1234567d",
            "01a1e273-9d2a-7001-8827-caecb37df8ca b37df8ca\n",
        ),
        ("echo $FAIRLEAD_ADDR", "127.0.0.1:5554\n"),
        ("echo oops >&2", "oops\n"),
        ("echo 'a cell of many words  and another of more'", "a cell of ma…  and anoth…\n"),
        ("true", ""),
    ],
)
def test_what_differs_only_from_run_to_run_is_alike(terminals: Terminals, typed: str, shown: str) -> None:
    terminals.follow(Session(1, "", f"$ {typed}\n{shown}"))


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("echo one; echo two", "one\n"),
        ("echo one", "one\ntwo\n"),
        ("echo one; echo two", "two\n"),
        ("echo one; echo two", "...\nthree\n"),
        ("echo 3 dead", "2 dead\n"),
        ("echo 'a cell of many words  and another'", "a cell of ma…  and one\n"),
        ("echo unseen", ""),
    ],
)
def test_a_page_that_shows_something_else_fails(terminals: Terminals, typed: str, shown: str) -> None:
    with pytest.raises(AssertionError):
        terminals.follow(Session(1, "", f"$ {typed}\n{shown}"))


def test_an_id_of_the_page_stands_for_the_one_that_was_printed(terminals: Terminals) -> None:
    terminals.follow(Session(1, "", f"$ echo 'first {OTHER_ID}'\nfirst {ID}\n"))
    terminals.follow(Session(1, "", f"$ echo {ID} > named\n"))
    assert (terminals.folder / "named").read_text() == f"{OTHER_ID}\n"


def test_a_terminal_with_a_name_goes_on_until_it_is_interrupted(terminals: Terminals) -> None:
    (terminals.folder / "loop.sh").write_text(
        "trap 'echo bye; exit 0' INT; echo ready; while true; do read < feed && echo fed; done"
    )
    terminals.follow(Session(1, "", "$ mkfifo feed\n"))
    terminals.follow(Session(1, "loop", "$ bash loop.sh\nready\n"))
    terminals.follow(Session(1, "", "$ echo > feed\n"))
    terminals.follow(Session(1, "loop", "fed\n"))
    terminals.follow(Session(1, "loop", "^C\n...\nbye\n"))


def test_a_command_is_typed_again_until_it_shows_what_the_page_does(
    terminals: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals.follow(Session(1, "again", "$ echo x >> seen; wc -l < seen\n3\n"))
    assert (terminals.folder / "seen").read_text() == "x\nx\nx\n"
    monkeypatch.setattr("tests.docs.terminals.PATIENCE_S", 1.0)
    with pytest.raises(AssertionError):
        terminals.follow(Session(1, "again", "$ echo one\ntwo\n"))


def test_a_command_that_ends_before_it_showed_everything_fails_at_once(terminals: Terminals) -> None:
    with pytest.raises(AssertionError, match="got"):
        terminals.follow(Session(1, "short", "$ echo one\none\ntwo\n"))


def test_an_interrupted_command_must_end_in_order(terminals: Terminals) -> None:
    terminals.follow(Session(1, "sleeper", "$ bash -c 'echo ready; exec sleep 1000'\nready\n"))
    with pytest.raises(AssertionError):
        terminals.follow(Session(1, "sleeper", "^C\n"))
