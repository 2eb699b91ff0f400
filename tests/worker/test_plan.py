"""Which step is next, and what is stored of confirmed steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.handles import check_carry, check_progress
from fairlead.runbook.model import PipelineSpec, StepSpec
from fairlead.worker.plan import CarryTooLarge, CarryUnreadable, PipelinePlan, bits_of, dump_carry, read_carry

NAMES = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8, unique=True)


def plan_of(names: list[str], bits: dict[str, int] | None = None) -> PipelinePlan:
    return PipelinePlan.of(PipelineSpec("p", tuple(StepSpec(name, run="m:f") for name in names), bits or {}))


@given(NAMES, st.data())
def test_the_next_step_is_the_first_unconfirmed_one_of_the_current_pipeline(
    names: list[str], data: st.DataObject
) -> None:
    done = dict.fromkeys(data.draw(st.lists(st.sampled_from([*names, "gone"]))), b"1")
    plan = plan_of(names)
    at = plan.next_step(done)
    assert all(name in done for name in names[:at])
    assert at == len(names) or names[at] not in done


@given(NAMES)
def test_following_the_next_step_runs_each_step_once_in_order(names: list[str]) -> None:
    plan, done, ran = plan_of(names), {}, []
    while (at := plan.next_step(done)) < len(names):
        ran.append(names[at])
        done = read_carry("p", dump_carry("p", {**done, names[at]: b"null"}))
    assert ran == names
    assert plan.progress(done) == plan.all_masks


@given(
    NAMES,
    st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3),
        st.sampled_from([1 << n for n in (3, 4, 5, 16)]),
        max_size=4,
    ),
)
def test_each_step_has_its_own_progress_bit_that_is_not_reserved(
    names: list[str], given_bits: dict[str, int]
) -> None:
    given_bits = {
        name: bit
        for at, (name, bit) in enumerate(given_bits.items())
        if bit not in list(given_bits.values())[:at]
    }
    bits = bits_of(PipelineSpec("p", tuple(StepSpec(name, run="m:f") for name in names), given_bits))
    assert len(set(bits.values())) == len(bits)
    assert given_bits.items() <= bits.items()
    for name in names:
        assert not bits[name] & (1 | 2 | 4 | 32768)
        check_progress(bits[name])


def test_a_step_without_a_free_bit_has_none() -> None:
    masks = plan_of([f"step {n}" for n in range(61)]).masks
    assert masks[-1] == 0
    check_progress(sum(masks))


def test_confirmed_steps_of_another_pipeline_are_ignored() -> None:
    assert read_carry("p", dump_carry("q", {"a": b"1"})) == {}


def test_a_carry_that_no_pipeline_wrote_is_refused() -> None:
    with pytest.raises(CarryUnreadable):
        read_carry("p", b"\x00 mine")


def test_a_carry_that_is_too_large_for_the_broker_is_refused_before_it_is_sent() -> None:
    fits = dump_carry("p", {"a": b'"' + b"x" * 65_000 + b'"'})
    assert check_carry(fits) == fits
    with pytest.raises(CarryTooLarge, match="a 65002, b 1002"):
        dump_carry("p", {"a": b'"' + b"x" * 65_000 + b'"', "b": b'"' + b"x" * 1000 + b'"'})
