"""The comparison finds differences, and today's engine plays runs alike every time. No first engine is needed here."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.differential.alike import first_difference
from tests.differential.lend import FORMER_NAMES
from tests.differential.plain import Record
from tests.differential.player import play
from tests.differential.transcript import Happened, Reopened


def test_a_seed_plays_the_same_run_every_time() -> None:
    first = play(15)
    assert {"reopen", "deliver all", "claim"} <= {happened.verb for happened in first}
    assert first_difference(first, play(15)) is None


def found(first: object, today: object) -> bool:
    return first_difference([Happened("look", answer=first)], [Happened("look", answer=today)]) is not None


def test_another_order_of_delivery_is_a_difference() -> None:
    assert first_difference([Happened("claim", [1, 2])], [Happened("claim", [2, 1])]) is not None


def test_other_numbers_in_a_sentence_are_a_difference_and_other_words_are_not() -> None:
    assert not found("3 of 4 attempts", "attempts: 3 / 4")
    assert found("3 of 4 attempts", "3 of 5 attempts")


def test_fields_that_both_engines_have_are_compared() -> None:
    assert not found(Record("Info", {"kept": 1, "former": 2}), Record("Info", {"kept": 1, "new": 3}))
    assert found(Record("Info", {"kept": 1}), Record("Info", {"kept": 2}))


def test_after_a_reopening_keys_may_take_turns_in_another_order_and_their_messages_may_not() -> None:
    groups = {("a", ""): [1, 2, 3], ("b", ""): [4, 5, 6]}
    first = Reopened(["a", "b"] * 3, groups, {"a": 1, "b": 1})
    assert not found(first, first._replace(keys=["b", "a"] * 3))
    assert found(first, first._replace(keys=["b"] * 3 + ["a"] * 3))
    assert found(first, first._replace(groups=groups | {("a", ""): [2, 1, 3]}))


@pytest.mark.parametrize(("module", "name"), FORMER_NAMES)
def test_a_name_that_the_first_engine_is_lent_exists_today(module: str, name: str) -> None:
    assert hasattr(import_module(module), name)
